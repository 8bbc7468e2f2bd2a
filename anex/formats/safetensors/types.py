"""How safetensors stores numbers: the type codes of the format and where a tensor lies.

Source: the format's README and the `Dtype` of its reference implementation
(safetensors 0.8).  The types with less than a byte (F4, F6_E2M3, F6_E3M2)
only mean something beside a table of scales, and are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Endings of Python pickles; opening one can run code, so nothing here ever does."""


@dataclass(frozen=True, slots=True)
class StoredType:
    """A type code.

    Attributes:
        name: As the file spells it.
        dtype: How an element lies in the file.
        is_float: Whether its numbers can be read as floating point.
    """

    name: str
    dtype: np.dtype[Any]
    is_float: bool


_FLOATS: dict[str, Any] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
_OTHERS: dict[str, Any] = {
    "BOOL": "?",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "C64": "<c8",
}

STORED: dict[str, StoredType] = {
    name: StoredType(name, np.dtype(code), table is _FLOATS)
    for table in (_FLOATS, _OTHERS)
    for name, code in table.items()
}
"""The types that are read, by their code."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        shape: Row-major; the last axis is one row.
        type: How the numbers are stored.
        offset: First byte of the data in `file`.
        nbytes: Size of the stored data.
        file: The file; one of several where the model is sharded.
    """

    name: str
    shape: tuple[int, ...]
    type: StoredType
    offset: int
    nbytes: int
    file: Path

    @property
    def storage(self) -> str:
        """Name of the storage type."""
        return self.type.name

    @property
    def width(self) -> int:
        """Elements of one row."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """Number of rows: all axes but the last, taken together."""
        return prod(self.shape[:-1])

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one row."""
        return self.width * self.type.dtype.itemsize
