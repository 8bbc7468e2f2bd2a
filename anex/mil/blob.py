"""The weight file of a program: blob storage v2, written in a stream, read through a memory map.

Layout (facts: coreml.md §5, checked byte by byte against coremltools): a
64-byte header, then records at multiples of 64.  A record is 64 bytes of
description followed by its data; gaps are zero and the file ends with the
last byte of data.  A program refers to the offset of a record.  Types below a
byte form one little-endian bit stream: element i at bits [i·n, (i+1)·n).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import lcm
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np

from anex.errors import InputError
from anex.files import StrPath, atomic_write, map_file
from anex.mil.ir import BLOB_PATH, BlobRef, Literal
from anex.mil.types import DType, TensorType

Array = np.ndarray[Any, np.dtype[Any]]

VERSION = 2
_SENTINEL = 0xDEADBEEF
_ALIGNMENT = 64
_HEADER = struct.Struct("<II56x")
_RECORD = struct.Struct("<IIQQQ32x")

CODES: dict[DType, int] = {
    DType.FP16: 1,
    DType.FP32: 2,
    DType.UINT8: 3,
    DType.INT8: 4,
    DType.BF16: 5,
    DType.INT16: 6,
    DType.UINT16: 7,
    DType.INT4: 8,
    DType.UINT1: 9,
    DType.UINT2: 10,
    DType.UINT4: 11,
    DType.UINT3: 12,
    DType.UINT6: 13,
    DType.INT32: 14,
    DType.UINT32: 15,
    DType.FP8_E4M3FN: 16,
    DType.FP8_E5M2: 17,
}
"""The element types that a blob file can hold, and their numbers in a record."""

_DTYPES = {code: dtype for dtype, code in CODES.items()}


def pack(array: Array, dtype: DType) -> Array:
    """The bytes under which elements of a sub-byte type are stored.

    Args:
        array: Values, one a byte (`dtype.numpy`), any shape; taken in row-major order.
        dtype: A sub-byte type.

    Returns:
        uint8 of shape [ceil(size·bits/8)]; unused high bits of the last byte are zero.

    Raises:
        InputError: A value does not fit the type.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    low, high = _sub_byte_range(dtype)
    if flat.size and (int(flat.min()) < low or int(flat.max()) > high):
        raise InputError(f"values {flat.min()} … {flat.max()} do not fit {dtype.value} ({low} … {high})")
    per_group, group_bytes, word = _groups(dtype)
    count = -(-flat.size // per_group)
    whole = flat.view(np.uint8)
    if count * per_group != flat.size:
        whole = np.concatenate([whole, np.zeros(count * per_group - flat.size, np.uint8)])
    columns = whole.reshape(count, per_group)
    mask = np.uint8((1 << dtype.bits) - 1)
    words: Array = np.zeros(count, word)
    for i in range(per_group):
        words |= (columns[:, i] & mask).astype(word) << word(i * dtype.bits)
    stored = words.view(np.uint8).reshape(count, words.itemsize)[:, :group_bytes].reshape(-1)
    return cast(Array, stored[: _packed_bytes(flat.size, dtype)])


def unpack(data: Array, dtype: DType, count: int) -> Array:
    """The elements of a sub-byte type from their stored bytes; the inverse of `pack`.

    Args:
        data: uint8 of shape [ceil(count·bits/8)].
        dtype: A sub-byte type.
        count: Number of elements.

    Returns:
        A new array of shape [count] and `dtype.numpy`, one element a byte.

    Raises:
        InputError: `data` does not have the size that `count` elements take.
    """
    if data.size != _packed_bytes(count, dtype):
        raise InputError(f"{count} elements of {dtype.value} do not take {data.size} bytes")
    per_group, group_bytes, word = _groups(dtype)
    groups = -(-count // per_group)
    padded = np.zeros((groups, np.dtype(word).itemsize), np.uint8)
    whole = data.size // group_bytes
    padded[:whole, :group_bytes] = data[: whole * group_bytes].reshape(whole, group_bytes)
    if whole < groups:
        tail = data[whole * group_bytes :]
        padded[whole, : tail.size] = tail
    words: Array = padded.view(word).reshape(groups)
    mask = word((1 << dtype.bits) - 1)
    out = np.empty((groups, per_group), np.uint8)
    for i in range(per_group):
        out[:, i] = (words >> word(i * dtype.bits)) & mask
    flat = out.reshape(-1)[:count]
    if dtype is DType.INT4:
        sign = np.uint8(8)
        return ((flat ^ sign) - sign).view(np.int8)
    return flat


def _groups(dtype: DType) -> tuple[int, int, type[np.unsignedinteger[Any]]]:
    """Elements and bytes after which the bit stream is byte-aligned again, and a word that holds them."""
    if not dtype.is_sub_byte:
        raise ValueError(f"{dtype.value} is not a sub-byte type")
    bits = lcm(dtype.bits, 8)
    return bits // dtype.bits, bits // 8, np.uint8 if bits == 8 else np.uint32


def _sub_byte_range(dtype: DType) -> tuple[int, int]:
    return (-8, 7) if dtype is DType.INT4 else (0, (1 << dtype.bits) - 1)


def _packed_bytes(count: int, dtype: DType) -> int:
    return (count * dtype.bits + 7) // 8


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class BlobWriter:
    """Writes a blob file record by record; the file appears when the block ends without an error.

        with BlobWriter(path) as writer:
            ref = writer.add(weights, DType.FP16)

    Args:
        target: Path of the file, or an open, empty, seekable binary file.
    """

    def __init__(self, target: StrPath | BinaryIO) -> None:
        self._target = target
        self._stack = ExitStack()
        self._file: BinaryIO | None = None
        self._end = 0
        self._count = 0
        self._failed = False

    def __enter__(self) -> BlobWriter:
        if isinstance(self._target, (str, os.PathLike)):
            self._file = self._stack.enter_context(atomic_write(self._target))
        else:
            self._file = self._target
        self._stack.push(self._seal)
        self._write(_HEADER.pack(0, VERSION))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _seal(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Runs before the file is renamed; what it raises discards the file."""
        file, self._file = self._file, None
        if kind is not None or file is None:
            return
        if self._failed:
            raise InputError("a record was left incomplete", where=self._where)
        file.seek(0)
        file.write(_HEADER.pack(self._count, VERSION))

    @property
    def _where(self) -> str:
        return str(self._target) if isinstance(self._target, (str, os.PathLike)) else "blob"

    @property
    def nbytes(self) -> int:
        """Size of the file so far, in bytes."""
        return self._end

    def add(self, array: Array, dtype: DType) -> BlobRef:
        """Write one array, row-major.

        Args:
            array: Any shape, of `dtype.numpy`; sub-byte types one element a byte.

        Returns:
            The reference that a literal of the program holds.

        Raises:
            InputError: The type cannot be stored, or the values do not fit it.
            ResourceError: The disk refuses.
        """
        return self.add_chunks(dtype, array.size, (array,))

    def add_chunks(self, dtype: DType, count: int, chunks: Iterable[Array]) -> BlobRef:
        """Write one record from consecutive pieces of it; one piece is held at a time.

        Args:
            count: Number of elements of all chunks together.
            chunks: Arrays of `dtype.numpy`, any shape, row-major.

        Raises:
            InputError: As `add`; or the chunks do not hold `count` elements.
            ResourceError: The disk refuses.
        """
        if dtype not in CODES:
            raise InputError(f"a blob file cannot hold {dtype.value}", where=self._where)
        if self._failed:
            raise InputError("an earlier record was left incomplete", where=self._where)
        nbytes = _packed_bytes(count, dtype)
        start = _aligned(self._end)
        data = start + _RECORD.size
        padding = nbytes * 8 - count * dtype.bits
        self._failed = True
        self._write(bytes(start - self._end))
        self._write(_RECORD.pack(_SENTINEL, CODES[dtype], nbytes, data, padding))
        for piece in _stored(dtype, count, chunks, self._where):
            self._write(piece)
        assert self._end == data + nbytes
        self._failed = False
        self._count += 1
        return BlobRef(BLOB_PATH, start)

    def _write(self, data: bytes | Array) -> None:
        if self._file is None:
            raise ValueError("a BlobWriter writes inside its `with` block only")
        self._file.write(memoryview(data))  # type: ignore[arg-type]  # numpy's stubs hide the buffer
        self._end += len(data)


def _stored(dtype: DType, count: int, chunks: Iterable[Array], where: str) -> Iterator[Array]:
    """The bytes of each chunk; sub-byte elements that do not fill a byte wait for the next chunk."""
    seen = 0
    waiting: Array = np.empty(0, dtype.numpy)
    for chunk in chunks:
        if chunk.dtype != dtype.numpy:
            raise InputError(f"{chunk.dtype} numbers given for a record of {dtype.value}", where=where)
        seen += chunk.size
        if seen > count:
            break
        flat = np.ascontiguousarray(chunk).reshape(-1)
        if dtype.is_sub_byte:
            if waiting.size:
                flat = np.concatenate([waiting, flat])
            whole = flat.size // 8 * 8
            flat, waiting = pack(flat[:whole], dtype), flat[whole:].copy()
        yield flat.view(np.uint8)
    if seen != count:
        more = "more than " if seen > count else ""
        raise InputError(f"a record of {count} elements was given {more}{min(seen, count)}", where=where)
    if waiting.size:
        yield pack(waiting, dtype)


@dataclass(frozen=True, slots=True)
class Record:
    """The description of one record.

    Attributes:
        dtype: Element type.
        nbytes: Size of the stored data.
        data_offset: Where the data starts in the file.
        padding_bits: Unused high bits of the last byte (sub-byte types; else 0).
        offset: Where the record itself starts: what a program refers to.
    """

    dtype: DType
    nbytes: int
    data_offset: int
    padding_bits: int
    offset: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return (self.nbytes * 8 - self.padding_bits) // self.dtype.bits


class BlobFile:
    """A blob file behind a memory map; every offset and size is checked before it is used.

    Arrays stay valid after `close`: the map is given back with the last of them.

    Raises:
        InputError: No such file, or it is not blob storage of version 2.
        ResourceError: The system refuses to open or map it.
    """

    def __init__(self, path: StrPath) -> None:
        self._open(map_file(path), str(path))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, name: str = "blob") -> BlobFile:
        """A blob that lies in memory; `name` stands for the path in messages."""
        self = cls.__new__(cls)
        self._open(memoryview(data).toreadonly(), name)
        return self

    def _open(self, data: memoryview, name: str) -> None:
        self.name = name
        self._data = data
        self.nbytes = len(data)
        if self.nbytes < _HEADER.size:
            raise self._error(f"{self.nbytes} bytes are too few for a blob file")
        self._stated, version = _HEADER.unpack_from(data)
        if version != VERSION:
            raise self._error(f"not a blob file of version {VERSION} (its version field is {version})")

    def __enter__(self) -> BlobFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the map; the file cannot be read through this object any more."""
        self._data = memoryview(b"")
        self.nbytes = 0

    def record(self, offset: int) -> Record:
        """The record at a byte offset.

        Raises:
            InputError: There is none, or it does not describe data inside the file.
        """
        if not 0 <= offset <= self.nbytes - _RECORD.size:
            raise self._error(f"no record at offset {offset}: the file has {self.nbytes} bytes")
        sentinel, code, nbytes, data, padding = _RECORD.unpack_from(self._data, offset)
        if sentinel != _SENTINEL:
            raise self._error(f"no record at offset {offset}: the sentinel is missing")
        dtype = _DTYPES.get(code)
        if dtype is None:
            raise self._error(f"the record at offset {offset} has the unknown dtype number {code}")
        if data > self.nbytes or nbytes > self.nbytes - data:
            raise self._error(
                f"the record at offset {offset} says {nbytes} bytes at {data}, the file has {self.nbytes}"
            )
        limit = 8 if dtype.is_sub_byte else 1
        if padding >= limit or padding > nbytes * 8 or (nbytes * 8 - padding) % dtype.bits:
            raise self._error(
                f"the record at offset {offset} says {nbytes} bytes without {padding} bits, "
                f"which is no whole number of {dtype.value}"
            )
        return Record(dtype, nbytes, data, padding, offset)

    def records(self) -> Iterator[Record]:
        """Every record in the order of the file, as its writer laid them out.

        Raises:
            InputError: The file is malformed, or holds fewer records than its header says.
        """
        position, found = _HEADER.size, 0
        while position <= self.nbytes - _RECORD.size:
            padded_end = found >= self._stated and not any(self._data[position : position + 4])
            if padded_end:
                return
            record = self.record(position)
            yield record
            found += 1
            # Data may lie elsewhere; the next description then follows this one at once.
            attached = record.data_offset == position + _RECORD.size
            end = record.data_offset + record.nbytes if attached else position + _RECORD.size
            position = _aligned(end)
        if found < self._stated:
            raise self._error(f"{found} records, the header says {self._stated}")

    def array(self, source: BlobRef | Literal, type: TensorType | None = None) -> Array:
        """The numbers of a constant.

        Args:
            source: A reference, or a tensor literal (one that holds its
                numbers itself is returned as it is).
            type: Tensor type of the constant; a literal brings its own.

        Returns:
            A read-only view into the map, of `type.shape` and the type's numpy
            dtype; a new array for sub-byte types.

        Raises:
            InputError: The record is malformed or holds another type or size.
        """
        ref: Any = source
        if isinstance(source, Literal):
            ref, declared = source.data, source.type
            if not isinstance(declared, TensorType):
                raise self._error(f"a constant of type {declared} has no record")
            type = type or declared
            if isinstance(ref, np.ndarray):
                return ref
        if type is None:
            raise TypeError("a BlobRef needs its tensor type")
        return self._array(ref, type)

    def _array(self, ref: BlobRef, type: TensorType) -> Array:
        record = self.record(ref.offset)
        if not type.is_static:
            raise self._error(f"a constant of type {type} has no fixed size")
        if record.dtype is not type.dtype or record.count != type.size:
            raise self._error(
                f"the record at offset {ref.offset} holds {record.count} numbers of "
                f"{record.dtype.value}, the constant is {type}"
            )
        data = np.frombuffer(self._data, np.uint8, record.nbytes, record.data_offset)
        flat = unpack(data, type.dtype, type.size) if type.dtype.is_sub_byte else data.view(type.dtype.numpy)
        return flat.reshape(type.dims)

    def _error(self, what: str) -> InputError:
        return InputError(what, where=self.name)


Blobs = BlobFile | Mapping[str, BlobFile] | None
"""The weight files of a program: one stands for `BLOB_PATH`, several go by the paths in the program."""


def blob_files(blob: Blobs) -> Mapping[str, BlobFile]:
    """Weight files by the path under which a program refers to them."""
    if blob is None:
        return {}
    return {BLOB_PATH: blob} if isinstance(blob, BlobFile) else blob
