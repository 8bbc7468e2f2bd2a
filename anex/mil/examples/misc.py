"""Examples of generated tensors, masks and names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import const
from anex.mil.examples.case import Argument, Example, examples_of
from anex.mil.examples.data import ALL, BEFORE_IOS17, mixed
from anex.mil.ir import Literal
from anex.mil.types import DType

_VALUES = {DType.FP16: 65504.0, DType.FP32: 1e-30, DType.INT32: -(2**31), DType.BOOL: True}


@examples_of("identity")
def identity() -> Iterator[Example]:
    for dtype in ALL:
        yield Example("identity", dtype, {"x": mixed(dtype, 2, 20)})
    yield Example("identity", "scalar", {"x": np.array(-0.0, np.float16)}, "ios15")


@examples_of("fill")
def fill() -> Iterator[Example]:
    yield Example("fill", "default", {"shape": const([2, 3])}, "ios15")
    for dtype, value in _VALUES.items():
        yield Example("fill", dtype.value, {"shape": const([3, 1, 2]), "value": Literal.of(value, dtype)})
    yield Example("fill", "nan", {"shape": const([2]), "value": const(float("nan"), DType.FP16)})


@examples_of("fill_like")
def fill_like() -> Iterator[Example]:
    for name in BEFORE_IOS17:
        yield Example("fill_like", f"default-{name}", {"ref_tensor": mixed(name, 2, 3)}, "ios16")
    for dtype, value in _VALUES.items():
        args: dict[str, Argument] = {"ref_tensor": mixed("float16", 4), "value": Literal.of(value, dtype)}
        yield Example("fill_like", dtype.value, args)


@examples_of("range_1d")
def range_1d() -> Iterator[Example]:
    cases = {
        "up": (0, 7, 1),
        "step": (2, 20, 5),
        "down": (9, -3, -4),
        "exact": (0, 8, 2),
        "one": (5, 6, 10),
    }
    for dtype in (DType.INT32, DType.FP16, DType.FP32):
        for name, limits in cases.items():
            args = {
                key: Literal.of(v, dtype) for key, v in zip(("start", "end", "step"), limits, strict=True)
            }
            yield Example("range_1d", f"{name}-{dtype.value}", args)
    for dtype in (DType.FP16, DType.FP32):
        args = {"start": const(-1.5, dtype), "end": const(2.0, dtype), "step": const(0.625, dtype)}
        yield Example("range_1d", f"fractions-{dtype.value}", args, "ios15")


@examples_of("band_part")
def band_part() -> Iterator[Example]:
    for lower, upper in ((0, -1), (-1, 0), (0, 0), (1, 2), (-1, -1), (9, 1)):
        args: dict[str, Argument] = {
            "x": mixed("float16", 2, 4, 5),
            "lower": const(lower),
            "upper": const(upper),
        }
        yield Example("band_part", f"lower{lower}-upper{upper}", args)
    for dtype in BEFORE_IOS17:
        yield Example("band_part", dtype, {"x": mixed(dtype, 4, 3), "upper": const(0)}, "ios15")
    yield Example("band_part", "default", {"x": mixed("float16", 3, 3)})
