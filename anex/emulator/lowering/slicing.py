"""Parts of tensors.  A begin that the caller passes at run time becomes a dynamic slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anex.emulator.lowering.registry import Lowered, lowering
from anex.emulator.lowering.shape import axis_of
from anex.errors import UnsupportedError

if TYPE_CHECKING:
    import jax


def _masks(low: Lowered, rank: int) -> tuple[list[bool], list[bool], list[bool]]:
    names = ("begin_mask", "end_mask", "squeeze_mask")
    begin, end, squeeze = (low.const(name) or [False] * rank for name in names)
    return begin, end, squeeze


def _positions(low: Lowered, dims: Sequence[int]) -> list[range]:
    """The positions that a slice with constant limits takes in each dimension."""
    starts, ends, squeezed = _masks(low, len(dims))
    strides = low.const("stride") or [1] * len(dims)
    taken = []
    for axis, (dim, begin, end, stride) in enumerate(
        zip(dims, low.const("begin"), low.const("end"), strides, strict=True)
    ):
        if squeezed[axis]:
            at = 0 if starts[axis] else begin % dim
            taken.append(range(at, at + 1))
        else:
            limits = slice(None if starts[axis] else begin, None if ends[axis] else end, stride)
            taken.append(range(dim)[limits])
    return taken


def _take(x: jax.Array, taken: Sequence[range]) -> jax.Array:
    """A static slice; a negative step is a slice turned round."""
    import jax

    turned = [axis for axis, r in enumerate(taken) if r.step < 0]
    forward = [r[::-1] if r.step < 0 else r for r in taken]
    starts = [r.start if len(r) else 0 for r in forward]
    limits = [r[-1] + 1 if len(r) else 0 for r in forward]
    part = jax.lax.slice(x, starts, limits, [r.step for r in forward])
    return jax.lax.rev(part, turned) if turned else part


def _starts(low: Lowered, begin: jax.Array, fixed: Sequence[bool]) -> list[Any]:
    if any(stride != 1 for stride in low.const("stride") or []):
        raise UnsupportedError(f"run-time 'begin' of {low.op.kind} with a stride", where=low.op.name)
    return [0 if known else begin[axis] for axis, known in enumerate(fixed)]


def _static(low: Lowered) -> bool:
    return "begin" in low.constants and "end" in low.constants


@lowering("slice_by_index", stored=True)
def slice_by_index(low: Lowered) -> jax.Array:
    import jax

    x, dims = low["x"], low.op.output.tensor.dims
    if _static(low):
        return _take(x, _positions(low, x.shape)).reshape(dims)
    from_start, _, squeezed = _masks(low, x.ndim)
    kept = iter(dims)
    sizes = [1 if squeeze else next(kept) for squeeze in squeezed]
    return jax.lax.dynamic_slice(x, _starts(low, low["begin"], from_start), sizes).reshape(dims)


@lowering("slice_by_size", stored=True)
def slice_by_size(low: Lowered) -> jax.Array:
    import jax

    x, sizes = low["x"], low.op.output.tensor.dims
    if "begin" in low.constants:
        starts = [b % d if d else 0 for b, d in zip(low.const("begin"), x.shape, strict=True)]
        return jax.lax.slice(x, starts, [s + n for s, n in zip(starts, sizes, strict=True)])
    begin = low["begin"]
    return jax.lax.dynamic_slice(x, [begin[axis] for axis in range(x.ndim)], sizes)


@lowering("slice_update", stored=True)
def slice_update(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x, update = low["x"], low["update"].astype(low["x"].dtype)
    from_start, _, squeezed = _masks(low, x.ndim)
    kept = iter(update.shape)
    update = update.reshape([1 if squeeze else next(kept) for squeeze in squeezed])
    if not _static(low):
        return jax.lax.dynamic_update_slice(x, update, _starts(low, low["begin"], from_start))
    taken = _positions(low, x.shape)
    if all(r.step == 1 for r in taken):
        return jax.lax.dynamic_update_slice(x, update, [r.start for r in taken])
    grid = jnp.ix_(*(jnp.asarray(r, jnp.int32) for r in taken))
    return x.at[grid].set(update)


@lowering("crop", stored=True)
def crop(low: Lowered) -> jax.Array:
    x, (top, _), (left, _) = low["x"], low.const("crop_height"), low.const("crop_width")
    height, width = low.op.output.tensor.dims[-2:]
    return x[..., top : top + height, left : left + width]


@lowering("sliding_windows", stored=True)
def sliding_windows(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    axis = axis_of(low, "axis", None, x.ndim)
    count, size = low.op.output.tensor.dims[axis : axis + 2]
    first = jnp.arange(count, dtype=jnp.int32) * low.const("stride", 1)
    return jnp.take(x, first[:, None] + jnp.arange(size, dtype=jnp.int32), axis=axis, mode="clip")
