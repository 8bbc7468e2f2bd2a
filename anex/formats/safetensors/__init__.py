"""safetensors, the model files of the Hugging Face hub: a file, or a folder with shards and `config.json`."""

from anex.formats.safetensors.folder import INDEX, WEIGHTS, SafetensorsFolder, shards_of_index
from anex.formats.safetensors.json_text import read_json
from anex.formats.safetensors.reader import SafetensorsFile, pickles_refused
from anex.formats.safetensors.types import PICKLES, StoredType, TensorInfo

__all__ = [
    "INDEX",
    "PICKLES",
    "WEIGHTS",
    "SafetensorsFile",
    "SafetensorsFolder",
    "StoredType",
    "TensorInfo",
    "pickles_refused",
    "read_json",
    "shards_of_index",
]
