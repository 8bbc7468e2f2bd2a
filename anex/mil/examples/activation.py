"""Examples of activations and softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from anex.mil.examples.build import const, fp16, fp32
from anex.mil.examples.case import ADVERSARIAL_FP16, Array, Example, examples_of
from anex.mil.ir import Literal
from anex.mil.types import DType

_PLAIN = ("relu", "relu6", "sigmoid", "silu", "softplus", "softsign")


@examples_of(*_PLAIN)
def plain() -> Iterator[Example]:
    for kind in _PLAIN:
        yield Example(kind, "adversarial", {"x": ADVERSARIAL_FP16}, fp32=2e-6)
        yield Example(kind, "fp16", {"x": fp16(kind, 1, 9, 5, 16, low=-18, high=18)}, fp32=2e-6)
        yield Example(kind, "fp32", {"x": fp32(kind, 3, 4, 5, low=-40, high=40)}, "ios15", fp32=4e-6)


_CONSTANTS: Mapping[str, tuple[float, ...]] = {
    "elu": (1.5,),
    "leaky_relu": (0.125,),
    "thresholded_relu": (0.75,),
    "clamped_relu": (0.25, 2.5),
    "linear_activation": (-1.5, 0.25),
    "scaled_tanh": (1.5, 0.75),
    "sigmoid_hard": (0.2, 0.5),
}


@examples_of(*_CONSTANTS)
def with_constants() -> Iterator[Example]:
    for kind, values in _CONSTANTS.items():
        args = dict(zip(("alpha", "beta"), values, strict=False))

        def call(x: Array, dtype: DType, args: Mapping[str, float] = args) -> dict[str, Array | Literal]:
            return {"x": x, **{name: const(v, dtype) for name, v in args.items()}}

        scale = 1.0 if kind == "linear_activation" else None
        yield Example(kind, "adversarial", call(ADVERSARIAL_FP16, DType.FP16), fp32=2e-6, scale=scale)
        yield Example(kind, "fp16", call(fp16(kind, 2, 3, 5, 7), DType.FP16), "ios15", fp32=2e-6, scale=scale)
        yield Example(kind, "mixed", call(fp16(kind, 4, 5), DType.FP32), fp32=2e-6, scale=scale)
        yield Example(kind, "fp32", call(fp32(kind, 31), DType.FP32), "ios16", fp32=4e-6, scale=scale)


@examples_of("clamped_relu", "elu")
def negative_constants() -> Iterator[Example]:
    x = fp16("negative", 5, 5)
    yield Example("clamped_relu", "beta-negative", {"x": x, "alpha": const(0.5, x), "beta": const(-1.0, x)})
    yield Example("elu", "alpha-negative", {"x": x, "alpha": const(-0.5, x)})


@examples_of("prelu", "softplus_parametric")
def per_channel() -> Iterator[Example]:
    x = fp16("prelu", 2, 3, 4, 5)
    alpha, beta = (
        const(np.array([0.25, -0.5, 1.5], np.float16)),
        const(np.array([1.0, 2.0, -0.5], np.float16)),
    )
    yield Example("prelu", "rank4", {"x": x, "alpha": alpha})
    same = const(np.full(5, 0.25, np.float16))
    yield Example("prelu", "rank3", {"x": fp16("prelu3", 2, 5, 3), "alpha": same}, "ios15")
    yield Example("prelu", "rank5", {"x": fp16("prelu5", 1, 5, 2, 3, 2), "alpha": same})
    column = ADVERSARIAL_FP16[None, :, None, None]
    tenth = const(np.full(26, 0.1, np.float16))
    yield Example("prelu", "adversarial", {"x": column, "alpha": tenth})
    yield Example("softplus_parametric", "rank4", {"x": x, "alpha": alpha, "beta": beta}, "ios15", fp32=2e-6)
    wide = {"alpha": const([0.5, 2.0, 3.0]), "beta": const([9.0, -9.0, 0.5])}
    yield Example(
        "softplus_parametric", "fp32", {"x": fp32("sp", 1, 3, 9, low=-20, high=20), **wide}, fp32=4e-6
    )
    ones = const(np.ones(26, np.float16))
    args = {"x": column, "alpha": ones, "beta": ones}
    yield Example("softplus_parametric", "adversarial", args, fp32=2e-6)


@examples_of("gelu")
def gelu() -> Iterator[Example]:
    x = fp16("gelu", 1, 6, 5, 8, low=-7, high=7)
    for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"):
        yield Example("gelu", mode, {"x": x, "mode": const(mode)}, fp32=1e-5)
        yield Example("gelu", f"{mode}-adversarial", {"x": ADVERSARIAL_FP16, "mode": const(mode)}, fp32=1e-5)
        wide = fp32("gelu", 40, low=-5, high=9)
        yield Example("gelu", f"{mode}-fp32", {"x": wide, "mode": const(mode)}, "ios15", fp32=1e-5)
    yield Example("gelu", "default", {"x": x}, fp32=1e-5)


@examples_of("softmax")
def softmax() -> Iterator[Example]:
    x = fp16("softmax", 2, 3, 5, 7, low=-9, high=9)
    for axis in (-1, 0, 1, 2, -3):
        yield Example("softmax", f"axis{axis}", {"x": x, "axis": const(axis)}, fp32=4e-6)
    yield Example(
        "softmax", "default", {"x": fp16("softmax1", 1, 2, 17, low=-20, high=20)}, "ios15", fp32=4e-6
    )
    masked = x.copy()
    masked[..., 4:] = -1e4
    yield Example("softmax", "masked", {"x": masked, "axis": const(-1)}, fp32=4e-6)
    masked[..., 5:] = -np.inf
    yield Example("softmax", "minus-infinity", {"x": masked, "axis": const(3)}, fp32=4e-6)
    extremes = np.array([[65504, 65504, 1, -65504], [-65504, -65504, -65504, -65504]], np.float16)
    yield Example("softmax", "extremes", {"x": extremes, "axis": const(1)})
    yield Example("softmax", "not-a-number", {"x": np.array([[np.nan, 1], [2, 1]], np.float16)})
    yield Example("softmax", "fp32", {"x": fp32("softmax", 3, 9, low=-80, high=80)}, fp32=1e-5)
    yield Example("softmax", "one", {"x": fp16("one", 4, 1)})
