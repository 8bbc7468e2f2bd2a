"""Ops on the spatial grid: resizing, and moving between channels, batch and space."""

from __future__ import annotations

import math

import numpy as np

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import FLOATS, Dim, fits, show
from anex.mil.types import TensorType, Type

SAMPLING_MODES = ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS")

# --- resize -------------------------------------------------------------------


def _image(call: Call) -> TensorType:
    x = call.type("x")
    if x.rank < 3:
        raise call.error(f"x has rank {x.rank}, needs at least 3")
    return x


def _resized(call: Call, default: int | None) -> tuple[Type, ...]:
    x = _image(call)
    sizes = [call.value(f"target_size_{side}", default) for side in ("height", "width")]
    if min(sizes) < 1:
        raise call.refusal("size-positive", f"target size {sizes}")
    return (TensorType(x.dtype, (*x.shape[:-2], *sizes)),)


def _resize_nearest_neighbor(call: Call) -> tuple[Type, ...]:
    return _resized(call, None)


declare(
    "resize_nearest_neighbor", "ios15",
    "x: T, target_size_height: const int32, target_size_width: const int32", T=FLOATS,
    rule=_resize_nearest_neighbor,
    doc="The last two dimensions resized; element i is that at floor(i * in / out).",
)  # fmt: skip


def _resize_bilinear(call: Call) -> tuple[Type, ...]:
    mode = call.value("sampling_mode", "DEFAULT")
    if mode not in SAMPLING_MODES:
        raise call.error(f"sampling_mode '{mode}' is none of {', '.join(SAMPLING_MODES)}")
    return _resized(call, 1)


declare(
    "resize_bilinear", "ios15",
    "x: T, target_size_height?: const int32, target_size_width?: const int32, sampling_mode?: const string",
    T=FLOATS, rule=_resize_bilinear, doc="The last two dimensions resized with linear interpolation.",
)  # fmt: skip

# --- upsample -----------------------------------------------------------------


def _scaled(dim: Dim, factor: float) -> Dim:
    # The product in fp32, the type of the factor: 10 * 0.7 is then 7 and not 6.9999999.
    return None if dim is None else math.floor(np.float32(factor) * np.float32(dim))


def _upsample(call: Call) -> tuple[Type, ...]:
    x = _image(call)
    factors = [call.value(f"scale_factor_{side}", 1) for side in ("height", "width")]
    if not all(map(math.isfinite, factors)):
        raise call.error(f"scale factors {factors} are not finite")
    sizes = [_scaled(d, f) for d, f in zip(x.shape[-2:], factors, strict=True)]
    if min(factors) <= 0 or any(size is not None and size < 1 for size in sizes):
        raise call.refusal("size-positive", f"scale factors {factors} of {show(x.shape)}")
    return (TensorType(x.dtype, (*x.shape[:-2], *sizes)),)


_FACTORS = "x: T, scale_factor_height?: const scalar U, scale_factor_width?: const scalar U"
declare(
    "upsample_nearest_neighbor", "ios15", _FACTORS, T=FLOATS, U="fp32 int32", rule=_upsample,
    doc="The last two dimensions grown by factors; element i is that at floor(i / factor).",
)  # fmt: skip


def _upsample_bilinear(call: Call) -> tuple[Type, ...]:
    if call.value("align_corners", True) and call.value("half_pixel_centers", False):
        raise call.refusal("half-pixel", "align_corners with half_pixel_centers")
    return _upsample(call)


_BILINEAR = "The last two dimensions grown by factors with linear interpolation."
declare(
    "upsample_bilinear", "ios15", f"{_FACTORS}, align_corners?: const bool", T=FLOATS, U="fp32 int32",
    rule=_upsample_bilinear, doc=_BILINEAR,
)  # fmt: skip
declare(
    "upsample_bilinear", "ios16",
    f"{_FACTORS}, align_corners?: const bool, half_pixel_centers?: const bool", T=FLOATS, U="fp32 int32",
    rule=_upsample_bilinear, doc=_BILINEAR,
)  # fmt: skip

# --- between channels and space -----------------------------------------------


def _picture(call: Call, factor: str) -> tuple[TensorType, int]:
    x, block = call.type("x"), call.value(factor)
    if x.rank != 4:
        raise call.error(f"x has rank {x.rank}, needs 4")
    if block < 1:
        raise call.refusal("size-positive", f"{factor} is {block}")
    return x, int(block)


def _divided(call: Call, dim: Dim, by: int, what: str) -> Dim:
    if dim is None:
        return None
    if dim % by:
        raise call.refusal("size-divides", f"{by} does not divide the {what} of {dim}")
    return dim // by


def _times(dim: Dim, by: int) -> Dim:
    return None if dim is None else dim * by


def _to_space(call: Call) -> tuple[Type, ...]:
    x, block = _picture(call, "block_size" if call.decl.kind == "depth_to_space" else "upscale_factor")
    n, c, h, w = x.shape
    shape = (n, _divided(call, c, block * block, "channels"), _times(h, block), _times(w, block))
    return (TensorType(x.dtype, shape),)


def _to_depth(call: Call) -> tuple[Type, ...]:
    x, block = _picture(call, "block_size" if call.decl.kind == "space_to_depth" else "downscale_factor")
    n, c, h, w = x.shape
    height, width = _divided(call, h, block, "height"), _divided(call, w, block, "width")
    return (TensorType(x.dtype, (n, _times(c, block * block), height, width)),)


declare(
    "depth_to_space", "ios15", "x: T, block_size: const int32", T=FLOATS, rule=_to_space,
    doc="Channels to blocks of space; the block position is the slow part of the channel index.",
)  # fmt: skip
declare(
    "space_to_depth", "ios15", "x: T, block_size: const int32", T=FLOATS, rule=_to_depth,
    doc="Blocks of space to channels; the inverse of depth_to_space.",
)  # fmt: skip
declare(
    "pixel_shuffle", "ios15", "x: T, upscale_factor: const int32", T=FLOATS, rule=_to_space,
    doc="Channels to blocks of space; the block position is the fast part, as in PyTorch.",
)  # fmt: skip
declare(
    "pixel_unshuffle", "ios16", "x: T, downscale_factor: const uint32", T=FLOATS, rule=_to_depth,
    doc="Blocks of space to channels; the inverse of pixel_shuffle.",
)  # fmt: skip

# --- between batch and space --------------------------------------------------


def _blocks(call: Call, margins: str) -> tuple[TensorType, list[int], list[list[int]]]:
    x = call.type("x")
    if x.rank != 4:
        raise call.error(f"x has rank {x.rank}, needs 4")
    block = call.value("block_shape", length=2)
    sides = call.value(margins, length=2)
    if not fits(call.type(margins).shape, (2, 2)):
        raise call.error(f"{margins} has shape {show(call.type(margins).shape)}, needs [2, 2]")
    if min(block) < 1 or min(map(min, sides)) < 0:
        raise call.refusal("size-positive", f"block_shape {block} with {margins} {sides}")
    return x, block, sides


def _space_to_batch(call: Call) -> tuple[Type, ...]:
    x, block, sides = _blocks(call, "paddings")
    n, c, *space = x.shape
    padded = [None if d is None else d + sum(side) for d, side in zip(space, sides, strict=True)]
    sizes = [_divided(call, d, b, "padded size") for d, b in zip(padded, block, strict=True)]
    return (TensorType(x.dtype, (_times(n, math.prod(block)), c, *sizes)),)


declare(
    "space_to_batch", "ios15", "x: T, block_shape: const int32[], paddings: const int32[][]", T=FLOATS,
    rule=_space_to_batch, doc="Space padded with zeros, then each position of a block as a batch of its own.",
)  # fmt: skip


def _batch_to_space(call: Call) -> tuple[Type, ...]:
    x, block, sides = _blocks(call, "crops")
    n, c, *space = x.shape
    sizes = []
    for dim, by, side in zip(space, block, sides, strict=True):
        if dim is not None and sum(side) >= dim * by:
            raise call.refusal("size-positive", f"crops {side} of a size of {dim * by}")
        sizes.append(None if dim is None else dim * by - sum(side))
    count = math.prod(block)
    if n is not None and n % count:
        raise call.error(f"block_shape {block} does not divide the batch of {n}")
    return (TensorType(x.dtype, (None if n is None else n // count, c, *sizes)),)


declare(
    "batch_to_space", "ios15", "x: T, block_shape: const int32[], crops: const int32[][]", T=FLOATS,
    rule=_batch_to_space, doc="Batches back to blocks of space, then cropped; the inverse of space_to_batch.",
)  # fmt: skip
