"""Reshaping, reordering, joining and cutting: data moves, values do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anex.emulator.lowering.registry import Lowered, lowering

if TYPE_CHECKING:
    import jax


def axis_of(low: Lowered, name: str, default: int | None, rank: int) -> int:
    """A constant axis counted from the front."""
    axis: int = low.const(name, default)
    return axis % rank


@lowering("reshape", "reshape_like", "expand_dims", "squeeze", "flatten2d", stored=True)
def reshape(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.reshape(low["x"], low.op.output.tensor.dims)


@lowering("transpose", stored=True)
def transpose(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.transpose(low["x"], low.const("perm"))


@lowering("concat", stored=True)
def concat(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    values = low.many("values")
    if values[0].ndim == 0:
        return jnp.stack(values)
    axis = axis_of(low, "axis", None, values[0].ndim)
    if low.const("interleave", False):
        return jnp.stack(values, axis=axis + 1).reshape(low.op.output.tensor.dims)
    return jnp.concatenate(values, axis=axis)


@lowering("stack", stored=True)
def stack(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.stack(low.many("values"), axis=low.const("axis"))


@lowering("split", stored=True)
def split(low: Lowered) -> tuple[jax.Array, ...]:
    import jax

    x = low["x"]
    axis = axis_of(low, "axis", None, x.ndim)
    ends = np.cumsum([out.tensor.dims[axis] for out in low.op.outputs])
    return tuple(
        jax.lax.slice_in_dim(x, int(end) - out.tensor.dims[axis], int(end), axis=axis)
        for end, out in zip(ends, low.op.outputs, strict=True)
    )


@lowering("tile", stored=True)
def tile(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.tile(low["x"], low.const("reps"))


@lowering("pad", stored=True)
def pad(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x, amounts = low["x"], low.const("pad")
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    mode = low.const("mode", "constant")
    if mode == "constant":
        value = low.const("constant_val", 0.0)
        return jnp.pad(x, widths, constant_values=jnp.asarray(value, x.dtype))
    return jnp.pad(x, widths, mode="edge" if mode == "replicate" else "reflect")


@lowering("reverse", stored=True)
def reverse(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.flip(low["x"], low.const("axes"))


@lowering("reverse_sequence", stored=True)
def reverse_sequence(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x = low["x"]
    seq = axis_of(low, "seq_axis", 0, x.ndim)
    batch = axis_of(low, "batch_axis", 0, x.ndim)
    position = jax.lax.broadcasted_iota(jnp.int32, x.shape, seq)
    shape = [1] * x.ndim
    shape[batch] = -1
    length = low["lengths"].astype(jnp.int32).reshape(shape)
    source = jnp.where(position < length, length - 1 - position, position)
    return jnp.take_along_axis(x, source, axis=seq, mode="clip")


@lowering("shape", stored=True)
def shape_of(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.asarray(low["x"].shape, jnp.int32)
