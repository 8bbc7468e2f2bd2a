"""Pools."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from anex.emulator.lowering.registry import Lowered, lowering
from anex.emulator.lowering.window import window_of
from anex.errors import UnsupportedError

if TYPE_CHECKING:
    import jax

Pads = list[tuple[int, int]]


def _window(low: Lowered) -> tuple[tuple[int, ...], tuple[int, ...], Pads, Pads]:
    """Window and strides of every dimension, padding, and zeros behind it that ceil_mode adds."""
    x, kernel = low["x"], low.const("kernel_sizes")
    window = window_of(low, kernel)
    strides, pads = window.strides, window.padding(x.shape[2:])
    more = []
    outputs = low.op.output.tensor.dims[2:]
    for size, extent, (before, after), stride, k in zip(
        x.shape[2:], outputs, pads, strides, kernel, strict=True
    ):
        reach = (extent - 1) * stride + k
        more.append((0, max(0, reach - before - size - after)))
    plain: Pads = [(0, 0), (0, 0)]
    return (1, 1, *kernel), (1, 1, *strides), plain + list(pads), plain + more


def _sums(x: jax.Array, low: Lowered) -> jax.Array:
    import jax

    window, strides, pads, more = _window(low)
    both = [(b, a + m) for (b, a), (_, m) in zip(pads, more, strict=True)]
    total: jax.Array = jax.lax.reduce_window(x, 0.0, jax.lax.add, window, strides, both)
    return total


@lowering("max_pool")
def max_pool(low: Lowered) -> jax.Array:
    import jax

    window, strides, pads, more = _window(low)
    both = [(b, a + m) for (b, a), (_, m) in zip(pads, more, strict=True)]
    top: jax.Array = jax.lax.reduce_window(low["x"], -np.inf, jax.lax.max, window, strides, both)
    return top


@lowering("l2_pool")
def l2_pool(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.sqrt(_sums(low["x"] * low["x"], low))


@lowering("avg_pool")
def avg_pool(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    total = _sums(low["x"], low)
    if low.const("exclude_padding_from_average", False):
        return total / _sums(jnp.ones_like(low["x"]), low)
    if any(m for _, m in _window(low)[3]):
        # Whether the mean counts what lies behind the padding is documented nowhere.
        raise UnsupportedError(
            "avg_pool with ceil_mode that counts padding", where=low.op.name,
            hint="set exclude_padding_from_average or pad the input",
        )  # fmt: skip
    count: int = prod(low.const("kernel_sizes"))
    return total / count
