"""Reductions along axes, and the running sum."""

from __future__ import annotations

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import Dim, axis_of, reduced_axes
from anex.mil.types import DType, TensorType, Type

INDEX_DTYPES = ("int32", "uint16")

_OVER_AXES = {
    "reduce_l1_norm": "The sum of magnitudes.",
    "reduce_l2_norm": "The square root of the sum of squares.",
    "reduce_log_sum": "The logarithm of the sum.",
    "reduce_log_sum_exp": "The logarithm of the sum of exp(x).",
    "reduce_max": "The largest value.",
    "reduce_mean": "The mean.",
    "reduce_min": "The smallest value.",
    "reduce_prod": "The product.",
    "reduce_sum": "The sum.",
    "reduce_sum_square": "The sum of squares.",
}

_INDICES = {
    "reduce_argmax": "The index of the largest value, the first of several.",
    "reduce_argmin": "The index of the smallest value, the first of several.",
}


def _reduced(call: Call, axes: set[int]) -> tuple[Dim, ...]:
    shape = call.type("x").shape
    if call.value("keep_dims", False):
        return tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    return tuple(dim for i, dim in enumerate(shape) if i not in axes)


def _over_axes(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    return (TensorType(x.dtype, _reduced(call, set(reduced_axes(call)))),)


def _index(call: Call) -> tuple[Type, ...]:
    axis = axis_of(call, call.value("axis", -1), call.type("x").rank)
    dtype = call.value("output_dtype", "int32").lower()
    if dtype not in INDEX_DTYPES:
        raise call.error(f"unknown output_dtype '{dtype}' (known: {', '.join(INDEX_DTYPES)})")
    return (TensorType(DType(dtype), _reduced(call, {axis})),)


def _cumsum(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axis = call.value("axis", 0)
    if not -1 <= axis < x.rank:
        raise call.error(f"axis {axis} is outside [-1, {x.rank - 1}]")
    return (x,)


for _kind, _doc in _OVER_AXES.items():
    declare(
        _kind, "ios15", "x: T, axes?: const int32[], keep_dims?: const bool", T="fp16 fp32 int32",
        rule=_over_axes, doc=_doc,
    )  # fmt: skip

for _kind, _doc in _INDICES.items():
    _signature = "x: T, axis?: const int32, keep_dims?: const bool"
    declare(_kind, "ios15", _signature, T="fp16 fp32 int32", rule=_index, doc=_doc)
    declare(
        _kind, "ios17", _signature + ", output_dtype?: const string", T="fp16 fp32 int32",
        rule=_index, doc=_doc,
    )  # fmt: skip

declare(
    "cumsum", "ios15", "x: T, axis?: const int32, exclusive?: const bool, reverse?: const bool",
    T="fp16 fp32 int32", rule=_cumsum,
    doc="The running sum along an axis, 0 unless given; exclusive leaves out the value itself.",
)  # fmt: skip
