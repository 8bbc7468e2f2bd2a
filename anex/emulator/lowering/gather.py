"""Reading, writing and sorting by index.

An index outside its dimension has no defined result; here it is clamped, which
is memory safe and cheap.  Negative indices count from the end: iOS15 and iOS16
define that, and from iOS17 on they are outside anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from anex.emulator.lowering.registry import Lowered, lowering
from anex.emulator.lowering.shape import axis_of
from anex.errors import UnsupportedError

if TYPE_CHECKING:
    import jax


Take = Callable[["jax.Array", "jax.Array"], "jax.Array"]


def _from_front(indices: jax.Array, sizes: jax.Array | int) -> jax.Array:
    import jax.numpy as jnp

    wide = indices.astype(jnp.int32)
    if jnp.issubdtype(indices.dtype, jnp.unsignedinteger):
        return wide
    return jnp.where(wide < 0, wide + sizes, wide)


@lowering("gather", stored=True)
def gather(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x = low["x"]
    axis, batch = axis_of(low, "axis", 0, x.ndim), low.const("batch_dims", 0)
    take: Take = partial(jnp.take, axis=axis - batch, mode="clip")
    for _ in range(batch):
        take = jax.vmap(take)
    return take(x, _from_front(low["indices"], x.shape[axis]))


@lowering("gather_along_axis", stored=True)
def gather_along_axis(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    axis = axis_of(low, "axis", 0, x.ndim)
    return jnp.take_along_axis(x, _from_front(low["indices"], x.shape[axis]), axis=axis, mode="clip")


def _rows(indices: jax.Array, sizes: tuple[int, ...]) -> tuple[jax.Array, ...]:
    """The last dimension of `indices` as one index array per dimension that it names."""
    import jax.numpy as jnp

    columns = jnp.moveaxis(indices, -1, 0)
    return tuple(_from_front(column, size) for column, size in zip(columns, sizes, strict=False))


@lowering("gather_nd", stored=True)
def gather_nd(low: Lowered) -> jax.Array:
    import jax

    def one(x: jax.Array, indices: jax.Array) -> jax.Array:
        return x.at[_rows(indices, x.shape)].get(mode="clip")

    batch = low.const("batch_dims", 0)
    take: Take = one
    for _ in range(batch):
        take = jax.vmap(take)
    return take(low["x"], low["indices"])


def _combine(low: Lowered, where: tuple[jax.Array | slice, ...]) -> jax.Array:
    """`data` with `updates` combined into the places `where`."""
    import jax.numpy as jnp

    place, updates, mode = low["data"].at[where], low["updates"], low.const("mode", "add")
    if mode == "div":
        if not jnp.issubdtype(updates.dtype, jnp.floating):
            raise UnsupportedError(f"mode 'div' of {low.op.kind} with integers", where=low.op.name)
        return place.divide(updates)
    if mode == "sub":
        return place.add(-updates)
    if mode == "update":
        return place.set(updates)
    methods: dict[str, Callable[[jax.Array], jax.Array]] = {
        "add": place.add, "mul": place.multiply, "max": place.max, "min": place.min,
    }  # fmt: skip
    return methods[mode](updates)


@lowering("scatter")
def scatter(low: Lowered) -> jax.Array:
    data = low["data"]
    axis = axis_of(low, "axis", 0, data.ndim)
    return _combine(low, (slice(None),) * axis + (_from_front(low["indices"], data.shape[axis]),))


@lowering("scatter_along_axis")
def scatter_along_axis(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    data, indices = low["data"], low["indices"]
    axis = axis_of(low, "axis", 0, data.ndim)
    where = [jax.lax.broadcasted_iota(jnp.int32, indices.shape, i) for i in range(data.ndim)]
    where[axis] = _from_front(indices, data.shape[axis])
    return _combine(low, tuple(where))


@lowering("scatter_nd")
def scatter_nd(low: Lowered) -> jax.Array:
    return _combine(low, _rows(low["indices"], low["data"].shape))


def _order(x: jax.Array, axis: int, ascending: bool) -> jax.Array:
    import jax.numpy as jnp

    return jnp.argsort(x, axis=axis, stable=True, descending=not ascending).astype(jnp.int32)


@lowering("argsort", stored=True)
def argsort(low: Lowered) -> jax.Array:
    return _order(low["x"], low.const("axis", -1), low.const("ascending", False))


@lowering("topk", stored=True)
def topk(low: Lowered) -> tuple[jax.Array, ...]:
    import jax
    import jax.numpy as jnp

    x, outputs = low["x"], low.op.outputs
    axis = axis_of(low, "axis", -1, x.ndim)
    count = outputs[0].tensor.dims[axis]
    if low.const("ascending", False) or axis != x.ndim - 1:
        order = jax.lax.slice_in_dim(_order(x, axis, low.const("ascending", False)), 0, count, axis=axis)
        values = jnp.take_along_axis(x, order, axis=axis, mode="clip")
    else:
        values, order = jax.lax.top_k(x, count)
    if len(outputs) == 1:
        return (values,)
    return values, order.astype(outputs[1].tensor.dtype.numpy)


@lowering("one_hot", stored=True)
def one_hot(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    indices, out = low["indices"], low.op.output.tensor
    axis = axis_of(low, "axis", -1, out.rank)
    hit = jnp.expand_dims(indices, axis) == jax.lax.broadcasted_iota(jnp.int32, out.dims, axis)
    on, off = low.const("on_value", 1), low.const("off_value", 0)
    dtype = out.dtype.numpy
    return jnp.where(hit, jnp.asarray(on, dtype), jnp.asarray(off, dtype))
