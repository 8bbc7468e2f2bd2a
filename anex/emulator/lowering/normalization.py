"""Normalisations."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from anex.emulator.lowering.activation import per_channel
from anex.emulator.lowering.registry import Lowered, lowering

if TYPE_CHECKING:
    import jax


def _affine(low: Lowered, centred: jax.Array, variance: jax.Array, gamma: Any, beta: Any) -> jax.Array:
    import jax.numpy as jnp

    epsilon = low["epsilon"] if "epsilon" in low else 1e-5
    normalized = centred / jnp.sqrt(variance + epsilon)
    if gamma is not None:
        normalized = normalized * gamma
    return normalized if beta is None else normalized + beta


def _moments(low: Lowered, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """x without its mean, and its variance, over axes that are kept."""
    x = low["x"]
    count = prod(x.shape[axis] for axis in axes)
    centred = x - low.matmul.sum(x, axes) / count
    return centred, low.matmul.sum(centred * centred, axes) / count


def _channels(low: Lowered, name: str) -> jax.Array | None:
    return per_channel(low[name], low["x"].ndim) if name in low else None


@lowering("batch_norm")
def batch_norm(low: Lowered) -> jax.Array:
    x = low["x"]
    mean, variance = (per_channel(low[name], x.ndim) for name in ("mean", "variance"))
    return _affine(low, x - mean, variance, _channels(low, "gamma"), _channels(low, "beta"))


@lowering("instance_norm")
def instance_norm(low: Lowered) -> jax.Array:
    moments = _moments(low, tuple(range(2, low["x"].ndim)))
    return _affine(low, *moments, _channels(low, "gamma"), _channels(low, "beta"))


@lowering("layer_norm")
def layer_norm(low: Lowered) -> jax.Array:
    x = low["x"]
    axes = tuple(sorted(axis % x.ndim for axis in low.const("axes", range(x.ndim))))
    shape = [size if i in axes else 1 for i, size in enumerate(x.shape)]
    gamma, beta = (low[name].reshape(shape) if name in low else None for name in ("gamma", "beta"))
    return _affine(low, *_moments(low, axes), gamma, beta)


@lowering("l2_norm")
def l2_norm(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x, epsilon = low["x"], low["epsilon"] if "epsilon" in low else 1e-6
    return x / jnp.sqrt(low.matmul.sum(x * x, (-3, -2, -1)) + epsilon)


@lowering("local_response_norm")
def local_response_norm(low: Lowered) -> jax.Array:
    """Channel i sees `size` channels, i - size // 2 first; what is outside counts as 0."""
    import jax
    import jax.numpy as jnp

    x, size = low["x"], low.const("size")
    defaults = {"alpha": 1e-4, "beta": 0.75, "k": 1.0}
    alpha, beta, k = (low[name] if name in low else value for name, value in defaults.items())
    window = (1, size) + (1,) * (x.ndim - 2)
    near = [(0, 0)] * x.ndim
    near[1] = (size // 2, size - 1 - size // 2)
    squares = jax.lax.reduce_window(x * x, 0.0, jax.lax.add, window, (1,) * x.ndim, near)
    return x / jnp.power(k + alpha / size * squares, beta)
