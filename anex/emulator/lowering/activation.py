"""Activations and softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator.lowering.registry import Lowered, lowering

if TYPE_CHECKING:
    import jax


@lowering("relu")
def relu(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.maximum(low["x"], 0)


@lowering("relu6")
def relu6(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.minimum(jnp.maximum(low["x"], 0), 6)


@lowering("sigmoid")
def sigmoid(low: Lowered) -> jax.Array:
    return _sigmoid(low["x"])


def _sigmoid(x: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return 1 / (1 + jnp.exp(-x))


@lowering("silu")
def silu(low: Lowered) -> jax.Array:
    return low["x"] * _sigmoid(low["x"])


@lowering("softplus")
def softplus(low: Lowered) -> jax.Array:
    return _softplus(low["x"])


def _softplus(x: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0)


@lowering("softsign")
def softsign(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return low["x"] / (1 + jnp.abs(low["x"]))


@lowering("elu")
def elu(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    return jnp.where(x > 0, x, low["alpha"] * jnp.expm1(x))


@lowering("leaky_relu")
def leaky_relu(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    return jnp.where(x >= 0, x, low["alpha"] * x)


@lowering("thresholded_relu")
def thresholded_relu(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    return jnp.where(x < low["alpha"], 0, x)


@lowering("clamped_relu")
def clamped_relu(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    return jnp.minimum(low["beta"], jnp.where(x >= 0, x, low["alpha"] * x))


@lowering("linear_activation")
def linear_activation(low: Lowered) -> jax.Array:
    return low["alpha"] * low["x"] + low["beta"]


@lowering("scaled_tanh")
def scaled_tanh(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return low["alpha"] * jnp.tanh(low["beta"] * low["x"])


@lowering("sigmoid_hard")
def sigmoid_hard(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.minimum(jnp.maximum(low["alpha"] * low["x"] + low["beta"], 0), 1)


def per_channel(values: jax.Array, rank: int) -> jax.Array:
    """A vector laid along dimension 1 of a tensor of this rank."""
    return values.reshape(-1, *[1] * (rank - 2))


@lowering("prelu")
def prelu(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    return jnp.where(x > 0, x, per_channel(low["alpha"], x.ndim) * x)


@lowering("softplus_parametric")
def softplus_parametric(low: Lowered) -> jax.Array:
    x = low["x"]
    alpha, beta = (per_channel(low[name], x.ndim) for name in ("alpha", "beta"))
    return alpha * _softplus(beta * x)


@lowering("gelu")
def gelu(low: Lowered) -> jax.Array:
    import jax

    # 1 + erf and 1 + tanh would lose all digits for negative x.
    x, mode = low["x"], low.const("mode", "EXACT")
    if mode == "EXACT":
        return 0.5 * x * jax.lax.erfc(-x * np.float32(np.sqrt(0.5)))
    if mode == "TANH_APPROXIMATION":
        inner: Any = x + 0.044715 * x * x * x
        return x * _sigmoid(np.float32(2 * np.sqrt(2 / np.pi)) * inner)
    return x * _sigmoid(1.702 * x)


@lowering("softmax")
def softmax(low: Lowered) -> jax.Array:
    return stable_softmax(low, low["x"], low.const("axis", -1))


def stable_softmax(low: Lowered, x: jax.Array, axis: int) -> jax.Array:
    """`exp(x - max) / sum`, wide, with the sum in the emulator's own order."""
    import jax.numpy as jnp

    powers = jnp.exp(x - _largest(x, axis))
    return powers / low.matmul.sum(powers, [axis])


def _largest(x: jax.Array, axis: int) -> jax.Array:
    """Maximum along an axis, kept; by halves along the last one, where XLA's own is ten times slower."""
    import jax.numpy as jnp

    if axis % x.ndim != x.ndim - 1:
        return jnp.max(x, axis=axis, keepdims=True)
    while (width := x.shape[-1]) > 1:
        half = -(-width // 2)  # an odd width's middle is in both halves, which a maximum allows
        x = jnp.maximum(x[..., :half], x[..., width - half :])
    return x
