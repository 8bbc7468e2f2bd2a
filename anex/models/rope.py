"""Rotary position embedding: frequencies and tables, computed on the host in float64.

The engine's sin and cos are 33-knot tables and its angles would be fp16; a
position of 4,000 has no fraction left in fp16.  So programs take cos and sin
as inputs (facts: ane.md §6).

    angle(p, j) = p · theta^(-2j/dims) / freq_factor[j] / linear factor
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions turn the pairs of a head (Su et al. 2021, RoFormer).

    Attributes:
        dims: Leading channels of a head that are turned; even.
        theta: Base of the frequencies.
        linear_factor: Positions are divided by it (Chen et al. 2023).
        magnitude: Scale of the turned channels (YaRN's attention factor).
        freq_factors: Divisor of each frequency, `dims / 2` of them, or empty;
            Llama 3 writes its scaling into files this way.
    """

    dims: int
    theta: float = 10000.0
    linear_factor: float = 1.0
    magnitude: float = 1.0
    freq_factors: tuple[float, ...] = ()

    @property
    def frequencies(self) -> Array:
        """Angle per position of each pair, float64 `[dims/2]`."""
        exponents = np.arange(self.dims // 2, dtype=np.float64) * (2.0 / self.dims)
        plain = np.power(self.theta, -exponents)
        factors = np.asarray(self.freq_factors or 1.0, np.float64)
        return plain / factors / self.linear_factor


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
