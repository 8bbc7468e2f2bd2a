"""Short ways to write arguments of examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from anex.mil.examples.case import ADVERSARIAL_FP16, Array, rng
from anex.mil.ir import Literal
from anex.mil.types import DType


def fp16(seed: str, *shape: int, low: float = -3.0, high: float = 3.0) -> Array:
    """Uniform fp16 numbers."""
    return rng(seed).uniform(low, high, shape).astype(np.float16)


def fp32(seed: str, *shape: int, low: float = -3.0, high: float = 3.0) -> Array:
    """Uniform fp32 numbers."""
    return rng(seed).uniform(low, high, shape).astype(np.float32)


def int32(seed: str, *shape: int, low: int = -9, high: int = 9) -> Array:
    """Uniform int32 numbers, `high` included."""
    return rng(seed).integers(low, high + 1, shape).astype(np.int32)


def boolean(seed: str, *shape: int) -> Array:
    return rng(seed).integers(0, 2, shape).astype(np.bool_)


def const(value: Any, like: Array | DType | None = None) -> Literal:
    """A literal; a float takes the dtype of `like`."""
    if isinstance(like, np.ndarray):
        like = DType.of(like.dtype)
    return Literal.of(value, like)


def adversarial_pairs() -> tuple[Array, Array]:
    """Every pair of adversarial numbers, to be broadcast against each other."""
    return ADVERSARIAL_FP16[:, None], ADVERSARIAL_FP16[None, :]


def big(*shape: int) -> Array:
    """fp16 numbers near the largest, of both signs, whose sums and squares overflow fp16."""
    return rng("big").choice(np.array([60000, -52000, 65504, 41000], np.float16), shape)


def small(*shape: int) -> Array:
    """fp16 numbers that are subnormal or nearly so."""
    return (rng("small").integers(-4000, 4001, shape) * 2.0**-24).astype(np.float16)
