"""Reductions along axes, and the running sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator.lowering.registry import Lowered, lowering

if TYPE_CHECKING:
    import jax


def _l2_norm(jnp: Any, x: Any, **over: Any) -> Any:
    return jnp.sqrt(jnp.sum(x * x, **over))


def _log_sum_exp(jnp: Any, x: Any, **over: Any) -> Any:
    top = jnp.max(x, axis=over["axis"], keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - top), **over))
    return total + top.reshape(total.shape)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_l1_norm": lambda jnp, x, **over: jnp.sum(jnp.abs(x), **over),
    "reduce_l2_norm": _l2_norm,
    "reduce_log_sum": lambda jnp, x, **over: jnp.log(jnp.sum(x, **over)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": lambda jnp, x, **over: jnp.max(x, **over),
    "reduce_mean": lambda jnp, x, **over: jnp.mean(x, **over),
    "reduce_min": lambda jnp, x, **over: jnp.min(x, **over),
    "reduce_prod": lambda jnp, x, **over: jnp.prod(x, **over),
    "reduce_sum": lambda jnp, x, **over: jnp.sum(x, **over),
    "reduce_sum_square": lambda jnp, x, **over: jnp.sum(x * x, **over),
}

_THROUGH_FLOAT = frozenset({"reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "reduce_mean"})


@lowering(*_REDUCTIONS)
def reduction(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x, kind = low["x"], low.op.kind
    if np.issubdtype(x.dtype, np.integer) and kind in _THROUGH_FLOAT:
        x = x.astype(jnp.float32)
    axes = tuple(low.const("axes", range(x.ndim)))
    result: jax.Array = _REDUCTIONS[kind](jnp, x, axis=axes, keepdims=low.const("keep_dims", False))
    return result


@lowering("reduce_argmax", "reduce_argmin")
def index(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    function = jnp.argmax if low.op.kind == "reduce_argmax" else jnp.argmin
    return function(low["x"], axis=low.const("axis", -1), keepdims=low.const("keep_dims", False))


@lowering("cumsum")
def cumsum(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x, axis = low["x"], low.const("axis", 0) % low["x"].ndim
    reverse, exclusive = low.const("reverse", False), low.const("exclusive", False)
    total = jax.lax.cumsum(x, axis=axis, reverse=reverse)
    if not exclusive:
        return total
    # Shift by one instead of subtracting x, which would not bring back what was rounded away.
    ends = [(0, 0)] * x.ndim
    ends[axis] = (0, 1) if reverse else (1, 0)
    length = x.shape[axis]
    shifted: jax.Array = jax.lax.slice_in_dim(
        jnp.pad(total, ends), int(reverse), length + int(reverse), axis=axis
    )
    return shifted
