"""The part of a GGUF file before the tensor data, read with every count checked against the file.

Nothing is allocated that the bytes of the file do not account for: a count is
compared with the smallest size of what it counts before anything is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf.types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMENSIONS,
    NUMPY,
    REMOVED,
    VERSIONS,
    GGMLType,
    TensorInfo,
    ValueType,
    quoted,
)

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_FIXED = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: _U32,
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.UINT64: _U64,
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}

_MIN_PAIR = 8 + 1 + 4 + 1  # key length, key, type, value
_MIN_TENSOR = 8 + 4 + 4 + 8  # name length, number of dimensions, type, offset
_MIN_STRING = 8
_MIN_ARRAY = 4 + 8
_MAX_KEY = 65535  # the specification's limit
_MAX_DEPTH = 4  # the specification allows any; no known file nests at all

_OTHER_FILES = {
    b"PK\x03\x04": "a zip archive",
    b"lmgg": "a GGML file from before GGUF",
    b"tjgg": "a GGJT file from before GGUF",
    b"fmgg": "a GGMF file from before GGUF",
    b"vers": "a Git LFS pointer, not the file itself",
}


class Metadata(Mapping[str, Any]):
    """The keys of a file; string arrays are decoded when first asked for."""

    def __init__(self, values: dict[str, Any], types: dict[str, str]) -> None:
        self._values = values
        self.types: Mapping[str, str] = types
        """The type of each value as the file states it: "uint32", "array of string" …"""

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Strings):
            value = self._values[key] = value.decode()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"Metadata({len(self._values)} keys)"


@dataclass(frozen=True, slots=True)
class Header:
    """What `read_header` found; tensors in the order of the file.

    Attributes:
        nbytes: Size of everything before the tensor data.
    """

    nbytes: int
    version: int
    alignment: int
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]


def read_header(data: memoryview, path: Path) -> Header:
    """Read and check everything before the tensor data.

    Raises:
        InputError: The file is malformed or cut short; says where.
        UnsupportedError: Another GGUF version, byte order or tensor type.
    """
    cursor = _Cursor(data, path)
    version = _version(cursor)
    tensor_count = cursor.count(_MIN_TENSOR, "tensors")
    metadata = _metadata(cursor, cursor.count(_MIN_PAIR, "metadata keys"))
    alignment = _alignment(metadata, cursor)
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    start = -(-cursor.position // alignment) * alignment
    names: set[str] = set()
    tensors = []
    for name, shape, kind, offset in entries:
        if name in names:
            raise cursor.error(f"tensor {quoted(name)} appears twice")
        names.add(name)
        tensors.append(_located(cursor, TensorInfo(name, shape, kind, offset, 0, path), start, alignment))
    return Header(start, version, alignment, metadata, tuple(tensors))


def _version(cursor: _Cursor) -> int:
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        known = _OTHER_FILES.get(bytes(magic))
        raise cursor.error("not a GGUF file" + (f": it is {known}" if known else ""))
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError("big-endian GGUF", where=str(cursor.path), hint="convert it to little-endian")
    if version not in VERSIONS:
        raise UnsupportedError(f"GGUF version {version}", where=str(cursor.path), hint="2 and 3 are read")
    return version


class _Cursor:
    """Reads a file from front to back; every read is checked against the end."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data = data
        self.size = len(data)
        self.position = 0
        self.path = path

    def error(self, what: str, hint: str = "") -> InputError:
        return InputError(what, where=str(self.path), hint=hint)

    def cut(self, what: str) -> InputError:
        return self.error(
            f"the file ends at byte {self.size}, inside {what} at byte {self.position}",
            "an incomplete download?",
        )

    def take(self, nbytes: int, what: str) -> memoryview:
        if nbytes > self.size - self.position:
            raise self.cut(what)
        start = self.position
        self.position += nbytes
        return self.data[start : self.position]

    def fixed(self, layout: struct.Struct, what: str) -> Any:
        if layout.size > self.size - self.position:
            raise self.cut(what)
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return value

    def u32(self, what: str) -> int:
        value: int = self.fixed(_U32, what)
        return value

    def u64(self, what: str) -> int:
        value: int = self.fixed(_U64, what)
        return value

    def count(self, smallest: int, what: str) -> int:
        """A number of things, each of which takes `smallest` bytes or more."""
        at = self.position
        value = self.u64(f"the number of {what}")
        if value > (self.size - self.position) // smallest:
            raise self.error(f"{value} {what} (stated at byte {at}) do not fit into {self.size} bytes")
        return value

    def string(self, what: str) -> str:
        at = self.position
        length = self.u64(f"the length of {what}")
        if length > self.size - self.position:
            raise self.error(f"{what} at byte {at} is {length} bytes long, the file has {self.size}")
        try:
            return str(self.take(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} at byte {at} is not UTF-8") from error


@dataclass(frozen=True, slots=True)
class _Strings:
    """A string array whose extent was checked; its text was not looked at yet."""

    data: memoryview
    start: int
    count: int
    key: str
    path: Path

    def decode(self) -> tuple[str, ...]:
        """The strings.

        Raises:
            InputError: One of them is not UTF-8.
        """
        data, position, unpack = self.data, self.start, _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(self.count):
                start = position + 8
                position = start + unpack(data, position)[0]
                found.append(str(data[start:position], "utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(
                f"key {quoted(self.key)}: string {len(found)} is not UTF-8", where=str(self.path)
            ) from error
        return tuple(found)


def _metadata(cursor: _Cursor, count: int) -> Metadata:
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for _ in range(count):
        at = cursor.position
        key = cursor.string("a metadata key")
        if not 0 < len(key) <= _MAX_KEY:
            raise cursor.error(f"the metadata key at byte {at} has {len(key)} characters")
        if key in values:
            raise cursor.error(f"key {quoted(key)} appears twice")
        kind = _value_type(cursor, key)
        values[key], types[key] = _value(cursor, key, kind)
    return Metadata(values, types)


def _value_type(cursor: _Cursor, key: str) -> ValueType:
    number = cursor.u32(f"the type of key {quoted(key)}")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"key {quoted(key)} has the unknown value type {number}") from None


def _value(cursor: _Cursor, key: str, kind: ValueType) -> tuple[Any, str]:
    what = f"the value of key {quoted(key)}"
    if kind is ValueType.ARRAY:
        return _array(cursor, key, 1)
    if kind is ValueType.STRING:
        return cursor.string(what), "string"
    if kind is ValueType.BOOL:
        byte = cursor.take(1, what)[0]
        if byte > 1:
            raise cursor.error(f"key {quoted(key)} is a bool of value {byte}")
        return byte == 1, "bool"
    return cursor.fixed(_FIXED[kind], what), kind.name.lower()


def _array(cursor: _Cursor, key: str, depth: int) -> tuple[Any, str]:
    """The value and type name of an array: a numpy view, strings still to decode, or a tuple of arrays."""
    if depth > _MAX_DEPTH:
        raise cursor.error(f"key {quoted(key)} nests arrays deeper than {_MAX_DEPTH}")
    element = _value_type(cursor, key)
    what = f"elements of key {quoted(key)}"
    name = f"array of {element.name.lower()}"
    if element is ValueType.STRING:
        return _strings(cursor, key, cursor.count(_MIN_STRING, what)), name
    if element is ValueType.ARRAY:
        inner = [_array(cursor, key, depth + 1) for _ in range(cursor.count(_MIN_ARRAY, what))]
        values = (value.decode() if isinstance(value, _Strings) else value for value, _ in inner)
        return tuple(values), name
    dtype = NUMPY[element]
    count = cursor.count(dtype.itemsize, what)
    flat = np.frombuffer(cursor.take(count * dtype.itemsize, what), np.uint8)
    if element is ValueType.BOOL and count and flat.max() > 1:
        raise cursor.error(f"key {quoted(key)} holds a bool of value {flat.max()}")
    return flat.view(dtype), name


def _strings(cursor: _Cursor, key: str, count: int) -> _Strings:
    """Step over `count` strings; vocabularies make this the hot loop of opening a file."""
    data, size, position, unpack = cursor.data, cursor.size, cursor.position, _U64.unpack_from
    start = position
    try:
        for _ in range(count):
            position += 8 + unpack(data, position)[0]
    except (struct.error, OverflowError):
        position = size + 1
    if position > size:
        raise cursor.cut(f"the strings of key {quoted(key)}")
    cursor.position = position
    return _Strings(data, start, count, key, cursor.path)


def _alignment(metadata: Metadata, cursor: _Cursor) -> int:
    value = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    stated = metadata.types.get(ALIGNMENT_KEY, "uint32")
    if stated != "uint32":
        raise cursor.error(f"key '{ALIGNMENT_KEY}' is a {stated}, not a uint32")
    if value <= 0 or value & (value - 1):
        raise cursor.error(f"key '{ALIGNMENT_KEY}' is {value}, not a power of two")
    return int(value)


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLType, int]:
    at = cursor.position
    name = cursor.string("a tensor name")
    if not name:
        raise cursor.error(f"the tensor described at byte {at} has no name")
    label = f"tensor {quoted(name)}"
    rank = cursor.u32(f"the rank of {label}")
    if rank > MAX_DIMENSIONS:
        raise cursor.error(f"{label} has {rank} dimensions, ggml allows {MAX_DIMENSIONS}")
    dims = tuple(cursor.u64(f"the shape of {label}") for _ in range(rank))
    number = cursor.u32(f"the type of {label}")
    offset = cursor.u64(f"the offset of {label}")
    try:
        kind = GGMLType(number)
    except ValueError:
        known = f"{REMOVED[number]} ({number})" if number in REMOVED else str(number)
        raise UnsupportedError(f"ggml type {known}", where=f"{cursor.path}: {label}") from None
    return name, dims[::-1], kind, offset


def _located(cursor: _Cursor, tensor: TensorInfo, start: int, alignment: int) -> TensorInfo:
    """The tensor with its place in the file, once its shape and place are known to make sense."""
    label, kind = f"tensor {quoted(tensor.name)}", tensor.type
    if 0 in tensor.shape:
        raise cursor.error(f"{label} has no elements: its shape is {list(tensor.shape)}")
    if tensor.width % kind.block:
        raise cursor.error(
            f"{label} has rows of {tensor.width} elements, {kind.name} needs a multiple of {kind.block}"
        )
    if tensor.offset % alignment:
        raise cursor.error(f"{label} is at offset {tensor.offset}, not a multiple of {alignment}")
    nbytes = prod(tensor.shape) // kind.block * kind.block_bytes
    place = start + tensor.offset
    if place + nbytes > cursor.size:
        raise cursor.error(
            f"{label} takes bytes {place} to {place + nbytes}, the file has {cursor.size}",
            "an incomplete download?",
        )
    return TensorInfo(tensor.name, tensor.shape, kind, place, nbytes, tensor.file)
