"""Examples of elementwise ops."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import adversarial_pairs, boolean, const, fp16, fp32, int32
from anex.mil.examples.case import ADVERSARIAL_FP16, Example, examples_of
from anex.mil.types import DType

_ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum")
_DIVISION = ("floor_div", "mod")
_COMPARISON = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")


@examples_of(*_ARITHMETIC, *_DIVISION, *_COMPARISON, "real_div")
def binary() -> Iterator[Example]:
    x, y = adversarial_pairs()
    for kind in (*_ARITHMETIC, *_DIVISION, *_COMPARISON, "real_div"):
        yield Example(kind, "adversarial", {"x": x, "y": y})
        yield Example(kind, "fp16", {"x": fp16(kind, 1, 8, 3, 32), "y": fp16(kind + "y", 1, 8, 3, 32)})
        yield Example(kind, "broadcast", {"x": fp16(kind, 2, 1, 5), "y": fp16(kind + "y", 4, 1)}, "ios15")
        yield Example(kind, "fp32", {"x": fp32(kind, 3, 7), "y": fp32(kind + "y", 7)})
        yield Example(kind, "scalar", {"x": fp16(kind, 1, 5, 1, 6), "y": const(0.75, DType.FP16)})
        yield Example(kind, "x-is-const", {"x": const(fp16(kind, 5)), "y": fp16(kind + "y", 3, 5)})


@examples_of(*_ARITHMETIC, *_DIVISION, *_COMPARISON)
def binary_int() -> Iterator[Example]:
    for kind in (*_ARITHMETIC, *_COMPARISON):
        args = {"x": int32(kind, 4, 5), "y": int32(kind + "y", 5)}
        yield Example(kind, "int32", args)
    numbers = np.arange(-9, 10, dtype=np.int32)
    divisors = numbers[numbers != 0]
    for kind in _DIVISION:
        yield Example(kind, "int32", {"x": numbers[:, None], "y": divisors})


@examples_of("pow")
def power() -> Iterator[Example]:
    x, y = adversarial_pairs()
    yield Example("pow", "adversarial", {"x": x, "y": y}, fp32=2e-6)
    yield Example(
        "pow", "rsqrt", {"x": fp16("pow", 1, 1, 4, 9, low=0.001, high=9), "y": const(-0.5, DType.FP16)}
    )
    yield Example("pow", "square", {"x": fp16("pow2", 3, 9), "y": const(2.0, DType.FP16)})
    args = {"x": fp32("pow", 5, 7, low=0.01, high=40), "y": fp32("powy", 7)}
    yield Example("pow", "fp32", args, "ios15", fp32=2e-6)
    yield Example("pow", "int32", {"x": int32("pow", 6, 1), "y": int32("powy", 5, low=0, high=7)})


@examples_of("logical_and", "logical_or", "logical_xor", "logical_not")
def logic() -> Iterator[Example]:
    for kind in ("logical_and", "logical_or", "logical_xor"):
        both = np.array([False, True])
        yield Example(kind, "table", {"x": both[:, None], "y": both})
        yield Example(
            kind, "broadcast", {"x": boolean(kind, 2, 1, 5), "y": boolean(kind + "y", 3, 1)}, "ios15"
        )
    yield Example("logical_not", "table", {"x": np.array([[False, True]])})
    yield Example("logical_not", "rank3", {"x": boolean("not", 2, 3, 5)}, "ios15")


_UNARY = {
    # op: range of the random numbers
    "abs": (-9, 9), "acos": (-1, 1), "asin": (-1, 1), "atan": (-9, 9), "atanh": (-0.999, 0.999),
    "ceil": (-9, 9), "cos": (-30, 30), "cosh": (-9, 9), "erf": (-4, 4), "exp": (-17, 11), "exp2": (-25, 15),
    "floor": (-9, 9), "round": (-9, 9), "sign": (-9, 9), "sin": (-30, 30), "sinh": (-9, 9), "sqrt": (0, 90),
    "square": (-200, 200), "tan": (-7, 7), "tanh": (-6, 6),
}  # fmt: skip


@examples_of(*_UNARY)
def unary() -> Iterator[Example]:
    for kind, (low, high) in _UNARY.items():
        yield Example(kind, "adversarial", {"x": ADVERSARIAL_FP16}, fp32=2e-6)
        yield Example(kind, "fp16", {"x": fp16(kind, 1, 6, 5, 32, low=low, high=high)}, fp32=2e-6)
        yield Example(kind, "fp32", {"x": fp32(kind, 7, 11, low=low, high=high)}, "ios15", fp32=4e-6)


@examples_of("abs", "sign", "square", "exp2")
def unary_int() -> Iterator[Example]:
    for kind in ("abs", "sign", "square"):
        yield Example(kind, "int32", {"x": np.array([[0, 1, -1, 7], [-46340, 46340, 3, -2]], np.int32)})
    yield Example("exp2", "int32", {"x": np.arange(31, dtype=np.int32)})


@examples_of("round", "floor", "ceil")
def halves() -> Iterator[Example]:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49976, -0.49976, 1023.5, 1024.5, 2047.5], np.float16)
    for kind in ("round", "floor", "ceil"):
        yield Example(kind, "halves", {"x": x})


@examples_of("inverse", "log", "rsqrt")
def with_epsilon() -> Iterator[Example]:
    x = fp16("eps", 3, 8, low=0.01, high=20)
    for kind in ("inverse", "log", "rsqrt"):
        scale = 1.0 if kind == "log" else None
        yield Example(kind, "adversarial", {"x": ADVERSARIAL_FP16, "epsilon": const(0.0, x)}, scale=scale)
        yield Example(kind, "default", {"x": ADVERSARIAL_FP16}, scale=scale)
        yield Example(kind, "epsilon", {"x": x, "epsilon": const(0.25, x)}, "ios15", scale=scale)
        args = {"x": x, "epsilon": const(0.1, DType.FP32)}
        yield Example(kind, "epsilon-fp32", args, scale=scale)
        args = {"x": fp32(kind, 5, 5, low=0.001, high=90)}
        yield Example(kind, "fp32", args, scale=scale)
        yield Example(kind, "fp32-zero", {"x": np.array([0.0, 1.0, 4.0], np.float32)}, scale=scale)


@examples_of("clip", "threshold")
def bounds() -> Iterator[Example]:
    x = fp16("clip", 1, 4, 3, 8)
    yield Example(
        "clip", "adversarial", {"x": ADVERSARIAL_FP16, "alpha": const(-2.0, x), "beta": const(5.5, x)}
    )
    yield Example("clip", "fp16", {"x": x, "alpha": const(-1.0, x), "beta": const(0.5, x)}, "ios15")
    wide = fp32("clip", 9)
    inf = float("inf")
    yield Example("clip", "fp32", {"x": wide, "alpha": const(0.0, wide), "beta": const(inf, wide)})
    yield Example("threshold", "adversarial", {"x": ADVERSARIAL_FP16, "alpha": const(-2.0, x)})
    yield Example("threshold", "fp32", {"x": wide, "alpha": const(0.5, wide)}, "ios15")
    yield Example("threshold", "int32", {"x": int32("threshold", 3, 5), "alpha": const(2)})


@examples_of("select")
def selection() -> Iterator[Example]:
    cond, a, b = boolean("select", 4, 26), np.tile(ADVERSARIAL_FP16, (4, 1)), fp16("select", 4, 26)
    yield Example("select", "adversarial", {"cond": cond, "a": a, "b": b})
    yield Example(
        "select", "broadcast", {"cond": boolean("s", 3, 1), "a": fp16("a", 1, 5), "b": fp16("b", 3, 1)}
    )
    yield Example("select", "scalar", {"cond": cond, "a": const(-1e4, b), "b": b}, "ios15")
    ints = {"a": int32("a", 4, 26), "b": const(0)}
    yield Example("select", "int32", {"cond": cond, **ints})
    yield Example("select", "bool", {"cond": cond, "a": boolean("a", 4, 26), "b": boolean("b", 4, 26)})
    yield Example("select", "fp32", {"cond": boolean("t", 7), "a": fp32("a", 2, 7), "b": fp32("b", 2, 7)})
