"""Ops that take or replace a part of a tensor given by positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import (
    ALL_15,
    ALL_17,
    FLOATS,
    NUMBERS_15,
    OFFSETS_17,
    Shape,
    axis_of,
    fits,
    show,
)
from anex.mil.types import TensorType, Type

# --- slice_by_index, slice_update ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """One dimension of a slice as the program writes it; None is only known at run time."""

    begin: int | None
    end: int | None
    stride: int
    from_start: bool
    to_end: bool
    squeeze: bool


def _bounds(call: Call, name: str, rank: int) -> Sequence[int | None]:
    bounds = call.type(name)
    if not fits(bounds.shape, (rank,)):
        raise call.error(
            f"{name} has shape {show(bounds.shape)}, needs one entry for each of {rank} dimensions"
        )
    values: Sequence[int] | None = call.const(name)
    return [None] * rank if values is None else values


def _option(call: Call, name: str, rank: int, default: Any) -> list[Any]:
    if name not in call:
        return [default] * rank
    values: list[Any] = call.value(name)
    if len(values) != rank:
        raise call.refusal("vector-length", f"{name} has {len(values)} entries for {rank} dimensions")
    return values


def _cuts(call: Call, rank: int) -> list[Cut]:
    masks = [_option(call, name, rank, False) for name in ("begin_mask", "end_mask", "squeeze_mask")]
    columns = (
        _bounds(call, "begin", rank),
        _bounds(call, "end", rank),
        _option(call, "stride", rank, 1),
        *masks,
    )
    return [Cut(*row) for row in zip(*columns, strict=True)]


def _inside(call: Call, axis: int, dim: int, limit: int, name: str) -> int:
    """A limit of a slice counted from the front; `dim` itself is one past the end."""
    if not -dim <= limit <= dim:
        raise call.refusal("slice-past-end", f"{name} {limit} is past dimension {axis} of {dim}")
    return limit + dim if limit < 0 else limit


def _without_size(call: Call, axis: int, cut: Cut) -> int | None:
    """Length of a cut from a dimension of unknown size; None where it depends on the size."""
    if cut.from_start or cut.begin is None:
        return None
    if cut.to_end:
        return 1 if cut.begin == (0 if cut.stride < 0 else -1) else None
    if cut.end is None or (cut.begin < 0) != (cut.end < 0):
        return None
    span = cut.end - cut.begin if cut.stride > 0 else cut.begin - cut.end
    if span < 0:
        raise call.refusal("slice-empty", f"end {cut.end} lies before begin {cut.begin} in dimension {axis}")
    length = -(-span // abs(cut.stride))
    # The size may still cut a longer one short, so only these are certain.
    return length if length < 2 else None


def _length(call: Call, axis: int, dim: int | None, cut: Cut) -> int | None:
    """Length of the result in one dimension; None where it is not known."""
    if cut.stride == 0:
        raise call.refusal("slice-stride", f"stride of dimension {axis} is 0")
    if dim is None:
        return _without_size(call, axis, cut)
    forward = cut.stride > 0
    begin = (0 if forward else dim - 1) if cut.from_start else cut.begin
    end = (dim if forward else -1) if cut.to_end else cut.end
    if begin is not None and not cut.from_start:
        begin = _inside(call, axis, dim, begin, "begin")
        if not forward and begin == dim:
            raise call.refusal("slice-past-end", f"begin {begin} is past dimension {axis} of {dim}")
    if end is not None and not cut.to_end:
        end = _inside(call, axis, dim, end, "end")
    if begin is None or end is None:
        return None
    span = end - begin if forward else begin - end
    if span < 0:
        raise call.refusal("slice-empty", f"end {cut.end} lies before begin {cut.begin} in dimension {axis}")
    if span == 0 and dim == 1:
        raise call.refusal("slice-of-one", f"nothing is left of dimension {axis}")
    return -(-span // abs(cut.stride))


def _index(call: Call, axis: int, dim: int | None, cut: Cut) -> None:
    """Check the one index of a squeezed dimension."""
    at = 0 if cut.from_start else cut.begin
    if at is not None and dim is not None and not -dim <= at < dim:
        raise call.refusal("slice-past-end", f"begin {at} is past dimension {axis} of {dim}")


def _sliced(call: Call, x: Shape) -> Shape:
    """Shape of the part of x that begin, end, stride and masks choose."""
    result: list[int | None] = []
    for axis, (dim, cut) in enumerate(zip(x, _cuts(call, len(x)), strict=True)):
        if cut.squeeze:
            _index(call, axis, dim, cut)
        else:
            result.append(_length(call, axis, dim, cut))
    return tuple(result)


def _slice_by_index(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    return (TensorType(x.dtype, _sliced(call, x.shape)),)


_MASKS = "begin_mask?: const bool[], end_mask?: const bool[], squeeze_mask?: const bool[]"
_SLICE = "x[begin:end:stride] in each dimension; masks drop a limit, squeeze_mask takes one index."
declare(
    "slice_by_index", "ios15", f"x: T, begin: int32[], end: int32[], stride?: const int32[], {_MASKS}",
    T=ALL_15, rule=_slice_by_index, doc=_SLICE,
)  # fmt: skip
declare(
    "slice_by_index", "ios17", f"x: T, begin: U[], end: U[], stride?: const U[], {_MASKS}",
    T=ALL_17, U=OFFSETS_17, rule=_slice_by_index, doc=_SLICE,
)  # fmt: skip


def _slice_update(call: Call) -> tuple[Type, ...]:
    x, update = call.type("x"), call.type("update")
    part = _sliced(call, x.shape)
    if update.rank == 0:
        raise call.error("update of rank 0 is not supported")
    if not fits(part, update.shape):
        raise call.error(f"update has shape {show(update.shape)}, the slice is {show(part)}")
    return (x,)


declare(
    "slice_update", "ios18", f"x: T, update: T, begin: U[], end: U[], stride?: const U[], {_MASKS}",
    T=ALL_17, U=OFFSETS_17, rule=_slice_update,
    doc="x with the part that slice_by_index would take replaced by update.",
)  # fmt: skip

# --- slice_by_size ------------------------------------------------------------


def _sized(call: Call, axis: int, dim: int | None, begin: int | None, size: int) -> int | None:
    if size < 1 and size != -1:
        raise call.refusal("slice-size", f"size {size} of dimension {axis}")
    if begin is None:
        if dim is not None and size > dim:
            raise call.refusal("slice-past-end", f"size {size} is past dimension {axis} of {dim}")
        return None if size == -1 else size
    if size == -1 and begin < 0:
        raise call.refusal("slice-rest", f"begin {begin} with size -1 in dimension {axis}")
    if dim is None:
        return None if size == -1 else size
    start = begin + dim if begin < 0 else begin
    length = dim - start if size == -1 else size
    if start < 0 or length < 1 or start + length > dim:
        raise call.refusal(
            "slice-past-end", f"begin {begin} with size {size} is past dimension {axis} of {dim}"
        )
    return length


def _slice_by_size(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    begins, sizes = _bounds(call, "begin", x.rank), _bounds(call, "size", x.rank)
    shape = tuple(
        None if size is None else _sized(call, axis, dim, begin, size)
        for axis, (dim, begin, size) in enumerate(zip(x.shape, begins, sizes, strict=True))
    )
    return (TensorType(x.dtype, shape),)


_SIZE = "size[i] elements of dimension i from begin[i] on; -1 is all that follow."
declare(
    "slice_by_size", "ios15", "x: T, begin: int32[], size: int32[]", T=ALL_15, rule=_slice_by_size, doc=_SIZE
)
declare(
    "slice_by_size", "ios17", "x: T, begin: U[], size: U[]", T=ALL_17, U=OFFSETS_17,
    rule=_slice_by_size, doc=_SIZE,
)  # fmt: skip

# --- crop, sliding_windows ----------------------------------------------------


def _crop(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if x.rank < 3:
        raise call.error(f"x has rank {x.rank}, needs at least 3")
    shape = list(x.shape)
    for axis, name in ((-2, "crop_height"), (-1, "crop_width")):
        amounts = call.value(name, length=2)
        dim = shape[axis]
        if min(amounts) < 0 or (dim is not None and sum(amounts) >= dim):
            raise call.refusal("size-positive", f"{name} {amounts} of a dimension of {dim}")
        shape[axis] = None if dim is None else dim - sum(amounts)
    return (TensorType(x.dtype, tuple(shape)),)


declare(
    "crop", "ios15", "x: T, crop_height: const int32[], crop_width: const int32[]", T=FLOATS, rule=_crop,
    doc="The last two dimensions made shorter at both ends.",
)  # fmt: skip


def _sliding_windows(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axis = axis_of(call, call.value("axis"), x.rank)
    size, stride, dim = call.value("size"), call.value("stride", 1), x.shape[axis]
    if size < 1 or stride < 1 or (dim is not None and size > dim):
        raise call.refusal("window-size", f"size {size} with stride {stride} on a dimension of {dim}")
    count = None if dim is None else (dim - size) // stride + 1
    return (TensorType(x.dtype, (*x.shape[:axis], count, size, *x.shape[axis + 1 :])),)


_WINDOWS = "Every window of `size` elements along axis, as a new dimension behind it."
_WINDOWS_SIGNATURE = "x: T, axis: const int32, size: const int32, stride?: const int32"
declare("sliding_windows", "ios15", _WINDOWS_SIGNATURE, T=NUMBERS_15, rule=_sliding_windows, doc=_WINDOWS)
declare("sliding_windows", "ios17", _WINDOWS_SIGNATURE, T=ALL_17, rule=_sliding_windows, doc=_WINDOWS)
