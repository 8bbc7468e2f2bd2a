"""The KV cache: what lies where, and what growing keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.errors import InputError
from anex.models import CacheSurface, Rungs
from anex.runtime import KVCache

LAYOUTS = (CacheSurface("i04_cache", "o01_kv", 0, 2, 4), CacheSurface("i05_cache", "o02_kv", 2, 1, 4))
"""Three layers over two surfaces: 16 and 8 channels."""

Array = np.ndarray[Any, np.dtype[Any]]


def cache(limit: int = 1000) -> KVCache:
    return KVCache(LAYOUTS, Rungs(limit), np.dtype(np.float16))


def columns(start: int, count: int, width: int) -> dict[str, Array]:
    """New columns; element (channel c, token t) is t + c/32, and padding is NaN."""
    out = {}
    for layout in LAYOUTS:
        array = np.full((1, layout.channels, 1, width), np.nan, np.float16)
        tokens = np.arange(start, start + count)
        array[0, :, 0, :count] = tokens + np.arange(layout.channels)[:, None] / 32
        out[layout.output] = array
    return out


def rows(start: int) -> dict[str, Array]:
    """One column as decode returns it: rows of 32, padded."""
    out = {}
    for layout in LAYOUTS:
        row = np.full((1, 1, 1, 32), np.nan, np.float16)
        row[..., : layout.channels] = columns(start, 1, 1)[layout.output].reshape(-1)
        out[layout.output] = row
    return out


def check(held: KVCache) -> None:
    """The cache holds what a fresh layout of all columns at its capacity would, and zeros after them."""
    for layout in LAYOUTS:
        fresh = np.zeros((1, layout.channels, 1, held.capacity), np.float16)
        fresh[..., : held.columns] = columns(0, held.columns, held.columns)[layout.output]
        surface = held.surfaces[layout.input]
        assert surface.is_packed
        assert np.array_equal(surface.array, fresh)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([1, 1, 5, 32, 100, 128]), min_size=1, max_size=12))
def test_any_way_of_filling_gives_the_fresh_layout(steps: Sequence[int]) -> None:
    held = cache(4096)
    for count in steps:
        start = held.columns
        new = rows(start) if count == 1 else columns(start, count, -(-count // 32) * 32)
        held.append(new, count)
        assert held.capacity == Rungs(4096).holding(held.columns)
    check(held)


def test_only_new_columns_are_written_within_a_rung() -> None:
    held = cache()
    held.append(columns(0, 10, 32), 10)
    array = held.surfaces["i04_cache"].array
    array[..., :10] = 7
    array[..., 20:] = 9
    held.append(columns(10, 10, 32), 10)
    assert held.surfaces["i04_cache"].array is array
    assert (array[..., :10] == 7).all()
    assert (array[..., 20:] == 9).all()
    assert array[0, 3, 0, 12] == 12 + 3 / 32


def test_the_next_rung_is_laid_out_once() -> None:
    held = cache()
    held.append(columns(0, 256, 256), 256)
    before = held.surfaces["i05_cache"]
    held.append(rows(256), 1)
    after = held.surfaces["i05_cache"]
    assert held.capacity == 512
    assert after is not before
    check(held)
    held.append(rows(257), 1)
    assert held.surfaces["i05_cache"] is after
    check(held)


def test_clearing() -> None:
    held = cache()
    held.append(columns(0, 256, 256), 256)
    held.clear()
    assert (held.columns, held.capacity, held.surfaces) == (0, 0, {})
    held.append(columns(0, 3, 32), 3)
    check(held)


def test_a_full_context_is_refused_and_nothing_changes() -> None:
    held = cache(300)
    held.append(columns(0, 300, 320), 300)
    assert held.capacity == 320
    with pytest.raises(InputError, match="context of 300"):
        held.append(columns(300, 21, 32), 21)
    assert held.columns == 300
    check(held)


def test_columns_of_a_wrong_shape() -> None:
    new = {layout.output: np.zeros((1, 3, 1, 32), np.float16) for layout in LAYOUTS}
    with pytest.raises(InputError, match=r"\[1, 3, 1, 32\]"):
        cache().append(new, 1)
