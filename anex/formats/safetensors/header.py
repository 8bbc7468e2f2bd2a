"""The header of a safetensors file: a length, a JSON object, and the promise that the data fills the rest.

The format (its README, "Format") is strict so that a file means one thing:
the header starts with `{`, names appear once, and the tensors cover the data
without holes or overlap.  All of that is checked, and nothing is allocated
that the bytes of the file do not account for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import quoted
from anex.formats.safetensors.json_text import parse_object
from anex.formats.safetensors.types import STORED, TensorInfo

_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 100_000_000  # the format's own limit
_MAX_RANK = 32
_MAX_ELEMENTS = 1 << 56  # of a tensor, empty axes left out: what numpy can give a shape
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}

_PICKLE_HINT = "convert it to safetensors, or take the model's safetensors file"
_OTHER_FILES: tuple[tuple[bytes, str, str], ...] = (
    (b"GGUF", "a GGUF file", "give it a name that ends in .gguf"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch pickle", _PICKLE_HINT),
    (b"\x80\x02", "a Python pickle", _PICKLE_HINT),
    (b"\x89HDF", "an HDF5 file", "take the model's safetensors file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull, or anex pull"),
    (b"<", "a text, perhaps an error page", "download it again"),
    (b"{", "a JSON text", "a sharded model is opened by its folder"),
)


@dataclass(frozen=True, slots=True)
class Header:
    """What `read_header` found; tensors in the order of the data.

    Attributes:
        nbytes: Size of everything before the tensor data.
    """

    nbytes: int
    metadata: dict[str, str]
    tensors: tuple[TensorInfo, ...]


def read_header(data: memoryview, path: Path) -> Header:
    """Read and check everything before the tensor data.

    Raises:
        InputError: The file is malformed or cut short; says where.
        UnsupportedError: A tensor has a type that anex does not read.
    """
    start = _header_end(data, path)
    content = parse_object(data[_LENGTH.size : start], f"{path}: header")
    metadata = _metadata(content.pop(_METADATA, {}), path)
    tensors = [_tensor(name, entry, start, path) for name, entry in content.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    _check_cover(tensors, start, len(data), path)
    return Header(start, metadata, tuple(tensors))


def _header_end(data: memoryview, path: Path) -> int:
    """Where the tensor data begins."""
    size = len(data)
    if size < _LENGTH.size + 2:
        raise InputError(f"a file of {size} bytes is no safetensors file", where=str(path))
    (length,) = _LENGTH.unpack_from(data)
    fits = 2 <= length <= min(_MAX_HEADER, size - _LENGTH.size)
    if fits and data[_LENGTH.size] == ord("{"):
        return _LENGTH.size + int(length)
    head = bytes(data[:32])
    for magic, what, hint in _OTHER_FILES:
        if head.startswith(magic):
            raise InputError(f"not a safetensors file: it is {what}", where=str(path), hint=hint)
    if fits:
        raise InputError("not a safetensors file: its header is no JSON object", where=str(path))
    if 2 <= length <= _MAX_HEADER:
        raise InputError(
            f"the header is {length} bytes long, the file has {size}",
            where=str(path),
            hint="an incomplete download?",
        )
    raise InputError(f"not a safetensors file: it states a header of {length} bytes", where=str(path))


def _metadata(value: Any, path: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InputError(f"'{_METADATA}' is no map of texts", where=str(path))
    return value


def _tensor(name: str, entry: Any, start: int, path: Path) -> TensorInfo:
    where = f"{path}: tensor {quoted(name)}"
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise InputError("its description is not made of dtype, shape and data_offsets", where=where)
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str):
        raise InputError("its dtype is no text", where=where)
    kind = STORED.get(code)
    if kind is None:
        raise UnsupportedError(f"safetensors type {quoted(code)}", where=where)
    if not _are_sizes(shape) or len(shape) > _MAX_RANK:
        raise InputError(f"its shape is no list of at most {_MAX_RANK} sizes", where=where)
    if prod(extent for extent in shape if extent) > _MAX_ELEMENTS:
        raise InputError(f"its shape has more than {_MAX_ELEMENTS} elements", where=where)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError("its data_offsets are no begin and end", where=where)
    begin, end = offsets
    nbytes = prod(shape) * kind.dtype.itemsize
    if end - begin != nbytes:
        raise InputError(
            f"{kind.name} of shape {shape} takes {nbytes} bytes, its data_offsets span {end - begin}",
            where=where,
        )
    return TensorInfo(name, tuple(shape), kind, start + begin, nbytes, path)


def _are_sizes(value: Any) -> bool:
    # `True` is an int to Python, but no size to JSON.
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)


def _check_cover(tensors: list[TensorInfo], start: int, size: int, path: Path) -> None:
    """The tensors, sorted, must fill the bytes from `start` to the end of the file exactly."""
    expected, before = start, "the header"
    for tensor in tensors:
        if tensor.offset != expected:
            overlap = tensor.offset < expected
            what = f"overlaps {before}" if overlap else f"leaves a hole after {before}"
            raise InputError(
                f"its data {what}: it starts at byte {tensor.offset}, not {expected}",
                where=f"{path}: tensor {quoted(tensor.name)}",
            )
        expected, before = tensor.offset + tensor.nbytes, f"tensor {quoted(tensor.name)}"
    if expected > size:
        raise InputError(
            f"the tensors end at byte {expected}, the file has {size}",
            where=str(path),
            hint="an incomplete download?",
        )
    if expected < size:
        raise InputError(
            f"{size - expected} bytes after the last tensor belong to none of them", where=str(path)
        )
