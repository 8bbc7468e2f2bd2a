"""Own memory-mapped reader of safetensors files; the methods are those of `anex.formats.gguf.GGUFFile`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from anex.errors import InputError, UnsupportedError
from anex.files import StrPath, map_file
from anex.formats.fingerprint import fingerprint
from anex.formats.gguf import quoted
from anex.formats.safetensors.header import Header, read_header
from anex.formats.safetensors.types import PICKLES, Array, TensorInfo

CHUNK_BYTES = 8 << 20


class MappedTensors:
    """The tensors of some safetensors files behind memory maps.

    Views stay valid after `close`: a map is given back with the last of them.

    Attributes:
        path: What was opened, as it was given.
        tensors: Descriptions by name, in the order of the files.
        files: The file(s), in order.
    """

    def __init__(self, path: Path, files: Iterable[Path]) -> None:
        self.path = path
        self._maps = {file: map_file(file) for file in files}
        self.headers: Mapping[Path, Header] = {
            file: read_header(data, file) for file, data in self._maps.items()
        }
        self.files = tuple(self._maps)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_joined(self.headers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the maps; no tensor can be read through this object any more."""
        self._maps = {}

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        return sum(len(data) for data in self._maps.values())

    def fingerprint(self) -> bytes:
        """A digest of the headers and of samples of the tensor data; see `anex.formats.fingerprint`."""
        return fingerprint((data, self.headers[file].nbytes) for file, data in self._maps.items())

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
        flat = np.frombuffer(self._map(info), np.uint8, info.nbytes, info.offset)
        return flat.reshape(info.rows, info.row_bytes)

    def stored(self, tensor: str | TensorInfo) -> Array:
        """A tensor in its shape and in the type of the file, integers and bools too: a read-only view.

        Raises:
            InputError: No such tensor, or a bool that is neither 0 nor 1.
        """
        info = self._info(tensor)
        if info.type.name == "BOOL" and info.size and self.raw(info).max() > 1:
            raise InputError("a bool is neither 0 nor 1", where=f"{info.file}: tensor {quoted(info.name)}")
        flat = np.frombuffer(self._map(info), info.type.dtype, info.size, info.offset)
        return flat.reshape(info.shape)

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
            very type, else a new array.  float16 is rounded once to nearest
            even; infinities and NaN of the file stay what they are.

        Raises:
            InputError: No such tensor; or a number is beyond the range of `dtype`.
            UnsupportedError: The tensor holds integers, bools or complex numbers.
        """
        info, wanted = self._info(tensor), np.dtype(dtype)
        if wanted not in (np.float32, np.float16):
            raise ValueError(f"tensors are read as float32 or float16, not {wanted}")
        if not 0 <= start <= stop <= info.rows:
            raise IndexError(f"rows {start} to {stop} of {info.name}, which has {info.rows}")
        where = f"{info.file}: tensor {quoted(info.name)}"
        if not info.type.is_float:
            raise UnsupportedError(
                f"reading safetensors type {info.type.name} as floating point", where=where
            )
        count, offset = (stop - start) * info.width, info.offset + start * info.row_bytes
        held = np.frombuffer(self._map(info), info.type.dtype, count, offset)
        try:
            return _numbers(held, wanted).reshape(stop - start, info.width)
        except FloatingPointError:
            hint = "keep this tensor in float32" if wanted == np.float16 else "the file is damaged"
            raise InputError(f"a number is beyond the range of {wanted}", where=where, hint=hint) from None

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
        step = max(1, max_bytes // max(1, info.width * np.dtype(dtype).itemsize))
        for start in range(0, info.rows, step):
            yield self.rows(info, start, min(start + step, info.rows), dtype)

    def _info(self, tensor: str | TensorInfo) -> TensorInfo:
        return self.tensor(tensor) if isinstance(tensor, str) else tensor

    def _map(self, info: TensorInfo) -> memoryview:
        try:
            return self._maps[info.file]
        except KeyError:
            raise ValueError(f"{self.path} is closed, or {info.name} is of another file") from None


class SafetensorsFile(MappedTensors):
    """One safetensors file behind a memory map.

    Args:
        path: The file.

    Attributes:
        metadata: The texts of `__metadata__`.

    Raises:
        InputError: The file is missing, malformed or cut short, or it is something else.
        UnsupportedError: A tensor has a type that anex does not read, or the name is that of a pickle.
        ResourceError: The system refuses to open or map it.
    """

    def __init__(self, path: StrPath) -> None:
        file = Path(path)
        if file.suffix in PICKLES:
            raise pickles_refused(file.name, str(path))
        super().__init__(file, [file])
        self.metadata: Mapping[str, str] = self.headers[file].metadata


def pickles_refused(name: str, where: str) -> UnsupportedError:
    """What to say where a model is only there as Python pickles."""
    return UnsupportedError(
        f"PyTorch pickles ({quoted(name)}), which can run code when opened",
        where=where,
        hint="look for the model as safetensors or GGUF, or convert it",
    )


def _joined(headers: Mapping[Path, Header]) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor.name in found:
                other = found[tensor.name].file.name
                raise InputError(f"tensor {quoted(tensor.name)} is also in {other}", where=str(file))
            found[tensor.name] = tensor
    return found


def _numbers(held: Array, dtype: np.dtype[Any]) -> Array:
    """Elements as `dtype`; raises FloatingPointError where a finite number is beyond its range."""
    with np.errstate(all="ignore", over="raise"):
        if (
            held.dtype.kind != "f"
        ):  # ml_dtypes: exact in float32, and numpy's cast from there reports overflow
            held = held.astype(np.float32)
        # The format does not align data to its type; what takes a pointer wants that.
        return np.require(held.astype(dtype, copy=False), requirements="A")
