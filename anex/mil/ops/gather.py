"""Ops that read, write, sort or find elements by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import (
    ALL_15,
    INDICES_16,
    INDICES_17,
    NUMBERS_15,
    NUMBERS_17,
    OFFSETS_17,
    axis_of,
    fits,
    show,
)
from anex.mil.types import DType, TensorType, Type


def _indices_fit(call: Call, dims: Sequence[int | None]) -> None:
    """Check constant indices against one dimension, or one dimension per last-axis entry.

    Up to iOS16 an index may count from the end; from iOS17 on it may not.
    """
    values = call.const("indices")
    if values is None or any(d is None for d in dims):
        return
    indices, sizes = np.asarray(values, dtype=np.int64), np.asarray(dims)
    low = -sizes if call.decl.opset < "ios17" else np.zeros_like(sizes)
    if indices.size and not bool(np.all((indices >= low) & (indices < sizes))):
        raise call.refusal("index-range", f"indices reach outside {show(dims)} ({call.decl.opset} rules)")


def _batch_dims(call: Call, x: TensorType, indices: TensorType) -> int:
    count: int = call.value("batch_dims", 0)
    if count >= max(x.rank, 1) or count > indices.rank:
        raise call.error(f"batch_dims {count} with x of rank {x.rank} and indices of rank {indices.rank}")
    if count < 0 or not fits(x.shape[:count], indices.shape[:count]):
        shapes = f"x {show(x.shape)} and indices {show(indices.shape)}"
        raise call.refusal("batch-dims", f"batch_dims {count} with {shapes}")
    return count


# --- gather -------------------------------------------------------------------


def _gather(call: Call) -> tuple[Type, ...]:
    x, indices = call.type("x"), call.type("indices")
    axis = axis_of(call, call.value("axis", 0), x.rank)
    batch = _batch_dims(call, x, indices)
    if axis < batch:
        raise call.refusal("batch-dims", f"axis {axis} is one of the {batch} batch dimensions")
    _indices_fit(call, x.shape[axis : axis + 1])
    return (TensorType(x.dtype, x.shape[:axis] + indices.shape[batch:] + x.shape[axis + 1 :]),)


_GATHER = "The slices of x at these indices of axis."
declare(
    "gather", "ios15", "x: T, indices: int32, axis?: const int32", T=NUMBERS_15, rule=_gather, doc=_GATHER
)
declare(
    "gather", "ios16", "x: T, indices: I, axis?: const int32, batch_dims?: const int32",
    T=NUMBERS_15, I=INDICES_16, rule=_gather, doc=_GATHER,
)  # fmt: skip
declare(
    "gather", "ios17",
    "x: T, indices: I, axis?: const int32, batch_dims?: const int32, validate_indices?: const bool",
    T=NUMBERS_17, I=INDICES_17, rule=_gather, doc=_GATHER,
)  # fmt: skip

# --- gather_along_axis --------------------------------------------------------


def _same_but_axis(call: Call, data: TensorType, indices: TensorType, axis: int) -> None:
    if data.rank != indices.rank:
        raise call.error(f"indices have rank {indices.rank}, the data has {data.rank}")
    for i, (d, n) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if i != axis and d is not None and n is not None and d != n:
            raise call.error(f"indices {show(indices.shape)} and data {show(data.shape)} differ beside axis")


def _gather_along_axis(call: Call) -> tuple[Type, ...]:
    x, indices = call.type("x"), call.type("indices")
    axis = axis_of(call, call.value("axis", 0), x.rank)
    _same_but_axis(call, x, indices, axis)
    _indices_fit(call, x.shape[axis : axis + 1])
    return (TensorType(x.dtype, indices.shape),)


_ALONG = "The element of x at each index of axis, all other positions being those of the index."
declare(
    "gather_along_axis", "ios15", "x: T, indices: int32, axis?: const int32", T=NUMBERS_15,
    rule=_gather_along_axis, doc=_ALONG,
)  # fmt: skip
declare(
    "gather_along_axis", "ios16", "x: T, indices: I, axis?: const int32", T=NUMBERS_15, I=INDICES_16,
    rule=_gather_along_axis, doc=_ALONG,
)  # fmt: skip
declare(
    "gather_along_axis", "ios17", "x: T, indices: I, axis?: const int32, validate_indices?: const bool",
    T=NUMBERS_17, I=INDICES_17, rule=_gather_along_axis, doc=_ALONG,
)  # fmt: skip

# --- gather_nd ----------------------------------------------------------------


def _depth(call: Call, indices: TensorType, rank: int) -> int:
    """How many dimensions one index names: the last dimension of `indices`."""
    if indices.rank == 0:
        raise call.error("indices need a last dimension that holds the index")
    depth = indices.shape[-1]
    if depth is None:
        raise call.error("the last dimension of indices is unknown, and with it the rank of the result")
    if depth > rank:
        raise call.error(f"indices name {depth} dimensions of {rank}")
    return depth


def _gather_nd(call: Call) -> tuple[Type, ...]:
    x, indices = call.type("x"), call.type("indices")
    batch: int = call.value("batch_dims", 0)
    if not 0 <= batch < max(indices.rank, 1) or not fits(x.shape[:batch], indices.shape[:batch]):
        shapes = f"x {show(x.shape)} and indices {show(indices.shape)}"
        raise call.refusal("batch-dims", f"batch_dims {batch} with {shapes}")
    depth = _depth(call, indices, x.rank - batch)
    _indices_fit(call, x.shape[batch : batch + depth])
    return (TensorType(x.dtype, indices.shape[:-1] + x.shape[batch + depth :]),)


_ND = "The slice of x at each index, an index being a row of the last dimension of indices."
declare("gather_nd", "ios15", "x: T, indices: int32", T=NUMBERS_15, rule=_gather_nd, doc=_ND)
declare(
    "gather_nd", "ios16", "x: T, indices: I, batch_dims?: const int32", T=NUMBERS_15, I=INDICES_16,
    rule=_gather_nd, doc=_ND,
)  # fmt: skip
declare(
    "gather_nd", "ios17", "x: T, indices: I, batch_dims?: const int32, validate_indices?: const bool",
    T=NUMBERS_17, I=INDICES_17, rule=_gather_nd, doc=_ND,
)  # fmt: skip

# --- scatter, scatter_along_axis, scatter_nd ----------------------------------

SCATTER_MODES = ("add", "div", "max", "min", "mul", "sub", "update")


def _scattered(call: Call, expected: Sequence[int | None]) -> tuple[Type, ...]:
    """The result of a scatter after the checks that all three share."""
    updates, mode = call.type("updates"), call.value("mode", "add")
    if mode not in SCATTER_MODES:
        raise call.refusal("scatter-mode", f"mode '{mode}' is none of {', '.join(SCATTER_MODES)}")
    if not fits(updates.shape, expected):
        raise call.error(f"updates have shape {show(updates.shape)}, need {show(expected)}")
    return (call.type("data"),)


def _scatter(call: Call) -> tuple[Type, ...]:
    data, indices = call.type("data"), call.type("indices")
    axis = axis_of(call, call.value("axis", 0), data.rank)
    if indices.rank != 1:
        raise call.refusal("rank", f"indices have rank {indices.rank}, need 1")
    _indices_fit(call, data.shape[axis : axis + 1])
    return _scattered(call, data.shape[:axis] + indices.shape + data.shape[axis + 1 :])


def _scatter_along_axis(call: Call) -> tuple[Type, ...]:
    data, indices = call.type("data"), call.type("indices")
    axis = axis_of(call, call.value("axis", 0), data.rank)
    _same_but_axis(call, data, indices, axis)
    _indices_fit(call, data.shape[axis : axis + 1])
    return _scattered(call, indices.shape)


def _scatter_nd(call: Call) -> tuple[Type, ...]:
    data, indices = call.type("data"), call.type("indices")
    depth = _depth(call, indices, data.rank)
    _indices_fit(call, data.shape[:depth])
    return _scattered(call, indices.shape[:-1] + data.shape[depth:])


_SCATTERS = (
    ("scatter", "axis?: const int32, ", _scatter, "Slices of data at indices of axis combined with updates."),
    (
        "scatter_along_axis", "axis?: const int32, ", _scatter_along_axis,
        "The element of data at each index of axis combined with the update at that place.",
    ),
    ("scatter_nd", "", _scatter_nd, "Slices of data at rows of indices combined with updates."),
)  # fmt: skip
for _kind, _axis, _rule, _doc in _SCATTERS:
    _form = f"data: T, indices: int32, updates: T, {_axis}mode?: const string"
    declare(_kind, "ios15", _form, T=NUMBERS_15, rule=_rule, doc=_doc)
    declare(_kind, "ios17", f"{_form}, validate_indices?: const bool", T=NUMBERS_15, rule=_rule, doc=_doc)

# --- topk, argsort ------------------------------------------------------------


def _topk(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axis = axis_of(call, call.value("axis", -1), x.rank)
    k, dim = call.value("k", 1), x.shape[axis]
    if dim is not None and k > dim:
        raise call.error(f"k {k} is greater than the dimension of {dim}")
    everything = k == -1 and call.decl.opset >= "ios17"
    if k < 1 and not everything:
        raise call.refusal("k-range", f"k is {k}")
    shape = (*x.shape[:axis], dim if everything else k, *x.shape[axis + 1 :])
    name = call.value("output_indices_dtype", "int32")
    if not call.value("return_indices", True):
        if "output_indices_dtype" in call:
            raise call.error("output_indices_dtype without return_indices")
        return (TensorType(x.dtype, shape),)
    if name not in ("int32", "uint16"):
        raise call.error(f"output_indices_dtype '{name}' is neither int32 nor uint16")
    return (TensorType(x.dtype, shape), TensorType(DType(name), shape))


_TOPK = "The k greatest (ascending: smallest) elements along axis in order, and their indices."
_TOPK_FLAGS = "axis?: const int32, ascending?: const bool"
declare("topk", "ios15", f"x: T, k?: const int32, {_TOPK_FLAGS}", T=NUMBERS_15, rule=_topk, doc=_TOPK)
declare(
    "topk", "ios16", f"x: T, k?: const int32, {_TOPK_FLAGS}, sort?: const bool, return_indices?: const bool",
    T=NUMBERS_15, rule=_topk, doc=_TOPK,
)  # fmt: skip
declare(
    "topk", "ios17",
    f"x: T, k?: const scalar K, {_TOPK_FLAGS}, sort?: const bool, return_indices?: const bool, "
    "output_indices_dtype?: const string",
    T=NUMBERS_17, K=OFFSETS_17, rule=_topk, doc=_TOPK,
)  # fmt: skip


def _argsort(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axis_of(call, call.value("axis", -1), x.rank)
    return (TensorType(DType.INT32, x.shape),)


declare(
    "argsort", "ios15", "x: T, axis?: const int32, ascending?: const bool", T=NUMBERS_15, rule=_argsort,
    doc="The indices that sort x along axis, from the greatest down unless ascending.",
)  # fmt: skip

# --- one_hot, non_zero --------------------------------------------------------


def _one_hot(call: Call) -> tuple[Type, ...]:
    indices = call.type("indices")
    values = [call.type(n).dtype if n in call else DType.INT32 for n in ("on_value", "off_value")]
    if values[0] is not values[1]:
        raise call.error(f"on_value is {values[0].value} and off_value {values[1].value}")
    axis = axis_of(call, call.value("axis", -1), indices.rank + 1)
    size: Any = call.const("one_hot_vector_size")
    if size is not None and size < 0:
        raise call.error(f"one_hot_vector_size is {size}")
    shape = (*indices.shape[:axis], size, *indices.shape[axis:])
    return (TensorType(values[0], shape),)


declare(
    "one_hot", "ios15",
    "indices: int32, one_hot_vector_size: scalar int32, axis?: const int32, "
    "on_value?: const scalar T, off_value?: const scalar T",
    T=ALL_15, rule=_one_hot,
    doc="on_value where the position along the new axis equals the index, off_value elsewhere.",
)  # fmt: skip


def _non_zero(call: Call) -> tuple[Type, ...]:
    x, values = call.type("x"), call.const("x")
    count = None if values is None else int(np.count_nonzero(np.asarray(values)))
    return (TensorType(DType.INT32, (count, x.rank)),)


declare(
    "non_zero",
    "ios15",
    "x: T",
    T=ALL_15,
    rule=_non_zero,
    doc="The indices of all elements that are not 0, a row each.",
)
