"""Reductions along axes, and the running sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator.lowering.registry import Lowered, lowering

if TYPE_CHECKING:
    import jax


Sum = Callable[[Any], Any]
"""The sum over the op's axes, which are kept: in the emulator's own order where it has one."""


def _log_sum_exp(jnp: Any, x: Any, axes: tuple[int, ...], total: Sum) -> Any:
    top = jnp.max(x, axis=axes, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0)
    return jnp.log(total(jnp.exp(x - top))) + top


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_l1_norm": lambda jnp, x, axes, total: total(jnp.abs(x)),
    "reduce_l2_norm": lambda jnp, x, axes, total: jnp.sqrt(total(x * x)),
    "reduce_log_sum": lambda jnp, x, axes, total: jnp.log(total(x)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": lambda jnp, x, axes, total: jnp.max(x, axis=axes, keepdims=True),
    "reduce_mean": lambda jnp, x, axes, total: total(x) / np.prod([x.shape[a] for a in axes]),
    "reduce_min": lambda jnp, x, axes, total: jnp.min(x, axis=axes, keepdims=True),
    "reduce_prod": lambda jnp, x, axes, total: jnp.prod(x, axis=axes, keepdims=True),
    "reduce_sum": lambda jnp, x, axes, total: total(x),
    "reduce_sum_square": lambda jnp, x, axes, total: total(x * x),
}

_THROUGH_FLOAT = frozenset({"reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "reduce_mean"})


@lowering(*_REDUCTIONS)
def reduction(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x, kind = low["x"], low.op.kind
    if np.issubdtype(x.dtype, np.integer) and kind in _THROUGH_FLOAT:
        x = x.astype(jnp.float32)
    axes = tuple(low.const("axes", range(x.ndim)))
    result = _REDUCTIONS[kind](jnp, x, axes, lambda y: low.matmul.sum(y, axes))
    return jnp.reshape(result, low.op.output.tensor.dims)


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
