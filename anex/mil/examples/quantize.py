"""Examples of conversions between element types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anex.mil.examples.build import const, fp16, fp32
from anex.mil.examples.case import ADVERSARIAL_FP16, Argument, Array, Example, examples_of, rng
from anex.mil.examples.data import ALL, BEFORE_IOS17
from anex.mil.types import DType

_NAMES = {
    "bool": "bool", "float16": "fp16", "float32": "fp32", "int8": "int8", "int16": "int16",
    "int32": "int32", "uint8": "uint8", "uint16": "uint16",
}  # fmt: skip


def _castable(source: str, target: str) -> Array:
    """Values whose conversion is defined: floats inside the range of an integer target."""
    if source == "bool":
        return np.array([True, False, True])
    kind, aim = np.dtype(source), np.dtype(target)
    limits = [np.iinfo(d) for d in (kind, aim) if d.kind in "iu"]
    low, high = max([-50, *(int(n.min) for n in limits)]), min([100, *(int(n.max) for n in limits)])
    if kind.kind != "f":
        ends = [int(n) for n in (low, 0, 1, 7, high)]
        return np.array(ends, kind)
    fractions = [0.0, -0.0, 0.5, 0.999, 1.5, 2.5, -0.5, -0.999, -1.5, -2.5, high + 0.25, low + 0.25]
    return np.array([v for v in fractions if low <= v], kind)


@examples_of("cast")
def cast() -> Iterator[Example]:
    for source in ALL:
        for target in ALL:
            args: dict[str, Argument] = {"x": _castable(source, target), "dtype": const(_NAMES[target])}
            old = source in BEFORE_IOS17 and target in BEFORE_IOS17
            yield Example("cast", f"{source}-{target}", args, "ios15" if old else "ios18")
    yield from cast_once()


def cast_once() -> Iterator[Example]:
    """Conversions to and from fp16 at its edges: one rounding to nearest even."""
    yield Example("cast", "fp16-wide", {"x": ADVERSARIAL_FP16, "dtype": const("fp32")})
    yield Example("cast", "fp16-bool", {"x": ADVERSARIAL_FP16, "dtype": const("bool")})
    halves = np.array(
        [2049, 2051, 4098, 4102, 65519, 65520, 1e6, -1e6, 2.0**-25, 3 * 2.0**-25, 1 / 3], np.float32
    )
    yield Example("cast", "fp32-narrow", {"x": halves, "dtype": const("fp16")})
    above = np.array([1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-11, 2.0**-25 * (1 + 2.0**-20)], np.float32)
    yield Example("cast", "fp32-just-above-half", {"x": above, "dtype": const("fp16")})
    whole = np.array([2049, 2051, 65504, 65519, 65520, 65536, 2**31 - 1, -(2**31)], np.int32)
    yield Example("cast", "int32-narrow", {"x": whole, "dtype": const("fp16")})
    large = np.array([16777217, -16777219, 2**31 - 65], np.int32)
    yield Example("cast", "int32-fp32", {"x": large, "dtype": const("fp32")})
    ends = np.array([65504, -65504, 2047.5, -2047.5], np.float16)
    yield Example("cast", "fp16-int32", {"x": ends, "dtype": const("int32")})
    yield Example("cast", "scalar", {"x": np.array(2.75, np.float16), "dtype": const("int32")})


_INT8 = {"int8": (-128, 127), "uint8": (0, 255)}


@examples_of("quantize")
def quantize() -> Iterator[Example]:
    for name in _INT8:
        for x in (fp16("q", 2, 3, 4, low=-40, high=40), fp32("q", 2, 3, 4, low=-40, high=40)):
            base: dict[str, Argument] = {"input": x, "output_dtype": const(name)}
            label = f"{name}-{x.dtype}"
            yield Example("quantize", f"scalar-{label}", base | {"scale": const(0.25, x)})
            point = const(np.array(5 if name == "int8" else 128, name))
            yield Example("quantize", f"point-{label}", base | {"scale": const(0.25, x), "zero_point": point})
            for axis in (1, -1):
                size = x.shape[axis]
                scale = const(np.linspace(0.125, 0.5, size).astype(x.dtype))
                points = const(np.arange(size).astype(name))
                args = base | {"scale": scale, "axis": const(axis), "zero_point": points}
                yield Example("quantize", f"axis{axis}-{label}", args)
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.0, -0.0, 200, -200, np.inf, -np.inf, 65504], np.float16)
    args = {"input": ties, "output_dtype": const("int8"), "scale": const(1.0, ties)}
    yield Example("quantize", "ties-and-clipping", args, "ios17")


@examples_of("dequantize")
def dequantize() -> Iterator[Example]:
    for name, (low, high) in _INT8.items():
        x = rng(name).integers(low, high + 1, (2, 3, 4)).astype(name)
        x[0, 0, :2] = (low, high)
        for dtype in (DType.FP16, DType.FP32):
            label = f"{name}-{dtype.value}"
            yield Example("dequantize", f"scalar-{label}", {"input": x, "scale": const(0.3, dtype)})
            points = const(np.array([7, 0, 100], name))
            scale = const([0.1, -2.5, 3e-5], dtype)
            args = {"input": x, "scale": scale, "zero_point": points, "axis": const(1)}
            yield Example("dequantize", f"axis-{label}", args, "ios17")
        point = const(np.array(high, name))
        args = {"input": x, "scale": const(512.0, DType.FP16), "zero_point": point}
        yield Example("dequantize", f"overflow-{name}", args)
