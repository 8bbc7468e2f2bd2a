"""Model families: from a model file to a config, a tokenizer, weights and MIL programs."""

from anex.models.config import Attention, DecoderConfig, Mlp, Multipliers, Norm
from anex.models.entry import BLOB_FILE, INDEX
from anex.models.feed import Feed
from anex.models.layout import CacheSurface
from anex.models.ledger import Account, Ledger
from anex.models.masks import EMPTY, MASKED, mask
from anex.models.prepared import Prepared, convert, prepare
from anex.models.program import CHUNKS, Rungs, build_program, plan
from anex.models.rope import Rope, tables
from anex.models.signature import (
    Kind,
    PortInfo,
    Role,
    Signature,
    decode_name,
    head_name,
    prefill_name,
    signature,
)
from anex.models.source import ModelFile, load, load_gguf
from anex.models.tensors import TensorDescription, TensorSource
from anex.models.weights import Progress

__all__ = [
    "BLOB_FILE",
    "CHUNKS",
    "EMPTY",
    "INDEX",
    "MASKED",
    "Account",
    "Attention",
    "CacheSurface",
    "DecoderConfig",
    "Feed",
    "Kind",
    "Ledger",
    "Mlp",
    "ModelFile",
    "Multipliers",
    "Norm",
    "PortInfo",
    "Prepared",
    "Progress",
    "Role",
    "Rope",
    "Rungs",
    "Signature",
    "TensorDescription",
    "TensorSource",
    "build_program",
    "convert",
    "decode_name",
    "head_name",
    "load",
    "load_gguf",
    "mask",
    "plan",
    "prefill_name",
    "prepare",
    "signature",
    "tables",
]
