"""Examples of reshaping, reordering, joining and cutting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from anex.mil.examples.build import const, fp16
from anex.mil.examples.case import ADVERSARIAL_FP16, Array, Example, examples_of
from anex.mil.examples.data import ALL, BEFORE_IOS17, in_opset, mixed
from anex.mil.ir import Literal
from anex.mil.types import DType

X = mixed("float16", 2, 3, 4, 5)


def _vectors(kind: str, parameter: str, cases: dict[str, tuple[Array, list[int]]]) -> Iterator[Example]:
    for name, (x, value) in cases.items():
        yield Example(kind, name, {"x": x, parameter: const(value)})


def _every_dtype(kind: str, dtypes: tuple[str, ...] = ALL, **constants: Any) -> Iterator[Example]:
    """One example for each dtype, in the oldest or the newest opset."""
    arguments = {name: const(value) for name, value in constants.items()}
    for dtype, opset in in_opset(dtypes):
        yield Example(kind, f"{dtype}-{opset}", {"x": mixed(dtype, 2, 3, 4)} | arguments, opset)


# --- reshape ------------------------------------------------------------------


@examples_of("reshape")
def reshape() -> Iterator[Example]:
    cases = {
        "rest": (X, [6, -1]),
        "rest-first": (X, [-1, 5]),
        "copy": (X, [0, -1, 0, 0]),
        "copy-right": (X, [0, -1, 0]),
        "copy-beyond": (mixed("float16", 2, 50), [1, 0, -1, 0]),
        "flat": (X, [120]),
        "longer": (X, [1, 2, 3, 2, 2, 5]),
        "scalar-in": (np.array(7, np.float16), [1, 1]),
        "to-scalar": (np.full((1, 1), 3, np.float16), []),
    }
    yield from _vectors("reshape", "shape", cases)
    yield from _every_dtype("reshape", shape=[4, -1])
    yield Example("reshape", "copy-ios15", {"x": X, "shape": const([0, 12, 1, 0])}, "ios15")
    for dtype in (DType.INT8, DType.INT16):
        shape = Literal.of([3, -1, 2], dtype)
        yield Example("reshape", f"shape-{dtype.value}", {"x": X, "shape": shape})


@examples_of("reshape_like")
def reshape_like() -> Iterator[Example]:
    def call(name: str, x: Array, refs: tuple[Array, ...], begins: Any, ends: Any, masks: Any) -> Example:
        args: Any = {
            "x": x,
            "ref_tensors": refs,
            "begins": tuple(map(const, begins)),
            "ends": tuple(map(const, ends)),
            "end_masks": tuple(map(const, masks)),
        }
        return Example("reshape_like", name, args, "ios17" if x.dtype in (np.int8, np.uint16) else "ios16")

    refs = (np.zeros((2, 3, 4), np.float16), np.zeros((1, 5, 6), np.int32))
    for dtype in (*BEFORE_IOS17, "int8", "uint16"):
        yield call(f"documented-{dtype}", mixed(dtype, 30, 6), refs, [0, 1], [2, 0], [False, True])
    yield call("one", mixed("float16", 24), refs[:1], [0], [3], [False])
    yield call("negative", mixed("float16", 4, 6), refs, [-1, -1], [3, 7], [True, True])


# --- transpose, expand_dims, squeeze, flatten2d -------------------------------


@examples_of("transpose")
def transpose() -> Iterator[Example]:
    cases = {
        "nchw-nhwc": (X, [0, 2, 3, 1]),
        "reverse": (X, [3, 2, 1, 0]),
        "same": (X, [0, 1, 2, 3]),
        "negative": (X, [0, 1, -1, -2]),
        "vector": (X[0, 0, 0], [0]),
        "matrix": (X[0, 0], [1, 0]),
        "ones": (mixed("float16", 1, 3, 1, 4), [2, 1, 0, 3]),
    }
    yield from _vectors("transpose", "perm", cases)
    yield from _every_dtype("transpose", perm=[2, 0, 1])


@examples_of("expand_dims")
def expand_dims() -> Iterator[Example]:
    cases = {
        "first": (X, [0]),
        "last": (X, [-1]),
        "both": (X[0], [0, -1]),
        "unsorted": (X[0, 0], [3, 0]),
        "negative": (X[0, 0], [-3, -1]),
        "scalar": (np.array(-0.0, np.float16), [0]),
    }
    yield from _vectors("expand_dims", "axes", cases)
    yield from _every_dtype("expand_dims", axes=[1])


@examples_of("squeeze")
def squeeze() -> Iterator[Example]:
    x = mixed("float16", 1, 3, 1, 4, 1)
    cases = {
        "one": (x, [0]),
        "negative": (x, [-1, -3]),
        "unsorted": (x, [4, 0]),
        "not-single": (x, [0, 1]),
        "to-scalar": (x[:, :1, :, :1], [0, 1, 2, 3, 4]),
    }
    yield from _vectors("squeeze", "axes", cases)
    yield Example("squeeze", "all", {"x": x})
    for dtype, opset in in_opset():
        yield Example("squeeze", f"{dtype}-{opset}", {"x": mixed(dtype, 3, 1, 4), "axes": const([1])}, opset)


@examples_of("flatten2d")
def flatten2d() -> Iterator[Example]:
    for axis in (-4, -1, 0, 1, 2, 4):
        yield Example("flatten2d", f"axis{axis}", {"x": X, "axis": const(axis)})
    yield Example("flatten2d", "vector", {"x": X[0, 0, 0], "axis": const(-1)})
    yield from _every_dtype("flatten2d", BEFORE_IOS17)


# --- concat, stack, split -----------------------------------------------------


@examples_of("concat")
def concat() -> Iterator[Example]:
    def call(name: str, axis: int, *values: Array, interleave: bool = False) -> Example:
        args: Any = {"values": values, "axis": const(axis), "interleave": const(interleave)}
        return Example("concat", name, args)

    x, y = mixed("float16", 2, 3, 4), fp16("concat", 2, 3, 4)
    for axis in (0, 1, 2, -1, -3):
        yield call(f"axis{axis}", axis, x, y)
        yield call(f"interleave{axis}", axis, x, y, x, interleave=True)
    yield call("uneven", 1, x, fp16("more", 2, 1, 4), fp16("most", 2, 7, 4))
    yield call("single", 0, x)
    yield call("vectors", 0, x[0, 0], y[0, 0])
    yield call("scalars", 0, x[0, 0, 0], y[0, 0, 0])
    yield call("documented", 0, np.array([[1, 2], [3, 4], [5, 6]], np.int32),
               np.array([[7, 8], [9, 10], [11, 12]], np.int32), interleave=True)  # fmt: skip
    for dtype in ALL:
        yield call(dtype, -1, mixed(dtype, 2, 3), mixed(dtype, 2, 5))
    default: Any = {"values": (x, y), "axis": const(1)}
    yield Example("concat", "default", default, "ios15")


@examples_of("stack")
def stack() -> Iterator[Example]:
    x, y = mixed("float16", 2, 3), fp16("stack", 2, 3)
    for axis in (0, 1, 2, -1, -3):
        args: Any = {"values": (x, y, x), "axis": const(axis)}
        yield Example("stack", f"axis{axis}", args)
    for dtype in ALL:
        args = {"values": (mixed(dtype, 4), mixed(dtype, 4)), "axis": const(0)}
        yield Example("stack", dtype, args)
    scalars: Any = {"values": (x[0, 0], y[1, 1]), "axis": const(0)}
    yield Example("stack", "scalars", scalars)


@examples_of("split")
def split() -> Iterator[Example]:
    for axis, count in ((0, 2), (1, 3), (2, 2), (-1, 5), (-2, 1)):
        args = {"x": X, "num_splits": const(count), "axis": const(axis)}
        yield Example("split", f"even-axis{axis}", args, outputs=count)
    for axis, sizes in ((2, [1, 3]), (-1, [2, 1, 2]), (1, [3])):
        args = {"x": X, "split_sizes": const(sizes), "axis": const(axis)}
        yield Example("split", f"sizes-axis{axis}", args, outputs=len(sizes))
    both = {"x": X, "num_splits": const(2), "split_sizes": const([4, 1]), "axis": const(3)}
    yield Example("split", "both", both, outputs=2)
    for dtype in BEFORE_IOS17:
        args = {"x": mixed(dtype, 3, 4), "num_splits": const(2), "axis": const(1)}
        yield Example("split", dtype, args, "ios15", outputs=2)


# --- tile, pad, reverse, shape ------------------------------------------------


@examples_of("tile")
def tile() -> Iterator[Example]:
    cases = {
        "one-axis": (X, [1, 1, 3, 1]),
        "all": (X[0, 0], [2, 3]),
        "none": (X, [1, 1, 1, 1]),
        "vector": (X[0, 0, 0], [4]),
        "broadcast": (mixed("float16", 1, 3, 1), [2, 1, 5]),
    }
    yield from _vectors("tile", "reps", cases)
    yield from _every_dtype("tile", BEFORE_IOS17, reps=[2, 1, 2])


@examples_of("pad")
def pad() -> Iterator[Example]:
    def call(name: str, x: Array, amounts: list[int], mode: str, value: float = 0.0) -> Example:
        args = {"x": x, "pad": const(amounts), "mode": const(mode), "constant_val": const(value, x)}
        return Example("pad", f"{mode}-{name}", args)

    for mode in ("constant", "reflect", "replicate"):
        yield call("last", X, [2, 1], mode)
        yield call("last-two", X, [1, 0, 3, 4], mode)
        yield call("all", X, [1, 1, 0, 2, 1, 2, 0, 1], mode)
        yield call("none", X, [0, 0], mode)
        yield call("fp32", mixed("float32", 3, 4), [1, 1, 1, 1], mode)
        yield call("vector", ADVERSARIAL_FP16, [5, 3], mode)
    for value in (-1.5, float("inf"), 65504.0, 2.0**-24):
        yield call(f"value{value}", X, [0, 1, 1, 0], "constant", value)
    yield call("longer", mixed("float16", 2, 3), [7, 9], "constant", -0.0)
    yield call("limit", mixed("float16", 2, 3), [2, 2], "reflect")
    yield call("limit", mixed("float16", 2, 3), [3, 3], "replicate")
    yield Example("pad", "default", {"x": X, "pad": const([1, 1])}, "ios15")


@examples_of("reverse")
def reverse() -> Iterator[Example]:
    for axes in ([0], [-1], [1, 3], [0, 1, 2, 3], [-4, 2]):
        yield Example("reverse", f"axes{axes}", {"x": X, "axes": const(axes)})
    yield Example("reverse", "default", {"x": X})
    yield from _every_dtype("reverse", axes=[2])


@examples_of("reverse_sequence")
def reverse_sequence() -> Iterator[Example]:
    def call(name: str, x: Array, lengths: Any, seq: int, batch: int) -> Example:
        args = {"x": x, "lengths": lengths, "seq_axis": const(seq), "batch_axis": const(batch)}
        return Example("reverse_sequence", name, args)

    yield call("batch-first", X, np.array([2, 3], np.int32), 1, 0)
    yield call("batch-last", X, np.array([0, 1, 2, 3, 4], np.int32), 2, 3)
    yield call("negative", X, np.array([4, 2, 0], np.int32), -2, -3)
    yield call("const", X, const([1, 5]), 3, 0)
    for dtype in ALL:
        yield call(dtype, mixed(dtype, 2, 4), np.array([3, 2], np.int8), 1, 0)


@examples_of("shape")
def shape() -> Iterator[Example]:
    yield Example("shape", "rank4", {"x": X})
    yield Example("shape", "vector", {"x": X[0, 0, 0]})
    yield from _every_dtype("shape", BEFORE_IOS17)
