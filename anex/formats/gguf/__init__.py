"""GGUF, the model files of llama.cpp: `GGUFFile` reads them, `GGUFWriter` writes them."""

from anex.formats.gguf.reader import GGUFFile
from anex.formats.gguf.types import GGMLType, TensorInfo, ValueType, quoted
from anex.formats.gguf.writer import GGUFWriter

__all__ = ["GGMLType", "GGUFFile", "GGUFWriter", "TensorInfo", "ValueType", "quoted"]
