"""Conversions between element types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anex.emulator.lowering.registry import Lowered, lowering
from anex.mil import DType

if TYPE_CHECKING:
    import jax

LIMITS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}


@lowering("cast")
def cast(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x, dtype = low["x"], low.op.output.tensor.dtype
    if dtype.is_float:
        return x.astype(jnp.float32)  # the driver rounds once; integers below 2**24 are exact
    return x != 0 if dtype.value == "bool" else x.astype(dtype.numpy)


def _per_axis(low: Lowered, name: str) -> jax.Array:
    """scale or zero_point as fp32, laid along its axis."""
    import jax.numpy as jnp

    values, x = low[name].astype(jnp.float32), low["input"]
    if values.ndim == 0:
        return values
    axis = low.const("axis") % x.ndim
    return values.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


@lowering("quantize")
def quantize(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    dtype = low.op.output.tensor.dtype
    steps = jnp.round(low["input"] / _per_axis(low, "scale"))
    if "zero_point" in low:
        steps = steps + _per_axis(low, "zero_point")
    low_end, high_end = LIMITS[dtype]
    return jnp.clip(steps, low_end, high_end).astype(dtype.numpy)


@lowering("dequantize")
def dequantize(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    steps = low["input"].astype(jnp.float32)
    if "zero_point" in low:
        steps = steps - _per_axis(low, "zero_point")
    return steps * _per_axis(low, "scale")
