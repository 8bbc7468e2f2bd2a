"""Generated tensors, masks and names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anex.emulator.lowering.registry import Lowered, lowering

if TYPE_CHECKING:
    import jax


@lowering("identity", stored=True)
def identity(low: Lowered) -> jax.Array:
    return low["x"]


@lowering("fill", "fill_like", stored=True)
def fill(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    out = low.op.output.tensor
    return jnp.full(out.dims, low.const("value", 0), out.dtype.numpy)


@lowering("range_1d")
def range_1d(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    start, step = (jnp.reshape(low[name], ()) for name in ("start", "step"))
    count = jnp.arange(low.op.output.tensor.dims[0], dtype=jnp.int32)
    return start + count.astype(start.dtype) * step


@lowering("band_part", stored=True)
def band_part(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x = low["x"]
    lower, upper = low.const("lower", -1), low.const("upper", -1)
    row, column = (jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - i) for i in (2, 1))
    keep = jnp.ones(x.shape, bool)
    if lower >= 0:
        keep &= row - column <= lower
    if upper >= 0:
        keep &= column - row <= upper
    return jnp.where(keep, x, jnp.zeros((), x.dtype))
