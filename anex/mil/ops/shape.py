"""Ops that give the same elements another shape or order, join them or cut them apart."""

from __future__ import annotations

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import (
    ALL_15,
    ALL_17,
    FLOATS,
    OFFSETS_17,
    Shape,
    axes_of,
    axis_of,
    data_types,
    fits,
    merged,
    product,
    show,
)
from anex.mil.types import DType, TensorType, Type

# --- reshape ------------------------------------------------------------------


def _zeros_filled(call: Call, x: Shape, shape: list[int | None]) -> list[int | None]:
    """Sizes of 0 replaced by those of x: same place (iOS15), counted from the right (iOS17)."""
    if 0 not in shape:
        return shape
    if call.decl.opset == "ios15" and len(x) != len(shape):
        raise call.error(f"shape {show(shape)} has a 0, so it needs the rank of x, which is {len(x)}")
    shift = len(x) - len(shape)
    filled = list(shape)
    for i, size in enumerate(shape):
        if size == 0:
            filled[i] = x[i + shift] if i + shift >= 0 else 1
    return filled


def _reshape(call: Call) -> tuple[Type, ...]:
    x, target = call.type("x"), call.type("shape")
    if call.const("shape") is None:
        if target.shape[0] is None:
            raise call.error("a shape of unknown length gives an unknown rank")
        return (TensorType(x.dtype, (None,) * target.shape[0]),)
    wanted = call.value("shape")
    if wanted.count(-1) > 1:
        raise call.error(f"shape {wanted} has more than one -1")
    if any(size < -1 for size in wanted):
        raise call.refusal("reshape-negative", f"shape {wanted} has a negative size")
    shape = _zeros_filled(call, x.shape, list(wanted))
    count = product(x.shape)
    if -1 in shape:
        rest = product([d for d in shape if d != -1])
        if rest == 0:
            raise call.refusal("reshape-undetermined", f"shape {wanted} leaves -1 undetermined")
        shape[shape.index(-1)] = None if count is None or rest is None else count // rest
    made = product(shape)
    if count is not None and made is not None and count != made:
        raise call.error(f"{show(x.shape)} cannot become {wanted}: {count} elements against {made}")
    return (TensorType(x.dtype, tuple(shape)),)


_RESHAPE = "The same elements in row-major order under another shape; 0 copies a size, -1 is the rest."
declare("reshape", "ios15", "x: T, shape: int32[]", T=ALL_15, rule=_reshape, doc=_RESHAPE)
declare("reshape", "ios17", "x: T, shape: U[]", T=ALL_17, U=OFFSETS_17, rule=_reshape, doc=_RESHAPE)

# --- reshape_like -------------------------------------------------------------


def _reshape_like(call: Call) -> tuple[Type, ...]:
    x, refs = call.type("x"), call.types("ref_tensors")
    parts = [call.value(name) for name in ("begins", "ends", "end_masks")]
    if any(len(part) != len(refs) for part in parts):
        raise call.refusal("vector-length", "ref_tensors, begins, ends and end_masks differ in length")
    shape: list[int | None] = []
    for ref, begin, end, masked in zip(refs, *parts, strict=True):
        shape += ref.shape[begin:] if masked else ref.shape[begin:end]
    if None in shape:
        raise call.error(f"the shape {show(shape)} has an unknown dimension")
    if product(x.shape) not in (None, product(shape)):
        raise call.error(f"{show(x.shape)} cannot become {show(shape)}: the numbers of elements differ")
    return (TensorType(x.dtype, tuple(shape)),)


_LIKE = (
    "x: T, ref_tensors: many any, "
    "begins: const many int32, ends: const many int32, end_masks: const many bool"
)
_LIKE_DOC = "x under the shape made of pieces of the shapes of other tensors."
declare("reshape_like", "ios16", _LIKE, T=ALL_15, rule=_reshape_like, doc=_LIKE_DOC)
declare("reshape_like", "ios17", _LIKE, T=ALL_17, rule=_reshape_like, doc=_LIKE_DOC)

# --- transpose ----------------------------------------------------------------


def _transpose(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    perm = call.value("perm", length=x.rank)
    order = [axis_of(call, p, x.rank, name="perm entry") for p in perm]
    if len(set(order)) < len(order):
        raise call.refusal("perm-twice", f"perm {perm} is no permutation")
    return (TensorType(x.dtype, tuple(x.shape[p] for p in order)),)


_TRANSPOSE = "Dimension i of the result is dimension perm[i] of x."
declare("transpose", "ios15", "x: T, perm: const int32[]", T=ALL_15, rule=_transpose, doc=_TRANSPOSE)
declare("transpose", "ios17", "x: T, perm: const int32[]", T=ALL_17, rule=_transpose, doc=_TRANSPOSE)

# --- expand_dims, squeeze, flatten2d ------------------------------------------


def _expand_dims(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axes = call.value("axes")
    shape: list[int | None] = list(x.shape)
    for axis in sorted(axes_of(call, axes, x.rank + len(axes))):
        shape.insert(axis, 1)
    return (TensorType(x.dtype, tuple(shape)),)


_EXPAND = "Dimensions of size 1 inserted at these places of the result."
declare("expand_dims", "ios15", "x: T, axes: const int32[]", T=ALL_15, rule=_expand_dims, doc=_EXPAND)
declare("expand_dims", "ios17", "x: T, axes: const int32[]", T=ALL_17, rule=_expand_dims, doc=_EXPAND)


def _squeeze(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axes = range(x.rank) if "axes" not in call else axes_of(call, call.value("axes"), x.rank)
    kept = tuple(d for i, d in enumerate(x.shape) if i not in axes or d != 1)
    return (TensorType(x.dtype, kept),)


_SQUEEZE = "Dimensions of size 1 removed: all, or those of axes; other sizes stay, as in PyTorch."
declare("squeeze", "ios15", "x: T, axes?: const int32[]", T=ALL_15, rule=_squeeze, doc=_SQUEEZE)
declare("squeeze", "ios17", "x: T, axes?: const int32[]", T=ALL_17, rule=_squeeze, doc=_SQUEEZE)


def _flatten2d(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axis = call.value("axis", 1)
    if axis != x.rank:
        axis = axis_of(call, axis, x.rank)
    return (TensorType(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:]))),)


declare(
    "flatten2d", "ios15", "x: T, axis?: const int32", T=ALL_15, rule=_flatten2d,
    doc="A matrix: the dimensions before axis times those from axis on.",
)  # fmt: skip

# --- concat, stack, split -----------------------------------------------------


def _concat(call: Call) -> tuple[Type, ...]:
    dtype, shapes = data_types(call, "values")
    axis = call.value("axis")
    if not shapes[0]:
        axis_of(call, axis, 1)
        return (TensorType(dtype, (len(shapes),)),)
    axis = axis_of(call, axis, len(shapes[0]))
    interleave = bool(call.value("interleave", False))
    shape = merged(call, shapes, but=None if interleave else axis)
    sizes = [shape[axis] if interleave else s[axis] for s in shapes]
    shape[axis] = None if None in sizes else sum(d for d in sizes if d is not None)
    return (TensorType(dtype, tuple(shape)),)


declare(
    "concat", "ios15", "values: many any, axis: const int32, interleave?: const bool", rule=_concat,
    doc="Tensors joined along axis, one after the other or element by element in turn.",
)  # fmt: skip


def _stack(call: Call) -> tuple[Type, ...]:
    dtype, shapes = data_types(call, "values")
    shape = merged(call, shapes)
    shape.insert(axis_of(call, call.value("axis"), len(shape) + 1), len(shapes))
    return (TensorType(dtype, tuple(shape)),)


declare(
    "stack", "ios15", "values: many any, axis: const int32", rule=_stack,
    doc="Tensors of one shape joined along a new axis.",
)  # fmt: skip


def _split_sizes(call: Call, dim: int | None) -> list[int | None]:
    if "split_sizes" not in call and "num_splits" not in call:
        raise call.error("one of num_splits and split_sizes is needed")
    if "split_sizes" not in call:
        count = call.value("num_splits")
        if count < 1:
            raise call.refusal("size-positive", f"num_splits is {count}")
        if dim is not None and dim % count:
            raise call.error(f"num_splits {count} does not divide the dimension of {dim}")
        return [None if dim is None else dim // count] * int(count)
    count = call.type("split_sizes").shape
    if count[0] is None:
        raise call.error("the number of split_sizes is unknown")
    if "num_splits" in call and call.value("num_splits") != count[0]:
        raise call.refusal("split-count", f"num_splits does not match the {count[0]} split_sizes")
    if call.const("split_sizes") is None:
        return [None] * count[0]  # ten or more sizes lie in the blob file (facts: coreml.md §2.1)
    sizes = call.value("split_sizes")
    if any(size < 0 for size in sizes):
        raise call.refusal("size-positive", f"split_sizes {sizes} has a negative size")
    if dim is not None and sum(sizes) != dim:
        raise call.refusal("split-sum", f"split_sizes {sizes} add up to {sum(sizes)}, the dimension is {dim}")
    return list(sizes)


def _split(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axis = axis_of(call, call.value("axis"), x.rank)
    sizes = _split_sizes(call, x.shape[axis])
    return tuple(TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes)


declare(
    "split", "ios15", "x: T, num_splits?: const int32, split_sizes?: const int32[], axis: const int32",
    T=ALL_15, rule=_split,
    doc="x cut along axis into pieces of one size, or of these sizes; one output each.",
)  # fmt: skip

# --- tile, pad ----------------------------------------------------------------


def _tile(call: Call) -> tuple[Type, ...]:
    x, reps = call.type("x"), call.type("reps")
    if x.rank == 0 or not fits(reps.shape, (x.rank,)):
        raise call.error(
            f"reps has shape {show(reps.shape)}, needs one entry for each of {x.rank} dimensions"
        )
    if call.const("reps") is None:
        return (TensorType(x.dtype, (None,) * x.rank),)
    counts = call.value("reps")
    if any(count < 1 for count in counts):
        raise call.error(f"reps {counts} has an entry below 1")
    shape = tuple(None if d is None else d * n for d, n in zip(x.shape, counts, strict=True))
    return (TensorType(x.dtype, shape),)


declare(
    "tile", "ios15", "x: T, reps: int32[]", T=ALL_15, rule=_tile,
    doc="x repeated reps[i] times along dimension i.",
)  # fmt: skip

_PAD_LIMITS = {"constant": (None, ""), "reflect": (-1, "pad-reflect"), "replicate": (0, "pad-replicate")}


def _pad(call: Call) -> tuple[Type, ...]:
    x, pad = call.type("x"), call.type("pad")
    mode = call.value("mode", "constant")
    if mode not in _PAD_LIMITS:
        raise call.error(f"mode '{mode}' is none of {', '.join(_PAD_LIMITS)}")
    if call.const("pad") is None:
        if not fits(pad.shape, (2 * x.rank,)):
            raise call.error(f"a run-time pad needs {2 * x.rank} entries, this has {show(pad.shape)}")
        return (TensorType(x.dtype, (None,) * x.rank),)
    amounts = call.value("pad")
    if len(amounts) % 2 or len(amounts) > 2 * x.rank:
        raise call.error(f"pad has {len(amounts)} entries, takes two for each of up to {x.rank} dimensions")
    if any(amount < 0 for amount in amounts):
        raise call.error(f"pad {amounts} has a negative entry")
    shape = list(x.shape)
    first = x.rank - len(amounts) // 2
    slack, row = _PAD_LIMITS[mode]
    for axis, before, after in zip(range(first, x.rank), amounts[::2], amounts[1::2], strict=True):
        dim = shape[axis]
        if dim is None:
            continue
        if slack is not None and max(before, after) > max(dim + slack, 0):
            raise call.refusal(row, f"pad ({before}, {after}) on dimension {axis} of {dim} in mode {mode}")
        shape[axis] = dim + before + after
    return (TensorType(x.dtype, tuple(shape)),)


declare(
    "pad", "ios15", "x: T, pad: int32[], mode?: const string, constant_val?: const scalar T",
    T=FLOATS, rule=_pad,
    doc="The last dimensions of x made longer before and after: constant, reflect or replicate.",
)  # fmt: skip

# --- reverse, reverse_sequence ------------------------------------------------


def _reverse(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if "axes" in call:
        axes_of(call, call.value("axes"), x.rank)
    return (x,)


_REVERSE = "The order of the elements turned round along axes, by default all."
declare("reverse", "ios15", "x: T, axes?: const int32[]", T=ALL_15, rule=_reverse, doc=_REVERSE)
declare("reverse", "ios17", "x: T, axes?: const int32[]", T=ALL_17, rule=_reverse, doc=_REVERSE)


def _reverse_sequence(call: Call) -> tuple[Type, ...]:
    x, lengths = call.type("x"), call.type("lengths")
    seq = axis_of(call, call.value("seq_axis", 0), x.rank, name="seq_axis")
    batch = axis_of(call, call.value("batch_axis", 0), x.rank, name="batch_axis")
    if seq == batch:
        raise call.refusal("lengths", f"seq_axis and batch_axis are both {seq}")
    if not fits(lengths.shape, (x.shape[batch],)):
        raise call.refusal("lengths", f"lengths {show(lengths.shape)} for a batch of {x.shape[batch]}")
    longest, known = x.shape[seq], call.const("lengths")
    if known is not None and not all(0 <= n <= (n if longest is None else longest) for n in known):
        raise call.refusal("index-range", f"lengths {known} for a sequence of {longest}")
    return (x,)


_SEQUENCE = "The first lengths[b] elements along seq_axis turned round, for each b of batch_axis."
_SEQUENCE_AXES = "seq_axis?: const int32, batch_axis?: const int32"
declare(
    "reverse_sequence", "ios15", f"x: T, lengths: int32[], {_SEQUENCE_AXES}", T=ALL_15,
    rule=_reverse_sequence, doc=_SEQUENCE,
)  # fmt: skip
declare(
    "reverse_sequence", "ios17", f"x: T, lengths: U[], {_SEQUENCE_AXES}", T=ALL_17, U=OFFSETS_17,
    rule=_reverse_sequence, doc=_SEQUENCE,
)  # fmt: skip

# --- shape --------------------------------------------------------------------


def _shape(call: Call) -> tuple[Type, ...]:
    return (TensorType(DType.INT32, (call.type("x").rank,)),)


declare("shape", "ios15", "x: T", T=ALL_15, rule=_shape, doc="The sizes of x as a vector.")
