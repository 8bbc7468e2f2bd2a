"""Examples of reading, writing and sorting by index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import const, fp16, int32
from anex.mil.examples.case import Argument, Array, Example, examples_of, rng
from anex.mil.examples.data import BEFORE_IOS17, NUMBERS, distinct, mixed
from anex.mil.types import DType

X = mixed("float16", 4, 5, 6)
_INDEX_TYPES = ("int8", "int16", "int32", "uint8", "uint16")


def _indices(seed: str, limit: int, *shape: int, dtype: str = "int32") -> Array:
    return rng(seed).integers(0, limit, shape).astype(dtype)


# --- gather -------------------------------------------------------------------


@examples_of("gather")
def gather() -> Iterator[Example]:
    for axis in (0, 1, 2, -1, -3):
        for rank, shape in enumerate(((), (3,), (2, 3))):
            args = {"x": X, "indices": _indices("gather", 4, *shape), "axis": const(axis)}
            yield Example("gather", f"axis{axis}-rank{rank}", args)
    for batch, axis in ((1, 1), (1, 2), (2, 2), (1, -1)):
        indices = _indices("batched", 5, *X.shape[:batch], 3)
        args = {"x": X, "indices": indices, "axis": const(axis), "batch_dims": const(batch)}
        yield Example("gather", f"batch{batch}-axis{axis}", args)
    yield Example("gather", "batch-all", {
        "x": X, "indices": _indices("rows", 5, 4), "axis": const(1), "batch_dims": const(1),
    })  # fmt: skip
    for dtype in NUMBERS:
        yield Example("gather", dtype, {"x": mixed(dtype, 7, 2), "indices": _indices(dtype, 7, 4)})
    for dtype in _INDEX_TYPES:
        args = {"x": X, "indices": _indices("types", 4, 3, dtype=dtype), "validate_indices": const(False)}
        yield Example("gather", f"indices-{dtype}", args)
    yield Example("gather", "const", {"x": X, "indices": const([3, 0, 3]), "validate_indices": const(True)})
    for opset in ("ios15", "ios16"):
        yield Example(
            "gather", f"negative-{opset}", {"x": X, "indices": np.array([-1, 0, -4], np.int32)}, opset
        )
    yield Example("gather", "to-scalar", {"x": X[0, 0], "indices": np.array(2, np.int32)})


@examples_of("gather_along_axis")
def gather_along_axis() -> Iterator[Example]:
    for axis, shape in ((0, (3, 5, 6)), (1, (4, 1, 6)), (2, (4, 5, 8)), (-1, (4, 5, 2)), (-3, (1, 5, 6))):
        args = {"x": X, "indices": _indices("along", 4, *shape), "axis": const(axis)}
        yield Example("gather_along_axis", f"axis{axis}", args)
    for dtype in NUMBERS:
        args = {"x": mixed(dtype, 7), "indices": _indices(dtype, 7, 4)}
        yield Example("gather_along_axis", dtype, args)
    for dtype in _INDEX_TYPES:
        args = {"x": X[0], "indices": _indices("types", 5, 2, 6, dtype=dtype), "axis": const(0)}
        yield Example("gather_along_axis", f"indices-{dtype}", args)
    negative = {"x": X[0], "indices": np.full((1, 6), -2, np.int32)}
    yield Example("gather_along_axis", "negative-ios16", negative, "ios16")


@examples_of("gather_nd")
def gather_nd() -> Iterator[Example]:
    for depth in (1, 2, 3):
        for shape in ((3,), (2, 2)):
            args = {"x": X, "indices": _indices("nd", 4, *shape, depth)}
            yield Example("gather_nd", f"depth{depth}-rank{len(shape)}", args)
    for batch, depth in ((1, 1), (1, 2), (2, 1)):
        indices = _indices("nd-batch", 5, *X.shape[:batch], 3, depth)
        yield Example("gather_nd", f"batch{batch}-depth{depth}", {
            "x": X, "indices": indices, "batch_dims": const(batch),
        })  # fmt: skip
    for dtype in NUMBERS:
        yield Example("gather_nd", dtype, {"x": mixed(dtype, 7, 2), "indices": _indices(dtype, 2, 4, 2)})
    for dtype in _INDEX_TYPES:
        yield Example(
            "gather_nd", f"indices-{dtype}", {"x": X, "indices": _indices("nd", 4, 3, 1, dtype=dtype)}
        )
    negative = {"x": X, "indices": np.array([[-1, -5], [0, -1]], np.int32)}
    yield Example("gather_nd", "negative-ios15", negative, "ios15")


# --- scatter ------------------------------------------------------------------

_MODES = ("add", "sub", "mul", "div", "max", "min", "update")


def _modes(kind: str, data: Array, indices: Array, updates: Array, **more: Argument) -> Iterator[Example]:
    for mode in _MODES:
        args: dict[str, Argument] = {
            "data": data,
            "indices": indices,
            "updates": updates,
            "mode": const(mode),
        }
        yield Example(kind, f"{mode}-{data.dtype}", args | more)
        if mode != "div":
            whole = {"data": int32("data", *data.shape), "updates": int32("updates", *updates.shape, low=1)}
            yield Example(kind, f"{mode}-int32", args | more | whole)


@examples_of("scatter")
def scatter() -> Iterator[Example]:
    data, updates = fp16("data", 4, 5, 6), fp16("updates", 4, 3, 6, low=0.5)
    at = np.array([4, 0, 2], np.int32)
    yield from _modes("scatter", data, at, updates, axis=const(1))
    for axis, shape in ((0, (3, 5, 6)), (-1, (4, 5, 3)), (-3, (3, 5, 6))):
        args: dict[str, Argument] = {"data": data, "indices": np.array([3, 0, 2], np.int32)}
        args |= {"updates": fp16("updates", *shape), "axis": const(axis), "validate_indices": const(False)}
        yield Example("scatter", f"axis{axis}", args)
    twice = {"data": data[0], "indices": np.array([1, 1, 4], np.int32), "updates": fp16("twice", 3, 6)}
    yield Example("scatter", "same-place-twice", twice, scale=6.0)
    yield Example(
        "scatter", "moved", {"data": X, "indices": at[1:], "updates": X[:2], "mode": const("update")}
    )
    old = {"data": data, "indices": np.array([-1, 1], np.int32), "updates": fp16("old", 2, 5, 6)}
    yield Example("scatter", "negative-ios15", old, "ios15")


@examples_of("scatter_along_axis")
def scatter_along_axis() -> Iterator[Example]:
    data, updates = fp16("data", 4, 5), fp16("updates", 4, 3, low=0.5)
    indices = np.array([[0, 1, 2], [4, 3, 2], [1, 0, 4], [3, 1, 0]], np.int32)
    yield from _modes("scatter_along_axis", data, indices, updates, axis=const(1))
    first = {"data": data, "indices": np.array([[3, 0, 1, 2, 0]], np.int32), "updates": fp16("first", 1, 5)}
    yield Example("scatter_along_axis", "axis0", first)
    yield Example("scatter_along_axis", "negative-axis", {**first, "axis": const(-2), "mode": const("max")})


@examples_of("scatter_nd")
def scatter_nd() -> Iterator[Example]:
    data, rows = fp16("data", 4, 5, 6), np.array([[0, 1], [3, 4], [2, 2]], np.int32)
    yield from _modes("scatter_nd", data, rows, fp16("updates", 3, 6, low=0.5))
    single = {"data": data, "indices": np.array([[2], [0]], np.int32), "updates": fp16("single", 2, 5, 6)}
    yield Example("scatter_nd", "depth1", single)
    full = {
        "data": data,
        "indices": np.array([[[1, 2, 3]], [[3, 0, 5]]], np.int32),
        "updates": fp16("full", 2, 1),
    }
    yield Example("scatter_nd", "depth3", full)
    yield Example("scatter_nd", "depth3-ios15", full, "ios15")


# --- topk, argsort ------------------------------------------------------------


@examples_of("topk")
def topk() -> Iterator[Example]:
    x = distinct("float16", 3, 8, 5)
    for axis in (0, 1, 2, -1, -2):
        for ascending in (False, True):
            args = {"x": x, "k": const(3), "axis": const(axis), "ascending": const(ascending)}
            yield Example("topk", f"axis{axis}-{'up' if ascending else 'down'}", args, outputs=2)
    for dtype in NUMBERS:
        args = {"x": distinct(dtype, 4, 9), "k": const(4), "output_indices_dtype": const("uint16")}
        yield Example("topk", dtype, args, outputs=2)
    args = {"x": x, "k": const(5), "return_indices": const(False), "sort": const(True)}
    yield Example("topk", "values-only", args)
    yield Example("topk", "values-only-ios16", args, "ios16")
    yield Example("topk", "all", {"x": x, "k": const(8), "axis": const(1)}, outputs=2)
    yield Example("topk", "default-ios15", {"x": x}, "ios15", outputs=2)
    special = np.array([[np.inf, -np.inf, 1, 2.0**-24, -65504, 65504]], np.float16)
    yield Example("topk", "special", {"x": special, "k": const(6)}, outputs=2)
    yield Example("topk", "k-int8", {"x": x, "k": const(2, DType.INT8)}, outputs=2)


@examples_of("argsort")
def argsort() -> Iterator[Example]:
    for dtype in ("float16", "float32", "int32"):
        x = distinct(dtype, 3, 4, 5)
        for axis in (0, 1, -1):
            for ascending in (False, True):
                args = {"x": x, "axis": const(axis), "ascending": const(ascending)}
                yield Example("argsort", f"{dtype}-axis{axis}-{'up' if ascending else 'down'}", args)
    yield Example("argsort", "default", {"x": distinct("float16", 3, 7)}, "ios15")
    special = np.array([np.inf, -np.inf, 1, 2.0**-24, -65504, 65504], np.float16)
    yield Example("argsort", "special", {"x": special})


# --- one_hot ------------------------------------------------------------------


@examples_of("one_hot")
def one_hot() -> Iterator[Example]:
    indices = np.array([[0, 3, 1], [2, 2, 0]], np.int32)
    for axis in (-1, 0, 1, 2, -3):
        args: dict[str, Argument] = {"indices": indices, "one_hot_vector_size": const(4), "axis": const(axis)}
        yield Example("one_hot", f"axis{axis}", args)
    for dtype in BEFORE_IOS17:
        on, off = mixed(dtype, 40)[[0, 1]] if dtype != "bool" else np.array([True, False])
        values = {"on_value": const(np.asarray(on)), "off_value": const(np.asarray(off))}
        args = {"indices": indices, "one_hot_vector_size": const(5), **values}
        yield Example("one_hot", dtype, args, "ios15")
    yield Example("one_hot", "scalar", {"indices": np.array(2, np.int32), "one_hot_vector_size": const(3)})
