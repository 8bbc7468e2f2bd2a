"""Compressed constants, expanded when a program is loaded (see anex.mil.constexpr).

Up to iOS17 all parameters are attributes of the op, from iOS18 on they are
inputs; a call sees both as bindings.  A bitmask or index list that lies in the
blob file is not read for a type rule, so counts that depend on its bits are
checked when the constant is expanded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import FLOATS, axis_of, fits, show
from anex.mil.types import DType, TensorType, Type

_LUT_15 = "fp16 fp32 int8 uint8"
_INDICES = "uint1 uint2 uint3 uint4 uint6 uint8"
_SOURCE = "fp16 fp32 int4 int8 uint4 uint8"


def _static(call: Call, name: str) -> tuple[int, ...]:
    shape = call.type(name).shape
    if None in shape:
        raise call.error(f"'{name}' has an unknown dimension")
    if 0 in shape:
        raise call.refusal("constexpr-empty", f"'{name}' is {show(shape)}")
    return tuple(d for d in shape if d is not None)


def _flat(call: Call, name: str) -> int:
    shape = _static(call, name)
    if len(shape) != 1:
        raise call.error(f"'{name}' has rank {len(shape)}, needs 1")
    return shape[0]


def _target(call: Call) -> tuple[int, ...]:
    """The `shape` parameter of the iOS16 forms."""
    shape = call.value("shape")
    if any(size < 1 for size in shape):
        raise call.refusal("constexpr-empty", f"shape {shape}")
    return tuple(shape)


# --- affine -------------------------------------------------------------------


def _affine(call: Call) -> tuple[Type, ...]:
    data = _static(call, "quantized_data")
    axis = axis_of(call, call.value("axis"), len(data))
    for name in ("scale", "zero_point"):
        shape = call.type(name).shape
        if len(shape) > 1 or not (shape == () or fits(shape, (data[axis],))):
            raise call.error(
                f"'{name}' is {show(shape)}, takes a scalar or {data[axis]} values for axis {axis}"
            )
    return (TensorType(call.type("scale").dtype, data),)


declare(
    "constexpr_affine_dequantize", "ios16",
    "quantized_data: const Q, zero_point: const Z, scale: const F, axis: const int32",
    Q="int8 uint8", Z="fp32 int8 uint8", F=FLOATS, rule=_affine, doc="scale * (quantized_data - zero_point).",
)  # fmt: skip

# --- look-up tables -----------------------------------------------------------


def _lut_packed(call: Call) -> tuple[Type, ...]:
    count, entries, shape = _flat(call, "indices"), _flat(call, "lut"), _target(call)
    if entries not in (2, 4, 16, 64, 256):
        raise call.error(f"lut has {entries} entries, takes 2, 4, 16, 64 or 256")
    needed = -(-(entries.bit_length() - 1) * math.prod(shape) // 8)
    if count != needed:
        raise call.error(f"indices hold {count} bytes, {show(shape)} with {entries} entries needs {needed}")
    return (TensorType(call.type("lut").dtype, shape),)


declare(
    "constexpr_lut_to_dense", "ios16", "indices: const uint8, lut: const T, shape: const uint32[]", T=_LUT_15,
    rule=_lut_packed, doc="lut[index] for indices packed from the lowest bit up.",
)  # fmt: skip


def _vector_axis(call: Call, indices: Sequence[int], dtype: DType) -> tuple[int, int]:
    """(vector size, axis it runs along) after the checks of a look-up table of iOS18."""
    lut = _static(call, "lut")
    if not indices:
        raise call.error("indices are a scalar")
    if len(lut) != len(indices) + 2:
        raise call.error(f"lut has rank {len(lut)}, needs two more than the {len(indices)} of the indices")
    if any(n % m for n, m in zip(indices, lut, strict=False)):
        raise call.error(f"lut {show(lut)} does not divide the indices {show(indices)}")
    entries, size = lut[-2:]
    if entries != 1 << dtype.bits:
        raise call.error(f"lut has {entries} entries, {dtype.value} indices need {1 << dtype.bits}")
    if "vector_axis" not in call:
        if size > 1:
            raise call.error(f"a lut of vectors of {size} needs a vector_axis")
        return size, 0
    return size, axis_of(call, call.value("vector_axis"), len(indices), name="vector_axis")


def _grown(shape: Sequence[int], axis: int, by: int) -> tuple[int, ...]:
    return tuple(d * by if i == axis else d for i, d in enumerate(shape))


def _lut(call: Call) -> tuple[Type, ...]:
    indices = _static(call, "indices")
    size, axis = _vector_axis(call, indices, call.type("indices").dtype)
    return (TensorType(call.type("lut").dtype, _grown(indices, axis, size)),)


declare(
    "constexpr_lut_to_dense", "ios18", "indices: const I, lut: const T, vector_axis?: const int32",
    I=_INDICES, T=_LUT_15, rule=_lut,
    doc="A vector of the block's table for each index, laid along vector_axis.",
)  # fmt: skip

# --- sparse -------------------------------------------------------------------


def _bits(values: Any) -> int:
    return int(np.count_nonzero(np.asarray(values)))


def _sparse_packed(call: Call) -> tuple[Type, ...]:
    count, held, shape = _flat(call, "nonzero_data"), _flat(call, "mask"), _target(call)
    needed = -(-math.prod(shape) // 8)
    if held != needed:
        raise call.error(f"mask holds {held} bytes, {show(shape)} needs {needed}")
    if call.const("mask") is not None:
        bits = np.unpackbits(np.asarray(call.value("mask"), np.uint8), bitorder="little")
        if bits[math.prod(shape) :].any():
            raise call.error("mask has bits set behind its last element")
        if _bits(bits) != count:
            raise call.error(f"mask has {_bits(bits)} bits set for {count} values")
    return (TensorType(call.type("nonzero_data").dtype, shape),)


declare(
    "constexpr_sparse_to_dense", "ios16", "nonzero_data: const T, mask: const uint8, shape: const uint32[]",
    T=_LUT_15, rule=_sparse_packed, doc="The values where the packed mask has a 1, zeros elsewhere.",
)  # fmt: skip


def _mask(call: Call, mask: str, data: str) -> tuple[int, ...]:
    """Shape of a bitmask whose ones are counted by the vector `data`."""
    shape, count = _static(call, mask), _flat(call, data)
    values = call.const(mask)
    if values is not None and _bits(values) != count:
        raise call.error(f"'{mask}' has {_bits(values)} ones for {count} values")
    return shape


def _sparse(call: Call) -> tuple[Type, ...]:
    return (TensorType(call.type("nonzero_data").dtype, _mask(call, "mask", "nonzero_data")),)


declare(
    "constexpr_sparse_to_dense", "ios18", "nonzero_data: const T, mask: const uint1", T=_SOURCE, rule=_sparse,
    doc="The values where the mask has a 1, zeros elsewhere.",
)  # fmt: skip


def _lut_sparse(call: Call) -> tuple[Type, ...]:
    shape = _mask(call, "indices_mask", "indices_nonzero_data")
    size, axis = _vector_axis(call, shape, call.type("indices_nonzero_data").dtype)
    values = (_flat(call, "indices_nonzero_data") * size,)
    return (
        TensorType(DType.UINT1, _grown(shape, axis, size)),
        TensorType(call.type("lut").dtype, values),
    )


declare(
    "constexpr_lut_to_sparse", "ios18",
    "indices_mask: const uint1, indices_nonzero_data: const I, lut: const T, vector_axis?: const int32",
    I=_INDICES, T=_LUT_15, rule=_lut_sparse,
    doc="(mask, values): constexpr_lut_to_dense at the ones of a mask.",
)  # fmt: skip

# --- blockwise ----------------------------------------------------------------


def _blocks(call: Call, data: Sequence[int], dtype: DType) -> None:
    """Check scale and offset: one entry for each block of the data."""
    scale = _static(call, "scale")
    if not data or len(data) != len(scale):
        raise call.error(
            f"scale has rank {len(scale)}, the data {len(data)}; they take one rank of at least 1"
        )
    if any(n % m for n, m in zip(data, scale, strict=True)):
        raise call.error(f"scale {show(scale)} does not divide the data {show(data)}")
    if "offset" not in call:
        return
    offset = call.type("offset")
    if offset.shape != scale:
        raise call.error(f"offset is {show(offset.shape)}, scale is {show(scale)}")
    if not offset.dtype.is_float and offset.dtype is not dtype:
        raise call.error(f"offset is {offset.dtype.value}, the data {dtype.value}")


def _blockwise(call: Call) -> tuple[Type, ...]:
    data = _static(call, "data")
    _blocks(call, data, call.type("data").dtype)
    return (TensorType(call.type("scale").dtype, data),)


declare(
    "constexpr_blockwise_shift_scale", "ios18", "data: const S, scale: const F, offset?: const O",
    S=_SOURCE, F=FLOATS, O=_SOURCE, rule=_blockwise,
    doc="scale * (data - offset) with one scale for each block.",
)  # fmt: skip


def _sparse_blockwise(call: Call) -> tuple[Type, ...]:
    shape, count = _mask(call, "data_mask", "nonzero_data"), _flat(call, "nonzero_data")
    _blocks(call, shape, call.type("nonzero_data").dtype)
    return (TensorType(DType.UINT1, shape), TensorType(call.type("scale").dtype, (count,)))


declare(
    "constexpr_sparse_blockwise_shift_scale", "ios18",
    "data_mask: const uint1, nonzero_data: const S, scale: const F, offset?: const O",
    S=_SOURCE, F=FLOATS, O=_SOURCE, rule=_sparse_blockwise,
    doc="(mask, values): constexpr_blockwise_shift_scale at the ones of a mask.",
)  # fmt: skip

# --- cast ---------------------------------------------------------------------


def _cast(call: Call) -> tuple[Type, ...]:
    name = call.value("output_dtype")
    if name != "fp32":
        raise call.error(f"output_dtype '{name}' is not fp32")
    return (TensorType(DType.FP32, _static(call, "source_val") if call.type("source_val").rank else ()),)


# The same twice: in iOS18 the parameters move from attributes to inputs.
for _opset in ("ios16", "ios18"):
    declare(
        "constexpr_cast", _opset, "source_val: const fp16, output_dtype: const string", rule=_cast,
        doc="fp16 constants as fp32.",
    )  # fmt: skip
