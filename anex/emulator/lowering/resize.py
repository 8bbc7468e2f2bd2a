"""Resizing, and moving between channels, batch and space."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from anex.emulator.lowering.registry import Lowered, lowering

if TYPE_CHECKING:
    import jax

# --- nearest neighbour --------------------------------------------------------


@lowering("resize_nearest_neighbor", stored=True)
def resize_nearest_neighbor(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    for axis in (-2, -1):
        size, dim = low.op.output.tensor.dims[axis], x.shape[axis]
        x = jnp.take(x, np.arange(size) * dim // size, axis=axis, mode="clip")
    return x


@lowering("upsample_nearest_neighbor", stored=True)
def upsample_nearest_neighbor(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    for axis, side in ((-2, "height"), (-1, "width")):
        factor = low.const(f"scale_factor_{side}", 1)
        source = [math.floor(i / factor) for i in range(low.op.output.tensor.dims[axis])]
        x = jnp.take(x, np.asarray(source), axis=axis, mode="clip")
    return x


# --- linear interpolation -----------------------------------------------------


def _grid(mode: str, dim: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Where the `size` samples lie on the `dim` source elements, by coremltools' table."""
    i = np.arange(size, dtype=np.float64)
    last = max(size - 1, 1)
    if mode == "ALIGN_CORNERS" and size == 1:
        points = i + (dim - 1) / 2
    elif mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        points = i * ((dim - 1) / last)
    elif mode == "DEFAULT":
        points = i * ((dim - dim / size) / last)
    elif mode == "OFFSET_CORNERS":
        delta = max(1, dim - 1) / size
        points = 0.5 * delta + i * delta
    else:  # UNALIGN_CORNERS
        points = (i + 0.5) * (dim / size) - 0.5
    return np.clip(points, 0, dim - 1)


def _interpolated(x: jax.Array, axis: int, points: np.ndarray[tuple[int], np.dtype[np.float64]]) -> jax.Array:
    import jax.numpy as jnp

    before = np.floor(points).astype(np.int32)
    weight = (points - before).astype(np.float32).reshape([-1 if i == axis else 1 for i in (-2, -1)])
    low = jnp.take(x, before, axis=axis, mode="clip")
    high = jnp.take(x, before + 1, axis=axis, mode="clip")
    # Where the sample lies on an element, an infinite neighbour must not turn it into NaN.
    return jnp.where(weight == 0, low, low * (1 - weight) + high * weight)


def _bilinear(low: Lowered, mode: str) -> jax.Array:
    x = low["x"]
    for axis in (-2, -1):
        x = _interpolated(x, axis, _grid(mode, x.shape[axis], low.op.output.tensor.dims[axis]))
    return x


@lowering("resize_bilinear")
def resize_bilinear(low: Lowered) -> jax.Array:
    return _bilinear(low, low.const("sampling_mode", "DEFAULT"))


@lowering("upsample_bilinear")
def upsample_bilinear(low: Lowered) -> jax.Array:
    aligned = low.const("align_corners", True)
    if aligned:
        return _bilinear(low, "STRICT_ALIGN_CORNERS")
    return _bilinear(low, "UNALIGN_CORNERS" if low.const("half_pixel_centers", True) else "DEFAULT")


# --- channels, batch and space ------------------------------------------------


@lowering("depth_to_space", stored=True)
def depth_to_space(low: Lowered) -> jax.Array:
    n, c, h, w = low["x"].shape
    b = low.const("block_size")
    blocks = low["x"].reshape(n, b, b, c // (b * b), h, w)
    return blocks.transpose(0, 3, 4, 1, 5, 2).reshape(low.op.output.tensor.dims)


@lowering("pixel_shuffle", stored=True)
def pixel_shuffle(low: Lowered) -> jax.Array:
    n, c, h, w = low["x"].shape
    b = low.const("upscale_factor")
    blocks = low["x"].reshape(n, c // (b * b), b, b, h, w)
    return blocks.transpose(0, 1, 4, 2, 5, 3).reshape(low.op.output.tensor.dims)


@lowering("space_to_depth", stored=True)
def space_to_depth(low: Lowered) -> jax.Array:
    n, c, h, w = low["x"].shape
    b = low.const("block_size")
    blocks = low["x"].reshape(n, c, h // b, b, w // b, b)
    return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(low.op.output.tensor.dims)


@lowering("pixel_unshuffle", stored=True)
def pixel_unshuffle(low: Lowered) -> jax.Array:
    n, c, h, w = low["x"].shape
    b = low.const("downscale_factor")
    blocks = low["x"].reshape(n, c, h // b, b, w // b, b)
    return blocks.transpose(0, 1, 3, 5, 2, 4).reshape(low.op.output.tensor.dims)


@lowering("space_to_batch", stored=True)
def space_to_batch(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    bh, bw = low.const("block_shape")
    padded = jnp.pad(low["x"], [(0, 0), (0, 0), *low.const("paddings")])
    n, c, h, w = padded.shape
    blocks = padded.reshape(n, c, h // bh, bh, w // bw, bw)
    return blocks.transpose(3, 5, 0, 1, 2, 4).reshape(low.op.output.tensor.dims)


@lowering("batch_to_space", stored=True)
def batch_to_space(low: Lowered) -> jax.Array:
    bh, bw = low.const("block_shape")
    (top, bottom), (left, right) = low.const("crops")
    n, c, h, w = low["x"].shape
    blocks = low["x"].reshape(bh, bw, n // (bh * bw), c, h, w)
    whole = blocks.transpose(2, 3, 4, 0, 5, 1).reshape(n // (bh * bw), c, h * bh, w * bw)
    return whole[:, :, top : h * bh - bottom, left : w * bw - right]
