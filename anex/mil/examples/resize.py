"""Examples of resizing, and of moving between channels, batch and space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import const, fp16, fp32
from anex.mil.examples.case import Argument, Example, examples_of
from anex.mil.examples.data import mixed
from anex.mil.ops.resize import SAMPLING_MODES
from anex.mil.types import DType

_BIG = np.array([65504, 60000, -65504, 2.0**-24, -(2.0**-14), 0], np.float16).reshape(1, 2, 3)


# --- nearest neighbour --------------------------------------------------------


@examples_of("resize_nearest_neighbor")
def resize_nearest_neighbor() -> Iterator[Example]:
    for dtype in ("float16", "float32"):
        for height, width in ((6, 8), (2, 3), (1, 1), (5, 4), (7, 2)):
            args: dict[str, Argument] = {"x": mixed(dtype, 2, 3, 4)}
            args |= {"target_size_height": const(height), "target_size_width": const(width)}
            yield Example("resize_nearest_neighbor", f"{height}x{width}-{dtype}", args)


@examples_of("upsample_nearest_neighbor")
def upsample_nearest_neighbor() -> Iterator[Example]:
    x = mixed("float16", 1, 2, 4, 6)
    for height, width in ((2, 3), (1, 1), (4, 1)):
        args: dict[str, Argument] = {"x": x, "scale_factor_height": const(height)}
        yield Example(
            "upsample_nearest_neighbor", f"{height}x{width}", args | {"scale_factor_width": const(width)}
        )
    args = {
        "x": mixed("float32", 2, 4, 4),
        "scale_factor_height": const(2.5),
        "scale_factor_width": const(1.5),
    }
    yield Example("upsample_nearest_neighbor", "fractions", args)
    args = {
        "x": mixed("float16", 1, 10, 10),
        "scale_factor_height": const(0.7),
        "scale_factor_width": const(1.1),
    }
    yield Example("upsample_nearest_neighbor", "rounded-sizes", args)
    yield Example("upsample_nearest_neighbor", "default", {"x": x}, "ios15")


# --- linear interpolation -----------------------------------------------------


@examples_of("resize_bilinear")
def resize_bilinear() -> Iterator[Example]:
    for mode in SAMPLING_MODES:
        for height, width in ((6, 5), (2, 9), (1, 1), (3, 4)):
            args: dict[str, Argument] = {"x": fp16(mode, 1, 2, 3, 4), "sampling_mode": const(mode)}
            args |= {"target_size_height": const(height), "target_size_width": const(width)}
            yield Example("resize_bilinear", f"{mode}-{height}x{width}", args, scale=3.0)
        # the documented grid points of two elements 0 and 1
        args = {"x": np.array([[[0, 1]]], np.float32), "sampling_mode": const(mode)}
        yield Example(
            "resize_bilinear", f"{mode}-documented", args | {"target_size_width": const(5)}, scale=1.0
        )
        args = {"x": _BIG, "target_size_height": const(4), "target_size_width": const(6)}
        yield Example("resize_bilinear", f"{mode}-big", args | {"sampling_mode": const(mode)}, scale=65504.0)
    special = {"x": np.array([[[1, np.inf, 2], [np.nan, 1, -1]]], np.float16)}
    sizes = {"target_size_height": const(2), "target_size_width": const(3)}
    yield Example("resize_bilinear", "same-size-special", special | sizes)
    yield Example("resize_bilinear", "default", {"x": fp32("x", 1, 3, 4)}, "ios15", scale=3.0)


@examples_of("upsample_bilinear")
def upsample_bilinear() -> Iterator[Example]:
    for aligned in (True, False):
        for x in (fp16("up", 1, 2, 3, 4), fp32("up", 2, 3, 4)):
            args: dict[str, Argument] = {"x": x, "align_corners": const(aligned)}
            args |= {"scale_factor_height": const(2), "scale_factor_width": const(3)}
            yield Example("upsample_bilinear", f"aligned-{aligned}-{x.dtype}", args, scale=3.0)
            yield Example("upsample_bilinear", f"aligned-{aligned}-{x.dtype}-ios15", args, "ios15", scale=3.0)
            args |= {
                "scale_factor_height": const(1.5, DType.FP32),
                "scale_factor_width": const(2.25, DType.FP32),
            }
            yield Example("upsample_bilinear", f"fractions-{aligned}-{x.dtype}", args, scale=3.0)
    for half in (True, False):
        args = {"x": fp16("half", 1, 3, 4), "align_corners": const(False), "half_pixel_centers": const(half)}
        args |= {"scale_factor_height": const(3), "scale_factor_width": const(2)}
        yield Example("upsample_bilinear", f"half-{half}", args, "ios16", scale=3.0)
    yield Example("upsample_bilinear", "default", {"x": fp16("default", 1, 3, 4)}, scale=3.0)


# --- channels, batch and space ------------------------------------------------

_SPACE = {
    "depth_to_space": ("block_size", (2, 12, 2, 3), 2),
    "pixel_shuffle": ("upscale_factor", (2, 12, 2, 3), 2),
    "space_to_depth": ("block_size", (2, 3, 4, 6), 2),
    "pixel_unshuffle": ("downscale_factor", (2, 3, 4, 6), 2),
}


@examples_of(*_SPACE)
def between_channels_and_space() -> Iterator[Example]:
    for kind, (name, shape, factor) in _SPACE.items():
        integer = DType.UINT32 if kind == "pixel_unshuffle" else DType.INT32
        for dtype in ("float16", "float32"):
            yield Example(kind, dtype, {"x": mixed(dtype, *shape), name: const(factor, integer)})
        cube = (1, 9, 3, 3)
        yield Example(kind, "three", {"x": mixed("float16", *cube), name: const(3, integer)}, "ios16")


@examples_of("space_to_batch")
def space_to_batch() -> Iterator[Example]:
    cases = {
        "plain": ((2, 3, 4, 6), [2, 3], [[0, 0], [0, 0]]),
        "padded": ((1, 2, 3, 4), [2, 2], [[0, 1], [2, 0]]),
        "one-way": ((2, 1, 2, 4), [1, 2], [[0, 0], [1, 1]]),
    }
    for name, (shape, block, paddings) in cases.items():
        for dtype in ("float16", "float32"):
            args = {"x": mixed(dtype, *shape), "block_shape": const(block), "paddings": const(paddings)}
            yield Example("space_to_batch", f"{name}-{dtype}", args)


@examples_of("batch_to_space")
def batch_to_space() -> Iterator[Example]:
    cases = {
        "plain": ((12, 3, 2, 2), [2, 3], [[0, 0], [0, 0]]),
        "cropped": ((4, 2, 2, 3), [2, 2], [[0, 1], [2, 0]]),
        "one-way": ((4, 1, 2, 3), [1, 2], [[0, 0], [1, 1]]),
    }
    for name, (shape, block, crops) in cases.items():
        for dtype in ("float16", "float32"):
            args = {"x": mixed(dtype, *shape), "block_shape": const(block), "crops": const(crops)}
            yield Example("batch_to_space", f"{name}-{dtype}", args)
