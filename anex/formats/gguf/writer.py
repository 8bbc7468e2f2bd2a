"""Writes GGUF v3 files in a stream: metadata and descriptions first, then tensor after tensor."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.files import StrPath, atomic_write
from anex.formats.gguf.types import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMENSIONS,
    NUMPY,
    Array,
    GGMLType,
    ValueType,
    quoted,
)

_VERSION = 3
_INTEGERS = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
_BY_NUMPY = {dtype: kind for kind, dtype in NUMPY.items()}
_FLOATS: dict[GGMLType, np.dtype[Any]] = {GGMLType.F32: np.dtype("<f4"), GGMLType.F16: np.dtype("<f2")}
_MAX_NAME = 63  # bytes; ggml keeps names in 64 with a zero at the end


@dataclass(frozen=True, slots=True)
class _Pending:
    name: str
    shape: tuple[int, ...]
    kind: GGMLType
    chunks: Iterable[Array]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) // self.kind.block * self.kind.block_bytes


class GGUFWriter:
    """Collects metadata and tensors; the file appears when the block ends without an error.

        with GGUFWriter(path, "llama") as writer:
            writer.add_metadata("llama.block_count", 2)
            writer.add_tensor("token_embd.weight", table, GGMLType.F16)

    Args:
        path: File to write.
        arch: Value of `general.architecture`, the first key of the file.
    """

    def __init__(self, path: StrPath, arch: str) -> None:
        self._path = Path(path)
        self._pairs: dict[str, bytes] = {}
        self._tensors: dict[str, _Pending] = {}
        self._alignment = DEFAULT_ALIGNMENT
        self.add_metadata("general.architecture", arch)

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.write()

    def add_metadata(self, key: str, value: Any, kind: ValueType | None = None) -> None:
        """Add one key.

        Args:
            value: A bool, int, float, str, numpy scalar, one-dimensional numpy
                array, or a sequence of one of Python's types.
            kind: Stored type, of an array that of its elements.  By default
                the numpy dtype's; for Python's numbers float32, and the first
                of uint32, int32, uint64, int64 that holds them all.

        Raises:
            InputError: The key is there already, or the value does not fit a type.
        """
        where = f"key {quoted(key)}"
        if key in self._pairs:
            raise self._error(f"{where} is there already")
        if not key:
            raise self._error("a metadata key is empty")
        if key == ALIGNMENT_KEY:
            if not isinstance(value, int) or value <= 0 or value & (value - 1):
                raise self._error(f"{where} must be a power of two, not {value!r}")
            kind, self._alignment = ValueType.UINT32, value
        try:
            self._pairs[key] = _string(key) + _encoded(value, kind)
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise self._error(f"{where}: {error}") from error

    def add_tensor(
        self,
        name: str,
        data: Array | Iterable[Array],
        kind: GGMLType = GGMLType.F32,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Add one tensor; its numbers are taken when the file is written.

        Args:
            data: An array, or consecutive pieces of one in row-major order;
                for Q8_0 each piece holds whole blocks of 32.
            kind: F32, F16 or Q8_0.
            shape: Row-major; needed where `data` is not one array.

        Raises:
            InputError: The name is taken, or the shape cannot be stored.
            UnsupportedError: A type that this writer does not make.
        """
        label = f"tensor {quoted(name)}"
        if kind is not GGMLType.Q8_0 and kind not in _FLOATS:
            raise UnsupportedError(f"writing ggml type {kind.name}", where=f"{self._path}: {label}")
        chunks: Iterable[Array] = (data,) if isinstance(data, np.ndarray) else data
        if isinstance(data, np.ndarray):
            shape = data.shape if shape is None else shape
        if shape is None:
            raise TypeError("a tensor given in pieces needs its shape")
        dims = tuple(int(d) for d in shape)
        if name in self._tensors:
            raise self._error(f"{label} is there already")
        if not 0 < len(name.encode()) <= _MAX_NAME:
            raise self._error(f"{label}: a name has 1 to {_MAX_NAME} bytes")
        if len(dims) > MAX_DIMENSIONS or min(dims, default=1) < 1 or (dims or (1,))[-1] % kind.block:
            raise self._error(f"{label} of shape {list(dims)} cannot be stored as {kind.name}")
        self._tensors[name] = _Pending(name, dims, kind, chunks)

    def write(self) -> None:
        """Write the file; the end of a `with` block does that by itself.

        Raises:
            InputError: The pieces of a tensor do not make up its shape, or a
                number does not fit its type.
            ResourceError: The disk refuses.
        """
        with atomic_write(self._path) as file:
            file.write(self._header())
            _pad(file, self._alignment)
            for tensor in self._tensors.values():
                for piece in self._pieces(tensor):
                    file.write(memoryview(piece))  # type: ignore[arg-type]  # numpy's stubs hide the buffer
                _pad(file, self._alignment)

    def _header(self) -> bytes:
        counts = struct.pack("<IQQ", _VERSION, len(self._tensors), len(self._pairs))
        parts = [MAGIC, counts, *self._pairs.values()]
        offset = 0
        for tensor in self._tensors.values():
            dims = tensor.shape[::-1]
            layout = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.kind, offset)
            parts += [_string(tensor.name), layout]
            offset += -(-tensor.nbytes // self._alignment) * self._alignment
        return b"".join(parts)

    def _pieces(self, tensor: _Pending) -> Iterator[Array]:
        label = f"tensor {quoted(tensor.name)}"
        total, seen = prod(tensor.shape), 0
        for chunk in tensor.chunks:
            seen += chunk.size
            if seen > total:
                break
            if chunk.size % tensor.kind.block:
                raise self._error(f"{label}: a piece of {chunk.size} numbers is no whole number of blocks")
            try:
                yield _stored(np.ascontiguousarray(chunk).reshape(-1), tensor.kind)
            except FloatingPointError:
                raise self._error(f"{label}: a number does not fit {tensor.kind.name}") from None
        if seen != total:
            raise self._error(f"{label} has {total} elements, {seen} or more were given")

    def _error(self, what: str) -> InputError:
        return InputError(what, where=str(self._path))


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _stored(flat: Array, kind: GGMLType) -> Array:
    """The bytes of some elements; raises FloatingPointError where a number does not fit."""
    with np.errstate(all="ignore", over="raise"):
        if kind in _FLOATS:
            return flat.astype(_FLOATS[kind], copy=False).view(np.uint8)
        return _q8_0(flat.astype(np.float32, copy=False))


def _q8_0(flat: Array) -> Array:
    """Blocks of 32 as ggml's reference quantiser makes them (quantize_row_q8_0_ref)."""
    blocks = flat.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    if not np.isfinite(scale).all():
        raise FloatingPointError
    with np.errstate(over="ignore"):
        inverse = np.float32(1) / scale
    inverse[~np.isfinite(inverse)] = 0  # blocks of zeros, or of numbers that vanish beside the scale's range
    scaled = blocks * inverse
    # C's roundf: halves go away from zero, which numpy's own rounding does not do.
    magnitude = np.abs(scaled)
    floor = np.floor(magnitude)
    rounded = np.copysign(floor + (magnitude - floor >= 0.5), scaled)
    out = np.empty(len(blocks), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    out["d"] = scale[:, 0]
    out["q"] = rounded
    return out.view(np.uint8)


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _encoded(value: Any, kind: ValueType | None) -> bytes:
    """Type and bytes of a metadata value."""
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        element = _natural(value) if kind is None else kind
        body = b"".join(map(_string, value)) if element is ValueType.STRING else _fixed(value, element)
        return struct.pack("<IIQ", ValueType.ARRAY, element, len(value)) + body
    if kind is None:
        kind = _natural(value if isinstance(value, (np.generic, np.ndarray)) else [value])
    body = _string(value) if kind is ValueType.STRING else _fixed(value, kind)
    return struct.pack("<I", kind) + body


def _natural(values: Any) -> ValueType:
    """The stored type of a numpy array, or of the Python values in a list."""
    if isinstance(values, (np.ndarray, np.generic)) and values.dtype.kind in "biufc":
        if values.dtype not in _BY_NUMPY:
            raise TypeError(f"GGUF has no value type for {values.dtype}")
        return _BY_NUMPY[values.dtype]
    items = list(values)
    if not items:
        raise ValueError("the element type of an empty array must be given")
    if all(isinstance(v, str) for v in items):
        return ValueType.STRING
    if all(isinstance(v, (bool, np.bool_)) for v in items):
        return ValueType.BOOL
    if all(isinstance(v, int) and not isinstance(v, bool) for v in items):
        for kind in _INTEGERS:
            limits = np.iinfo(NUMPY[kind])
            if limits.min <= min(items) and max(items) <= limits.max:
                return kind
        raise ValueError(f"{max(items, key=abs)} does not fit 64 bits")
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in items):
        return ValueType.FLOAT32
    raise TypeError("the values are not of one type that GGUF knows")


def _fixed(value: Any, kind: ValueType) -> bytes:
    if kind not in NUMPY:
        raise ValueError(f"a {kind.name.lower()} is not written from {type(value).__name__}")
    wanted = NUMPY[kind]
    given = np.asarray(value)
    if given.ndim > 1:
        raise ValueError("arrays of metadata have one dimension")
    with np.errstate(all="ignore"):
        array = given.astype(wanted)
    if wanted.kind == "f":
        exact = given.dtype.kind in "iuf" and bool((np.isfinite(array) == np.isfinite(given)).all())
    else:
        exact = given.dtype.kind in "biu" and bool((array == given).all())
    if not exact or (wanted.kind == "b") != (given.dtype.kind == "b"):
        raise ValueError(f"{value!r:.60} does not fit {kind.name.lower()}")
    return array.tobytes()
