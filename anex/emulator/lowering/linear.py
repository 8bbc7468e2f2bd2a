"""Products: conv, conv_transpose, linear, matmul, einsum, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator.lowering.activation import stable_softmax
from anex.emulator.lowering.registry import Lowered, lowering
from anex.emulator.lowering.window import window_of

if TYPE_CHECKING:
    import jax

_SPATIAL = "DHW"


@lowering("matmul", stored=True)
def matmul(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x, y = low["x"], low["y"]
    tx, ty = low.const("transpose_x", False), low.const("transpose_y", False)
    # numpy's rule for rank 1: a row on the left, a column on the right.
    if x.ndim == 1:
        x, tx = x[None, :], False
    if y.ndim == 1:
        y, ty = y[:, None], False
    out = low.matmul(x, y, transpose_x=tx, transpose_y=ty, out=low.dtypes[0])
    return jnp.reshape(out, low.op.output.tensor.dims)


@lowering("linear", stored=True)
def linear(low: Lowered) -> jax.Array:
    x = low["x"]
    rows = x.reshape(1 if x.ndim == 1 else -1, x.shape[-1])
    wide = _sum_dtype(low)
    out = low.matmul(rows, low["weight"], transpose_y=True, out=wide if "bias" in low else low.dtypes[0])
    if "bias" in low:
        out = out + low["bias"].astype(wide)
    return out.reshape(low.op.output.tensor.dims)


@lowering("conv", stored=True)
def conv(low: Lowered) -> jax.Array:
    import jax

    x, w = low["x"], low["weight"]
    wide = _sum_dtype(low)
    groups = low.const("groups", 1)
    if _is_pointwise(low, x, w):
        columns = x.reshape(x.shape[0], x.shape[1], -1)
        rows = w.reshape(w.shape[0], w.shape[1])
        out = low.matmul.weight(rows, columns, out=wide if "bias" in low else low.dtypes[0])
        out = out.reshape(x.shape[0], w.shape[0], *x.shape[2:])
    else:
        spatial = _SPATIAL[-(x.ndim - 2) :]
        out = jax.lax.conv_general_dilated(
            x.astype(np.float32),
            w.astype(np.float32),
            window_strides=low.const("strides", [1] * (x.ndim - 2)),
            padding=window_of(low, w.shape[2:]).padding(x.shape[2:]),
            rhs_dilation=low.const("dilations", [1] * (x.ndim - 2)),
            dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
            feature_group_count=groups,
            precision=jax.lax.Precision.HIGHEST,
        )
    return out + _channel_bias(low, out) if "bias" in low else out


@lowering("conv_transpose", stored=True)
def conv_transpose(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x, w = low["x"].astype(np.float32), low["weight"].astype(np.float32)
    rank, groups = x.ndim - 2, low.const("groups", 1)
    strides = low.const("strides", [1] * rank)
    dilations = low.const("dilations", [1] * rank)
    # The gradient of a convolution: dilate x, flip w, pad by the kernel's reach, crop.
    w = jnp.flip(w.reshape(groups, -1, *w.shape[1:]), axis=range(3, 3 + rank))
    w = jnp.swapaxes(w, 1, 2).reshape(-1, w.shape[1], *w.shape[3:])
    reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilations, strict=True)]
    size = low.op.output.tensor.dims[2:]
    # What the convolution that this is the gradient of pads in front, is cut off in front.
    begin = [before for before, _ in window_of(low, w.shape[2:]).padding(size)]
    padding = []
    for r, b, n, s, o in zip(reach, begin, x.shape[2:], strides, size, strict=True):
        full = (n - 1) * s + 1 + 2 * r - r
        padding.append((r - b, r + o - (full - b)))
    spatial = _SPATIAL[-rank:]
    out = jax.lax.conv_general_dilated(
        x,
        w,
        window_strides=[1] * rank,
        padding=padding,
        lhs_dilation=strides,
        rhs_dilation=dilations,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
        precision=jax.lax.Precision.HIGHEST,
    )
    return out + _channel_bias(low, out) if "bias" in low else out


@lowering("einsum", stored=True)
def einsum(low: Lowered) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x, y = (v.astype(np.float32) for v in low.many("values"))
    equation = low.const("equation")
    return jnp.einsum(equation, x, y, precision=jax.lax.Precision.HIGHEST)


@lowering("scaled_dot_product_attention", stored=True)
def attention(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    query, key = low["query"], low["key"]
    scale = np.float32(1.0 / np.sqrt(query.shape[-1]))
    scores = low.matmul(query, key, transpose_y=True, out=np.dtype(np.float32)) * scale
    if "attn_mask" in low:
        mask = low["attn_mask"]
        if mask.dtype == np.bool_:
            scores = jnp.where(mask, scores, -jnp.inf)
        else:
            scores = scores + mask.astype(np.float32)
    return low.matmul(stable_softmax(low, scores, -1), low["value"], out=low.dtypes[0])


def _sum_dtype(low: Lowered) -> np.dtype[Any]:
    """Where a bias follows, the product stays wide: the op rounds once, at its end."""
    return np.dtype(np.int32 if np.issubdtype(low.dtypes[0], np.integer) else np.float32)


def _channel_bias(low: Lowered, out: jax.Array) -> jax.Array:
    return low["bias"].astype(np.float32).reshape(1, -1, *[1] * (out.ndim - 2))


def _is_pointwise(low: Lowered, x: jax.Array, w: jax.Array) -> bool:
    """Whether a convolution is a matrix product at each position (host.md: 2-13x faster as one)."""
    ones = [1] * (x.ndim - 2)
    return (
        list(w.shape[2:]) == ones
        and low.const("strides", ones) == ones
        and low.const("groups", 1) == 1
        and (low.const("pad_type", "valid") != "custom" or not any(low.const("pad", [0])))
    )
