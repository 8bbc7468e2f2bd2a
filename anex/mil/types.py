"""Types of the MIL language: dtypes, tensors, containers, state and buffers.

The names are those of Apple's text form (facts: MIL DataType and blob dtype
numbers of coremltools 9.0).  The two text dialects write a scalar differently
(`int32` and `tensor<int32, []>`); here both are a `TensorType` of rank 0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from anex.errors import InputError


class DType(enum.Enum):
    """An element type; the value is its name in MIL text."""

    BOOL = "bool"
    STRING = "string"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"
    BF16 = "bf16"
    FP8_E4M3FN = "fp8e4m3fn"
    FP8_E5M2 = "fp8e5m2"
    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT1 = "uint1"
    UINT2 = "uint2"
    UINT3 = "uint3"
    UINT4 = "uint4"
    UINT6 = "uint6"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"

    # Enum members hash by name through Python code; identity is as unique and
    # makes every type comparison in the parser and the verifier cheaper.
    __hash__ = object.__hash__

    @cached_property
    def bits(self) -> int:
        """Size of one stored element in bits (0 for strings)."""
        return _FACTS[self][0]

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype that holds the values; sub-byte types are unpacked to bytes."""
        dtype: np.dtype[np.generic] = np.dtype(_FACTS[self][1])
        return dtype

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_int(self) -> bool:
        return self in INTS

    @property
    def is_sub_byte(self) -> bool:
        return 0 < self.bits < 8 and self is not DType.BOOL

    @classmethod
    def of(cls, dtype: np.dtype[np.generic] | type[np.generic]) -> DType:
        """The MIL dtype of a numpy dtype.

        Raises:
            KeyError: MIL has no such element type.
        """
        return _BY_NUMPY[np.dtype(dtype)]


_FACTS: dict[DType, tuple[int, Any]] = {
    DType.BOOL: (8, np.bool_),
    DType.STRING: (0, np.object_),
    DType.FP16: (16, np.float16),
    DType.FP32: (32, np.float32),
    DType.FP64: (64, np.float64),
    DType.BF16: (16, ml_dtypes.bfloat16),
    DType.FP8_E4M3FN: (8, ml_dtypes.float8_e4m3fn),
    DType.FP8_E5M2: (8, ml_dtypes.float8_e5m2),
    DType.INT4: (4, np.int8),
    DType.INT8: (8, np.int8),
    DType.INT16: (16, np.int16),
    DType.INT32: (32, np.int32),
    DType.INT64: (64, np.int64),
    DType.UINT1: (1, np.uint8),
    DType.UINT2: (2, np.uint8),
    DType.UINT3: (3, np.uint8),
    DType.UINT4: (4, np.uint8),
    DType.UINT6: (6, np.uint8),
    DType.UINT8: (8, np.uint8),
    DType.UINT16: (16, np.uint16),
    DType.UINT32: (32, np.uint32),
    DType.UINT64: (64, np.uint64),
}

FLOATS = frozenset({DType.FP16, DType.FP32, DType.FP64, DType.BF16, DType.FP8_E4M3FN, DType.FP8_E5M2})
INTS = frozenset(d for d in DType if d.value.startswith(("int", "uint")))

_BY_NUMPY = {np.dtype(numpy): dtype for dtype, (bits, numpy) in _FACTS.items() if bits >= 8}


def _check_dims(*dims: object) -> None:
    """Refuse what is no dimension; one check for every way to make a type."""
    for d in dims:
        # The exact comparison first, since parsers make many types; numpy's integers pass the second.
        whole = type(d) is int or (isinstance(d, (int, np.integer)) and not isinstance(d, bool))
        if d is not None and not (whole and d >= 0):  # type: ignore[operator]
            raise InputError(
                f"{repr(d)[:40]} is no dimension",
                hint="a whole number from 0 on, or None where it is unknown",
            )


class Type:
    """Base class of every MIL type; types are immutable and compare by structure."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TensorType(Type):
    """`tensor<dtype, [d0, d1, …]>`; a dimension of `None` is unknown (`?`).

    Raises:
        InputError: What stands for a dimension is none.
    """

    dtype: DType
    shape: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        _check_dims(*self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return None not in self.shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape where every dimension is known.

        Raises:
            ValueError: A dimension is unknown.
        """
        if None in self.shape:
            raise ValueError(f"{self} has an unknown dimension")
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """Number of elements of a static tensor."""
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed data as stored in a blob file, sub-byte types included."""
        return (self.size * self.dtype.bits + 7) // 8

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"tensor<{self.dtype.value}, [{dims}]>"


@dataclass(frozen=True, slots=True)
class ListType(Type):
    """`list<element, length>`; a length of `None` is unknown."""

    element: Type
    length: int | None

    def __post_init__(self) -> None:
        _check_dims(self.length)

    def __str__(self) -> str:
        return f"list<{self.element}, {'?' if self.length is None else self.length}>"


@dataclass(frozen=True, slots=True)
class TupleType(Type):
    """`tuple<…>`."""

    elements: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True, slots=True)
class DictType(Type):
    """`dict<key, value>`."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"dict<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class StateType(Type):
    """`state<tensor<…>>`: memory that lives between calls."""

    wrapped: TensorType

    def __str__(self) -> str:
        return f"state<{self.wrapped}>"


@dataclass(frozen=True, slots=True)
class BufferType(Type):
    """`tensor_buffer<dtype, shape=…, strides=…, interleave_factors=…>` (E5 dumps)."""

    dtype: DType
    shape: tuple[int | None, ...]
    strides: tuple[int, ...] | None = None
    interleave_factors: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_dims(*self.shape)

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        text = f"tensor_buffer<{self.dtype.value}, shape=[{dims}]"
        for name in ("strides", "interleave_factors"):
            values = getattr(self, name)
            if values is not None:
                text += f", {name}=[{', '.join(map(str, values))}]"
        return text + ">"
