"""One list of example calls per op: it drives the tests of every concern of the op.

Type rule, lowering, reference, and later gradient and cost are all tested on
these calls, and so is every engine (anex.engines.conformance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from anex.mil.ir import Literal

Array = np.ndarray[Any, np.dtype[Any]]
Argument = Array | Literal | tuple[Array | Literal, ...]
"""A numpy array is passed at run time; a `Literal` is a compile-time constant."""


@dataclass(frozen=True, slots=True)
class Example:
    """One call of an op.

    Attributes:
        kind: The op.
        name: Unique among the examples of the op; says what is special.
        args: Parameter name to `Argument`: run-time array(s) or constant literal(s).  (A dict
            that mixes these is one of `object` to a type checker, so the values are `Any`.)
        opset: The function's opset.
        outputs: Number of outputs that the call binds.
        ulps: Largest error of an fp16 result at level `fp16`, in units in the
            last place of the float64 result; 0.5 is one correct rounding.
        fp32: Largest error of a result at level `fp32`, relative to `scale`.
        scale: What `fp32` is relative to: None for each value itself, else a
            magnitude (for sums that cancel); then fp16 results too may be off
            by `fp32 * scale`, beside `ulps`.
    """

    kind: str
    name: str
    args: Mapping[str, Any]
    opset: str = "ios18"
    outputs: int = 1
    ulps: float = 0.51
    fp32: float = 1e-6
    scale: float | None = field(default=None)

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}"


Maker = Callable[[], Iterator[Example]]
_MAKERS: dict[str, list[Maker]] = {}


def examples_of(*kinds: str) -> Callable[[Maker], Maker]:
    """Register a generator that yields examples of these ops."""

    def register(make: Maker) -> Maker:
        for kind in kinds:
            _MAKERS.setdefault(kind, []).append(make)
        return make

    return register


@cache
def examples(kind: str) -> tuple[Example, ...]:
    """Every example of one op, in a stable order; empty where there is none."""
    return tuple(e for make in _MAKERS.get(kind, ()) for e in make() if e.kind == kind)


def rng(seed: str) -> np.random.Generator:
    """A random generator whose stream depends on the text only."""
    return np.random.default_rng(list(seed.encode()))


ADVERSARIAL_FP16 = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.0**-24,
        -(2.0**-24),
        2.0**-14,
        6e-5,
        1e-3,
        3.14159,
        11.0,
        -11.0,
        100.0,
        -100.0,
        2047.0,
        2049.0,
        4094.0,
        4096.0,
        32752.0,
        32768.0,
        65504.0,
        -65504.0,
        np.inf,
        -np.inf,
        np.nan,
    ],
    dtype=np.float16,
)
"""Zeros of both signs, subnormals, the 2**11 grid, the engine's cliffs, infinities, NaN."""
