"""RoPE tables and masks against their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anex.models import EMPTY, MASKED, Rope, mask, tables
from anex.models.rope import half_split_rows


@given(
    st.integers(1, 64),
    st.floats(10.0, 1e7),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
    st.floats(1.0, 16.0),
    st.floats(0.5, 2.0),
)
def test_tables_are_the_formula(
    pairs: int, theta: float, positions: list[int], factor: float, magnitude: float
) -> None:
    divisors = [1.0 + 0.5 * j for j in range(pairs)]
    rope = Rope(2 * pairs, theta, factor, magnitude, tuple(divisors))
    cos, sin = tables(rope, positions)
    assert cos.shape == sin.shape == (pairs, len(positions))
    for j in range(pairs):
        for t, position in enumerate(positions):
            angle = position * theta ** (-2 * j / (2 * pairs)) / divisors[j] / factor
            bound = 1e-12 * max(1.0, angle)
            assert cos[j, t] == pytest.approx(magnitude * math.cos(angle), abs=bound)
            assert sin[j, t] == pytest.approx(magnitude * math.sin(angle), abs=bound)


def test_a_far_position_keeps_its_angle() -> None:
    """Pair 0 turns by one radian a position: fp16 would not know 100,003 from 100,000."""
    cos, sin = tables(Rope(4), [100_003])
    assert (cos[0, 0], sin[0, 0]) == (math.cos(100_003), math.sin(100_003))


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 2**32))
def test_scores_do_not_depend_on_the_row_order(pairs: int, rest: int, seed: int) -> None:
    """Interleaved rotation of a head, reordered, is half-split rotation of the reordered head."""
    dims, size = 2 * pairs, 2 * pairs + rest
    order = half_split_rows(dims, size)
    assert sorted(order) == list(range(size))
    x = np.random.default_rng(seed).standard_normal(size)
    cos, sin = (table[:, 0] for table in tables(Rope(dims), [5]))
    first, second = np.arange(0, dims, 2), np.arange(1, dims, 2)
    turned = x.copy()
    turned[first] = x[first] * cos - x[second] * sin
    turned[second] = x[second] * cos + x[first] * sin
    y = x[order]
    halves = y[:pairs] * cos - y[pairs:dims] * sin, y[pairs:dims] * cos + y[:pairs] * sin
    assert np.allclose(turned[order], np.concatenate([*halves, y[dims:]]), rtol=0, atol=1e-14)


@given(st.integers(0, 8), st.integers(1, 6), st.integers(0, 3), st.one_of(st.none(), st.integers(1, 10)))
def test_mask_is_the_definition(past: int, new: int, padding: int, window: int | None) -> None:
    cached = [*range(past), EMPTY, EMPTY]
    positions = [*range(past, past + new), *[EMPTY] * padding]
    found = mask(positions, cached, window)
    keys = cached + positions
    assert found.dtype == np.float16
    assert found.shape == (len(positions), len(keys))
    for t, query in enumerate(positions):
        for c, key in enumerate(keys):
            if query == EMPTY:
                visible = c == len(cached) + t
            else:
                visible = key != EMPTY and key <= query and (window is None or query - key < window)
            assert found[t, c] == (0.0 if visible else MASKED)


def test_masked_is_nothing_in_fp16_and_stays_finite() -> None:
    scores = np.float16(MASKED) + np.array([-65504 + 1e4, 0, 5e4], np.float16)
    assert np.isfinite(scores).all()
    assert math.exp(MASKED) == 0.0
