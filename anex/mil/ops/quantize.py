"""Conversions between element types: cast, quantize, dequantize."""

from __future__ import annotations

import numpy as np

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import ALL_15, ALL_17, FLOATS, axis_of, show
from anex.mil.types import DType, TensorType, Type

# --- cast ---------------------------------------------------------------------


def _cast(call: Call) -> tuple[Type, ...]:
    allowed = (ALL_15 if call.decl.opset < "ios17" else ALL_17).split()
    name = call.value("dtype")
    if name not in allowed:
        raise call.error(f"dtype '{name}' is none of {', '.join(allowed)}")
    return (TensorType(DType(name), call.type("x").shape),)


_CAST = "x in another element type: floats to nearest even, floats to integers towards zero."
declare("cast", "ios15", "x: T, dtype: const string", T=ALL_15, rule=_cast, doc=_CAST)
declare("cast", "ios17", "x: T, dtype: const string", T=ALL_17, rule=_cast, doc=_CAST)

# --- quantize, dequantize -----------------------------------------------------


def _check_scale(call: Call) -> None:
    """scale and zero_point: scalars without axis, or vectors as long as that axis."""
    x, scale = call.type("input"), call.type("scale")
    point = call.type("zero_point") if "zero_point" in call else None
    if scale.rank > 1 or (point is not None and point.rank != scale.rank):
        raise call.error("scale and zero_point take two scalars or two vectors")
    if scale.rank == 0:
        if "axis" in call:
            raise call.error("axis is given, but scale is a scalar")
        return
    if "axis" not in call:
        raise call.error("a scale vector needs an axis")
    axis = axis_of(call, call.value("axis"), x.rank)
    for name, given in (("scale", scale), ("zero_point", point)):
        if given is not None and x.shape[axis] is not None and given.shape[0] != x.shape[axis]:
            raise call.error(f"{name} has shape {show(given.shape)}, dimension {axis} is {x.shape[axis]}")


def _quantize(call: Call) -> tuple[Type, ...]:
    name = call.value("output_dtype")
    if name not in ("int8", "uint8"):
        raise call.error(f"output_dtype '{name}' is neither int8 nor uint8")
    if "zero_point" in call and call.type("zero_point").dtype.value != name:
        raise call.error(f"zero_point is {call.type('zero_point').dtype.value}, output_dtype is {name}")
    scale = call.const("scale")
    if scale is not None and not np.all(scale):
        raise call.refusal("scale-zero", "scale has a zero")
    _check_scale(call)
    return (TensorType(DType(name), call.type("input").shape),)


declare(
    "quantize", "ios17",
    "input: F, zero_point?: const Q, scale: const F, axis?: const int32, output_dtype: const string",
    F=FLOATS, Q="int8 uint8", rule=_quantize,
    doc="clip(round(input / scale) + zero_point), rounding halves to even.",
)  # fmt: skip


def _dequantize(call: Call) -> tuple[Type, ...]:
    _check_scale(call)
    return (TensorType(call.type("scale").dtype, call.type("input").shape),)


declare(
    "dequantize", "ios17", "input: Q, zero_point?: const Q, scale: const F, axis?: const int32",
    F=FLOATS, Q="int8 uint8", rule=_dequantize, doc="scale * (input - zero_point).",
)  # fmt: skip
