"""Examples of reductions and the running sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import big, const, fp16, fp32, int32, small
from anex.mil.examples.case import Array, Example, examples_of

_OVER_AXES = (
    "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square",
)  # fmt: skip
_POSITIVE = {"reduce_log_sum"}
_CANCEL = {"reduce_mean": 3.0, "reduce_sum": 30.0, "reduce_log_sum": 1.0, "reduce_log_sum_exp": 1.0}
_WITHOUT_SCALE = {"reduce_log_sum", "reduce_log_sum_exp"}


@examples_of(*_OVER_AXES)
def over_axes() -> Iterator[Example]:
    calls = {
        "last-keep": ([-1], True), "first": ([0], False), "middle": ([1, 2], False),
        "all": ([0, 1, 2, 3], False), "all-keep": ([0, 1, 2, 3], True), "mixed-keep": ([-2, 0], True),
    }  # fmt: skip
    for kind in _OVER_AXES:
        low, scale = 0.1 if kind in _POSITIVE else -2.0, _CANCEL.get(kind)
        x, wide = fp16(kind, 2, 3, 5, 4, low=low, high=2), fp32(kind, 3, 11, low=low, high=2)
        for name, (axes, keep) in calls.items():
            args = {"x": x, "axes": const(axes), "keep_dims": const(keep)}
            yield Example(kind, name, args, fp32=4e-6, scale=scale)
        yield Example(kind, "default", {"x": x}, "ios15", fp32=4e-6, scale=scale)
        yield Example(kind, "fp32", {"x": wide, "axes": const([1])}, fp32=4e-6, scale=scale)
        yield Example(
            kind, "vector", {"x": wide[0], "axes": const([0]), "keep_dims": const(True)}, scale=scale
        )


@examples_of(*_OVER_AXES)
def extremes() -> Iterator[Example]:
    odd = np.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 0, 3], [0, -0.0, 0]], np.float16)
    for kind in _OVER_AXES:
        scale = 2e5 if kind in _CANCEL else None
        axes = const([-1])
        yield Example(kind, "big", {"x": big(4, 9), "axes": axes}, fp32=4e-6, scale=scale)
        tiny = small(4, 9)
        scale = 1e-3 if kind in {"reduce_sum", "reduce_mean"} else 1.0 if kind in _WITHOUT_SCALE else None
        tiny = np.abs(tiny) if kind in _POSITIVE else tiny
        yield Example(kind, "small", {"x": tiny, "axes": axes}, fp32=4e-6, scale=scale)
        yield Example(kind, "special", {"x": odd, "axes": axes}, scale=_CANCEL.get(kind))


@examples_of(*_OVER_AXES)
def over_axes_int() -> Iterator[Example]:
    for kind in _OVER_AXES:
        if kind not in _WITHOUT_SCALE:
            args = {"x": int32(kind, 3, 4, 2), "axes": const([1]), "keep_dims": const(False)}
            yield Example(kind, "int32", args)


@examples_of("reduce_argmax", "reduce_argmin")
def indices() -> Iterator[Example]:
    ties = np.array([[3, 1, 3, 1], [0, 0, 0, 0], [-5, 7, 7, -5]])
    for kind in ("reduce_argmax", "reduce_argmin"):
        x = fp16(kind, 3, 5, 4)
        for axis, keep in ((-1, True), (0, False), (1, True), (-2, False)):
            args = {"x": x, "axis": const(axis), "keep_dims": const(keep)}
            yield Example(kind, f"axis{axis}", args)
        yield Example(kind, "default", {"x": fp32(kind, 2, 9)}, "ios15")
        yield Example(kind, "uint16", {"x": x, "axis": const(1), "output_dtype": const("uint16")})
        yield Example(kind, "ties", {"x": ties.astype(np.float16), "axis": const(1)})
        yield Example(kind, "int32", {"x": ties.astype(np.int32), "axis": const(-1)})
        odd = np.array([[np.nan, np.inf, 1], [1, np.nan, -np.inf], [-np.inf, np.inf, np.inf]], np.float16)
        yield Example(kind, "special", {"x": odd})


@examples_of("cumsum")
def running_sum() -> Iterator[Example]:
    def call(x: Array, axis: int, exclusive: bool, reverse: bool) -> Example:
        name = f"axis{axis}{'-exclusive' * exclusive}{'-reverse' * reverse}-{x.dtype}"
        args = {"x": x, "axis": const(axis), "exclusive": const(exclusive), "reverse": const(reverse)}
        return Example("cumsum", name, args, fp32=2e-6, scale=9.0)

    for exclusive in (False, True):
        for reverse in (False, True):
            yield call(fp16("cumsum", 3, 5, 2), 1, exclusive, reverse)
            yield call(int32("cumsum", 4, 3), -1, exclusive, reverse)
    yield call(fp32("cumsum", 7), 0, False, False)
    yield Example("cumsum", "default", {"x": fp16("cumsum", 3, 5, 2)}, "ios15", scale=9.0)
    yield Example("cumsum", "overflow", {"x": np.abs(big(2, 5)), "axis": const(1)})
    yield Example("cumsum", "small", {"x": small(2, 9), "axis": const(1)}, scale=1e-3)
