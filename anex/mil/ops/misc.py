"""Constants, names, generated tensors and masks of matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import ALL_15, NUMBERS_15
from anex.mil.types import DType, TensorType, Type

# --- const, identity ----------------------------------------------------------


def _const(call: Call) -> tuple[Type, ...]:
    return (call.operand("val").type,)


declare("const", "ios15", "val: const any", rule=_const, doc="A constant; `val` is an attribute of the op.")


def _identity(call: Call) -> tuple[Type, ...]:
    return (call.operand("x").type,)


declare("identity", "ios15", "x: any", rule=_identity, doc="x under another name.")

# --- fill, fill_like ----------------------------------------------------------


def _value_dtype(call: Call) -> DType:
    if "value" not in call:
        return DType.FP32
    call.value("value")
    return call.type("value").dtype


def _fill(call: Call) -> tuple[Type, ...]:
    shape = call.type("shape")
    if shape.shape[0] is None:
        raise call.error("a shape of unknown length gives an unknown rank")
    if call.const("shape") is None:
        return (TensorType(_value_dtype(call), (None,) * shape.shape[0]),)
    sizes = call.value("shape")
    if any(size < 1 for size in sizes):
        raise call.refusal("size-positive", f"shape {sizes}")
    return (TensorType(_value_dtype(call), tuple(sizes)),)


declare(
    "fill", "ios15", "shape: int32[], value?: const scalar T", T=ALL_15, rule=_fill,
    doc="A tensor of this shape with one value everywhere, by default fp32 zeros.",
)  # fmt: skip


def _fill_like(call: Call) -> tuple[Type, ...]:
    return (TensorType(_value_dtype(call), call.type("ref_tensor").shape),)


declare(
    "fill_like", "ios16", "ref_tensor: T, value?: const scalar U", T=ALL_15, U=ALL_15, rule=_fill_like,
    doc="As fill, with the shape of another tensor.",
)  # fmt: skip

# --- range_1d -----------------------------------------------------------------


def _range_1d(call: Call) -> tuple[Type, ...]:
    dtype = call.type("start").dtype
    start, end, step = limits = [call.const(name) for name in ("start", "end", "step")]
    if not all(limit is None or math.isfinite(limit) for limit in limits):
        raise call.error(f"start, end and step are {start}, {end} and {step}, take finite numbers")
    if step == 0:
        raise call.refusal("step", "step is 0")
    if start is None or end is None or step is None:
        return (TensorType(dtype, (None,)),)
    # In the dtype of the operands, as coremltools does it: in fp16 the length can differ.
    scalar: Any = dtype.numpy.type if dtype.is_float else int
    with np.errstate(over="ignore"):
        steps = (scalar(end) - scalar(start)) / scalar(step)
    count = math.ceil(steps) if math.isfinite(steps) else -1
    if count < 0:
        raise call.refusal("step", f"no way from {start} to {end} in steps of {step}")
    return (TensorType(dtype, (count,)),)


declare(
    "range_1d", "ios15", "end: scalar T, start: scalar T, step: scalar T", T=NUMBERS_15, rule=_range_1d,
    doc="start, start + step, ... as long as it is before end.",
)  # fmt: skip

# --- band_part ----------------------------------------------------------------


def _band_part(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if x.rank < 2:
        raise call.refusal("rank", f"x has rank {x.rank}, needs at least 2")
    call.value("lower", -1)
    call.value("upper", -1)
    return (x,)


declare(
    "band_part", "ios15", "x: T, lower?: const int32, upper?: const int32", T=ALL_15, rule=_band_part,
    doc="The innermost matrices with zeros outside `lower` sub- and `upper` super-diagonals.",
)  # fmt: skip
