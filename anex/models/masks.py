"""Attention masks, computed on the host: who may look at whom."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

MASKED = -1e4
"""Added to a score that must not count.  exp(-1e4) is 0 at every precision, and
adding it to any score stays finite in fp16, which -65504 does not."""

EMPTY = -1
"""Position of a cached column, or of a padding column, that holds nothing."""


def mask(
    positions: ArrayLike, cached: ArrayLike, window: int | None = None
) -> np.ndarray[Any, np.dtype[np.float16]]:
    """The additive mask of new columns over cached columns and themselves.

    Args:
        positions: Position of each new column, `[T]`; `EMPTY` for padding.
        cached: Position of each cached column, `[C]`; `EMPTY` for a free one.
        window: A column sees itself and the `window - 1` positions before it;
            None sees everything before it.

    Returns:
        fp16 `[T, C + T]`, 0 where a column may look and `MASKED` elsewhere.
        A padding column looks at itself, so that its softmax stays defined.
    """
    query = np.asarray(positions, np.int64)
    key = np.concatenate([np.asarray(cached, np.int64), query])
    distance = query[:, None] - key[None, :]
    visible = (key[None, :] != EMPTY) & (query[:, None] != EMPTY) & (distance >= 0)
    if window is not None:
        visible &= distance < window
    padding = np.flatnonzero(query == EMPTY)
    visible[padding, len(key) - len(query) + padding] = True
    return np.where(visible, np.float16(0), np.float16(MASKED))
