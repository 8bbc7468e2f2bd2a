"""Model families: from a model file to a config, a tokenizer, weights and MIL programs."""

from anex.models.config import DecoderConfig
from anex.models.layout import CacheSurface, cache_surfaces
from anex.models.ledger import Account, Ledger
from anex.models.masks import EMPTY, MASKED, mask
from anex.models.program import CHUNKS, Rungs, build_program, decode_name, head_name, plan, prefill_name
from anex.models.rope import Rope, tables
from anex.models.source import ModelFile, Prepared, convert, load_gguf, prepare

__all__ = [
    "CHUNKS",
    "EMPTY",
    "MASKED",
    "Account",
    "CacheSurface",
    "DecoderConfig",
    "Ledger",
    "ModelFile",
    "Prepared",
    "Rope",
    "Rungs",
    "build_program",
    "cache_surfaces",
    "convert",
    "decode_name",
    "head_name",
    "load_gguf",
    "mask",
    "plan",
    "prefill_name",
    "prepare",
    "tables",
]
