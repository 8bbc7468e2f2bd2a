"""Encoders: from a model file to a config, weights, MIL functions, and one vector for a text."""

from anex.models.encoder.config import EncoderConfig, Learned, Pooling, Rotary
from anex.models.encoder.prepared import PreparedEncoder, convert_encoder
from anex.models.encoder.sentence import POOLINGS
from anex.models.encoder.signature import EncoderSignature, encode_name, rungs, signature
from anex.models.encoder.source import EncoderFile, is_encoder, load_encoder_file

__all__ = [
    "POOLINGS",
    "EncoderConfig",
    "EncoderFile",
    "EncoderSignature",
    "Learned",
    "Pooling",
    "PreparedEncoder",
    "Rotary",
    "convert_encoder",
    "encode_name",
    "is_encoder",
    "load_encoder_file",
    "rungs",
    "signature",
]
