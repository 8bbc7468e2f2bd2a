"""Arrays of every element type for examples of ops that move data unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from anex.mil.examples.case import ADVERSARIAL_FP16, Array, rng

ALL = ("bool", "float16", "float32", "int8", "int16", "int32", "uint8", "uint16")
BEFORE_IOS17 = ("bool", "float16", "float32", "int32")
NUMBERS = ALL[1:]


def mixed(dtype: str, *shape: int) -> Array:
    """Values of a dtype in which every element can be told from most others.

    Floats start with zeros of both signs, subnormals, the largest finite
    numbers, infinities and NaN; integers with both ends of their range.
    """
    kind, count = np.dtype(dtype), prod(shape)
    if kind == np.bool_:
        return rng("mixed").integers(0, 2, shape).astype(kind)
    if kind.kind == "f":
        special = ADVERSARIAL_FP16.astype(kind)
        plain = (np.arange(count) - count // 2).astype(kind) / kind.type(8)
    else:
        special = np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind)
        plain = (np.arange(count) % 127).astype(kind)
    values = np.concatenate([special, plain])[:count]
    return rng(dtype).permutation(values).reshape(shape)


def distinct(dtype: str, *shape: int) -> Array:
    """Distinct finite values in random order, for ops that sort."""
    count = prod(shape)
    start = 0 if np.dtype(dtype).kind == "u" else -(count // 2)
    return (rng("distinct").permutation(count) + start).astype(dtype).reshape(shape)


def in_opset(dtypes: tuple[str, ...] = ALL) -> Iterator[tuple[str, str]]:
    """(dtype, opset) pairs: the types that every opset has, in the oldest."""
    for dtype in dtypes:
        yield dtype, "ios15" if dtype in BEFORE_IOS17 else "ios18"
