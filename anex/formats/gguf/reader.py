"""Own memory-mapped reader of GGUF v2 and v3, of one file or of a split model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from anex.errors import InputError, UnsupportedError
from anex.files import StrPath, map_file
from anex.formats.gguf.dequant import dequantise
from anex.formats.gguf.header import Header, Metadata, read_header
from anex.formats.gguf.types import SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS, Array, TensorInfo, quoted

CHUNK_BYTES = 8 << 20
SAMPLES, SAMPLE_BYTES = 512, 4096
"""How many pieces of a file's data, and how large, its fingerprint looks at."""

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    data: memoryview
    header: Header


class GGUFFile:
    """A model file behind a memory map; opening any part of a split model opens all.

    Views and metadata stay valid after `close`: the map is given back with the
    last of them.

    Args:
        path: The file, or any part `…-0000n-of-0000m.gguf`.

    Attributes:
        metadata: Values by key.  Numbers, bools and strings are Python's;
            arrays are read-only numpy views, tuples of strings (decoded when
            asked for), or tuples of arrays.  `metadata.types[key]` is the
            stored type.  Of a split model, the metadata of its first part.
        tensors: Descriptions by name, in the order of the file.
        files: The file(s), in order.
        version: GGUF version.

    Raises:
        InputError: The file is missing, malformed or cut short, or a part is missing.
        UnsupportedError: A version, byte order or tensor type that anex does not read.
        ResourceError: The system refuses to open or map it.
    """

    def __init__(self, path: StrPath) -> None:
        self._parts = {part.path: part for part in _open_parts(Path(path))}
        first = next(iter(self._parts.values()))
        self.path = Path(path)
        self.files = tuple(self._parts)
        self.version = first.header.version
        self.metadata: Metadata = first.header.metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_tensors(self._parts.values()))

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the map; no tensor can be read through this object any more."""
        self._parts = {}

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        return sum(len(part.data) for part in self._parts.values())

    def fingerprint(self) -> bytes:
        """A digest of the headers and of samples of the tensor data, spread over the files.

        Tells models apart at the cost of reading about 2 MB; two files that
        differ in a few numbers only may have the same one.
        """
        digest = hashlib.sha256()
        for part in self._parts.values():
            size, header = len(part.data), min(part.header.nbytes, len(part.data))
            digest.update(part.data[:header])
            step = max(SAMPLE_BYTES, (size - header) // SAMPLES)
            for start in range(header, size, step):
                digest.update(part.data[start : start + SAMPLE_BYTES])
            digest.update(part.data[max(header, size - SAMPLE_BYTES) :])
        return digest.digest()

    def tensor(self, name: str) -> TensorInfo:
        """A tensor by name.

        Raises:
            InputError: There is none of that name.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise InputError(f"no tensor {quoted(name)}", where=str(self.path)) from None

    def raw(self, tensor: str | TensorInfo) -> Array:
        """The stored bytes of a tensor: a read-only view, uint8 [rows, bytes of a row]."""
        info = self._info(tensor)
        try:
            part = self._parts[info.file]
        except KeyError:
            raise ValueError(f"{self.path} is closed, or {info.name} is of another file") from None
        flat = np.frombuffer(part.data, np.uint8, info.nbytes, info.offset)
        return flat.reshape(info.rows, info.row_bytes)

    def rows(
        self, tensor: str | TensorInfo, start: int, stop: int, dtype: npt.DTypeLike = np.float32
    ) -> Array:
        """Some rows of a tensor as numbers.

        Args:
            tensor: Name or description; its axes but the last are taken together as rows.
            start: First row.
            stop: One past the last row.
            dtype: float32 or float16.

        Returns:
            [stop - start, width]: a read-only view where the file holds that
            very type, else a new array.  float16 is rounded to nearest even;
            infinities and NaN of the file stay what they are.

        Raises:
            InputError: No such tensor; or a number is beyond the range of float16.
            UnsupportedError: The storage type has no float form here.
        """
        info, wanted = self._info(tensor), np.dtype(dtype)
        if wanted not in (np.float32, np.float16):
            raise ValueError(f"tensors are read as float32 or float16, not {wanted}")
        if not 0 <= start <= stop <= info.rows:
            raise IndexError(f"rows {start} to {stop} of {info.name}, which has {info.rows}")
        return self._numbers(info, self.raw(info)[start:stop], wanted)

    def array(self, tensor: str | TensorInfo, dtype: npt.DTypeLike = np.float32) -> Array:
        """A whole tensor as numbers, in its shape; raises as `rows`."""
        info = self._info(tensor)
        return self.rows(info, 0, info.rows, dtype).reshape(info.shape)

    def chunks(
        self, tensor: str | TensorInfo, dtype: npt.DTypeLike = np.float32, max_bytes: int = CHUNK_BYTES
    ) -> Iterator[Array]:
        """A whole tensor as consecutive row chunks; raises as `rows`.

        Args:
            max_bytes: Size of a chunk at most; one row where a row is larger.
        """
        info = self._info(tensor)
        step = max(1, max_bytes // (info.width * np.dtype(dtype).itemsize))
        for start in range(0, info.rows, step):
            yield self.rows(info, start, min(start + step, info.rows), dtype)

    def _info(self, tensor: str | TensorInfo) -> TensorInfo:
        return self.tensor(tensor) if isinstance(tensor, str) else tensor

    def _numbers(self, info: TensorInfo, raw: Array, dtype: np.dtype[Any]) -> Array:
        where = f"{info.file}: tensor {quoted(info.name)}"
        try:
            return dequantise(raw, info.type, dtype)
        except FloatingPointError:
            hint = "keep this tensor in float32" if dtype == np.float16 else "the file is damaged"
            raise InputError(f"a number is beyond the range of {dtype}", where=where, hint=hint) from None
        except UnsupportedError as error:
            raise UnsupportedError(error.feature, where=where) from error


def _tensors(parts: Any) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for part in parts:
        for tensor in part.header.tensors:
            if tensor.name in found:
                other = found[tensor.name].file.name
                raise InputError(f"tensor {quoted(tensor.name)} is also in {other}", where=str(part.path))
            found[tensor.name] = tensor
    return found


def _open_part(path: Path) -> _Part:
    data = map_file(path)
    return _Part(path, data, read_header(data, path))


def _open_parts(path: Path) -> list[_Part]:
    opened = _open_part(path)
    count = _stated(opened, SPLIT_COUNT, 1)
    if count <= 1:
        return [opened]
    paths = _part_paths(opened, count)
    for number, expected_path in enumerate(paths, 1):
        if not expected_path.is_file():
            raise InputError(
                f"part {number} of {count} is missing: {expected_path.name}",
                where=str(path),
                hint="put all parts into one folder",
            )
    parts = [opened if other == path else _open_part(other) for other in paths]
    for number, part in enumerate(parts):
        for key, expected in ((SPLIT_NUMBER, number), (SPLIT_COUNT, count)):
            found = _stated(part, key, -1)
            if found != expected:
                raise InputError(f"key '{key}' is {found}, its name says {expected}", where=str(part.path))
    total = sum(len(part.header.tensors) for part in parts)
    stated = _stated(parts[0], SPLIT_TENSORS, total)
    if total != stated:
        raise InputError(f"all parts hold {total} tensors, '{SPLIT_TENSORS}' says {stated}", where=str(path))
    return parts


def _stated(part: _Part, key: str, default: int) -> int:
    value = part.header.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"key '{key}' is no integer", where=str(part.path))
    return value


def _part_paths(opened: _Part, count: int) -> list[Path]:
    path = opened.path
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise InputError(
            f"this is one of {count} parts, but its name does not end in -0000n-of-{count:05}.gguf",
            where=str(path),
            hint="give the parts their original names",
        )
    return [
        path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)
    ]
