"""Examples of slices, with limits known to the program and passed at run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anex.mil.examples.build import const, fp16
from anex.mil.examples.case import Argument, Array, Example, examples_of
from anex.mil.examples.data import ALL, in_opset, mixed
from anex.mil.ir import Literal
from anex.mil.types import DType

X = mixed("float16", 4, 5, 6)

_CUTS: dict[str, dict[str, list[Any]]] = {
    "plain": {"begin": [0, 1, 2], "end": [4, 5, 5]},
    "negative": {"begin": [-3, -5, 1], "end": [-1, 4, -2]},
    "stride": {"begin": [0, 1, 0], "end": [4, 5, 6], "stride": [3, 2, 4]},
    "backwards": {"begin": [3, 4, 0], "end": [1, 0, 6], "stride": [-1, -3, 1]},
    "backwards-negative": {"begin": [-1, -1, -2], "end": [-4, -5, -5], "stride": [-1, -2, -2]},
    "begin-mask": {"begin": [2, 9, 1], "end": [3, 2, 4], "begin_mask": [False, True, False]},
    "end-mask": {"begin": [2, 1, -2], "end": [0, 0, 0], "end_mask": [True, True, True]},
    "whole": {
        "begin": [0, 0, 0], "end": [0, 0, 0], "stride": [1, -1, 2],
        "begin_mask": [True] * 3, "end_mask": [True] * 3,
    },
    "backwards-to-start": {
        "begin": [3, 2, 5], "end": [0, 0, 0], "stride": [-2, -1, -4], "end_mask": [True] * 3,
    },
    "squeeze": {"begin": [1, 0, 0], "end": [2, 5, 6], "squeeze_mask": [True, False, False]},
    "squeeze-negative": {"begin": [0, -2, -1], "end": [4, 0, 0], "squeeze_mask": [False, True, True]},
    "squeeze-masked": {
        "begin": [3, 3, 3], "end": [4, 4, 4], "begin_mask": [True, False, False],
        "end_mask": [False, True, False], "squeeze_mask": [True, False, True],
    },
    "single": {"begin": [3, 4, 5], "end": [4, 5, 6]},
    "everything": {"begin": [0, 0, 0], "end": [4, 5, 6]},
}  # fmt: skip


@examples_of("slice_by_index")
def slice_by_index() -> Iterator[Example]:
    for name, cut in _CUTS.items():
        yield Example("slice_by_index", name, {"x": X} | {key: const(v) for key, v in cut.items()})
    squeezed = {"begin": [1, 2, 3], "end": [0, 0, 0], "squeeze_mask": [True] * 3}
    yield Example("slice_by_index", "to-scalar", {"x": X} | {key: const(v) for key, v in squeezed.items()})
    for dtype, opset in in_opset():
        args: dict[str, Argument] = {"x": mixed(dtype, 3, 4), "begin": const([1, 0]), "end": const([3, 4])}
        yield Example("slice_by_index", f"{dtype}-{opset}", args | {"stride": const([1, 3])}, opset)
    for index in (DType.INT8, DType.INT16):
        limits = {"begin": Literal.of([0, 1, -2], index), "end": Literal.of([4, 3, 6], index)}
        yield Example("slice_by_index", f"limits-{index.value}", {"x": X, **limits})


@examples_of("slice_by_size")
def slice_by_size() -> Iterator[Example]:
    cuts = {
        "plain": ([0, 1, 2], [4, 3, 2]),
        "rest": ([1, 0, 3], [-1, -1, -1]),
        "whole": ([0, 0, 0], [4, 5, 6]),
        "last": ([3, 4, 5], [1, 1, 1]),
        "negative": ([-4, -2, -1], [2, 2, 1]),
    }
    for name, (begin, size) in cuts.items():
        yield Example("slice_by_size", name, {"x": X, "begin": const(begin), "size": const(size)})
    at = np.array([1, 2, 0], np.int32)
    yield Example("slice_by_size", "run-time", {"x": X, "begin": at, "size": const([2, 3, 6])})
    for dtype, opset in in_opset():
        args: dict[str, Argument] = {"x": mixed(dtype, 3, 4), "begin": const([1, 1]), "size": const([2, -1])}
        yield Example("slice_by_size", f"{dtype}-{opset}", args, opset)
    small = {"begin": Literal.of([0, 0, 3], DType.INT16), "size": Literal.of([-1, 2, 3], DType.INT16)}
    yield Example("slice_by_size", "limits-int16", {"x": X, **small})


@examples_of("slice_update")
def slice_update() -> Iterator[Example]:
    for name, cut in _CUTS.items():
        part = fp16(name, *_part(X, cut).shape)
        yield Example("slice_update", name, {"x": X, "update": part} | {k: const(v) for k, v in cut.items()})
    for dtype in ALL:
        args: dict[str, Argument] = {"x": mixed(dtype, 3, 4), "update": mixed(dtype, 2, 2)}
        limits = {"begin": const([1, 0]), "end": const([3, 3]), "stride": const([1, 2])}
        yield Example("slice_update", dtype, args | limits)


def _part(x: Array, cut: dict[str, list[Any]]) -> Array:
    off = [False] * x.ndim
    columns = (cut[key] for key in ("begin", "end"))
    masks = (cut.get(key, off) for key in ("begin_mask", "end_mask", "squeeze_mask"))
    strides = cut.get("stride", [1] * x.ndim)
    index = tuple(
        (0 if first else begin) if squeeze else slice(None if first else begin, None if last else end, step)
        for begin, end, first, last, squeeze, step in zip(*columns, *masks, strides, strict=True)
    )
    part: Array = x[index]
    return part


@examples_of("crop")
def crop() -> Iterator[Example]:
    for dtype in ("float16", "float32"):
        x = mixed(dtype, 2, 1, 4, 5)
        for name, height, width in (
            ("both", [1, 2], [0, 3]),
            ("none", [0, 0], [0, 0]),
            ("one", [3, 0], [0, 0]),
        ):
            args = {"x": x, "crop_height": const(height), "crop_width": const(width)}
            yield Example("crop", f"{name}-{dtype}", args)
    args = {"x": mixed("float16", 1, 4, 5), "crop_height": const([1, 1]), "crop_width": const([2, 2])}
    yield Example("crop", "rank3", args, "ios15")


@examples_of("sliding_windows")
def sliding_windows() -> Iterator[Example]:
    for axis, size, stride in ((0, 2, 1), (1, 3, 2), (2, 6, 1), (-1, 2, 3), (-2, 1, 4)):
        args = {"x": X, "axis": const(axis), "size": const(size), "stride": const(stride)}
        yield Example("sliding_windows", f"axis{axis}-size{size}-stride{stride}", args)
    for dtype in ALL:
        yield Example("sliding_windows", dtype, {"x": mixed(dtype, 7), "axis": const(0), "size": const(3)})
    old = {"x": X, "axis": const(0), "size": const(4)}
    yield Example("sliding_windows", "default", old, "ios15")
