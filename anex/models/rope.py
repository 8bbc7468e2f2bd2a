"""Rotary position embedding: frequencies and tables, computed on the host in float64.

The engine's sin and cos are 33-knot tables and its angles would be fp16; a
position of 4,000 has no fraction left in fp16.  So programs take cos and sin
as inputs (facts: ane.md §6).

    angle(p, j) = p · theta^(-2j/dims) / freq_factor[j] / linear factor

YaRN divides fast frequencies by less, and LongRoPE has two lists of divisors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Yarn:
    """Which frequencies are divided, by how often they turn within the original context (Peng et al. 2023).

    Attributes:
        context: Positions of the model before it was stretched.
        beta_fast: A pair that turns more often than that within it keeps its frequency.
        beta_slow: A pair that turns less often is divided by the whole factor.
    """

    context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def kept(self, dims: int, theta: float) -> Array:
        """Part of each pair's frequency that is not divided, float64 `[dims/2]` of 1 … 0."""

        def pair(turns: float) -> float:
            return dims * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low = max(0.0, math.floor(pair(self.beta_fast)))
        high = min(dims - 1.0, math.ceil(pair(self.beta_slow)))
        ramp = (np.arange(dims // 2, dtype=np.float64) - low) / max(0.001, high - low)
        return 1.0 - np.clip(ramp, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class LongRope:
    """Divisors of the frequencies for a conversation beyond the original context (Ding et al. 2024).

    Attributes:
        context: Positions of the model before it was stretched; a longer conversation uses `factors`.
        factors: Divisors, `dims / 2` of them.
    """

    context: int
    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions turn the pairs of a head (Su et al. 2021, RoFormer).

    Attributes:
        dims: Leading channels of a head that are turned; even.
        theta: Base of the frequencies.
        linear_factor: Positions are divided by it (Chen et al. 2023).
        magnitude: Scale of the turned channels (the attention factor of YaRN and LongRoPE).
        freq_factors: Divisor of each frequency, `dims / 2` of them, or empty;
            Llama 3 writes its scaling into files this way.
        yarn: Only some frequencies are divided by `linear_factor`.
        long: Other divisors for long conversations.
    """

    dims: int
    theta: float = 10000.0
    linear_factor: float = 1.0
    magnitude: float = 1.0
    freq_factors: tuple[float, ...] = ()
    yarn: Yarn | None = None
    long: LongRope | None = None

    @property
    def frequencies(self) -> Array:
        """Angle per position of each pair, float64 `[dims/2]`."""
        exponents = np.arange(self.dims // 2, dtype=np.float64) * (2.0 / self.dims)
        plain = np.power(self.theta, -exponents)
        factors = np.asarray(self.freq_factors or 1.0, np.float64)
        turned = plain / factors
        if self.yarn is None:
            return turned / self.linear_factor
        kept = self.yarn.kept(self.dims, self.theta)
        return turned * (kept + (1.0 - kept) / self.linear_factor)

    def within(self, context: int) -> Rope:
        """The rotation of a conversation of that many positions, the same for all of them.

        LongRoPE's divisors depend on how long a conversation may get; to change
        them on the way would leave turned keys in the cache that no longer fit.
        """
        if self.long is None:
            return self
        factors = self.long.factors if context > self.long.context else self.freq_factors
        return replace(self, freq_factors=factors, long=None)


def tables(rope: Rope, positions: ArrayLike) -> tuple[Array, Array]:
    """cos and sin of every angle, float64 `[dims/2, len(positions)]` each."""
    angles = np.outer(rope.frequencies, np.asarray(positions, np.float64))
    return np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude


def half_split_rows(dims: int, head_dim: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Row order inside one head that turns pairs (2j, 2j+1) into (j, j + dims/2).

    Programs only know the second form.  Scores are dot products over a head, so
    the same order on the rows of wq and wk leaves them as they are; channels
    after `dims` keep their place.
    """
    order = np.arange(head_dim)
    order[:dims] = np.concatenate([order[0:dims:2], order[1:dims:2]])
    return order
