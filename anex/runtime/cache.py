"""The KV cache of one conversation, in surfaces that the engine reads where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anex.engines import Port, Surface
from anex.errors import InputError
from anex.mil import DType, TensorType
from anex.models import CacheSurface, Rungs

Array = np.ndarray[Any, np.dtype[Any]]


class KVCache:
    """Keys and values of the tokens so far: per layout one surface `[1, channels, 1, capacity]`.

    The capacity is a rung.  Within a rung only the new columns are written;
    the next rung has a wider row, so growing lays everything out again, once.

    Args:
        layouts: The surfaces of the model, as `Prepared.caches` gives them.
        rungs: The capacities there are programs for.
        dtype: Element type in memory, that of the engine's ports.
        allocate: Makes the engine's own kind of surface (`Executable.allocate`); the emulator's if None.

    Attributes:
        columns: Tokens that are held.
        capacity: Columns there is room for; 0 at the start, when there are no surfaces.
        surfaces: Input port → surface; another dict for another capacity.
    """

    def __init__(
        self,
        layouts: Sequence[CacheSurface],
        rungs: Rungs,
        dtype: np.dtype[Any],
        allocate: Callable[[Port], Surface] | None = None,
    ) -> None:
        self._layouts = tuple(layouts)
        self._rungs = rungs
        self._dtype = dtype
        self._allocate = allocate or Port.surface
        self.columns = 0
        self.capacity = 0
        self.surfaces: dict[str, Surface] = {}

    def append(self, new: Mapping[str, Array], count: int) -> None:
        """Take in the first `count` of the columns that a call returned.

        Args:
            new: Output port → `[1, channels, 1, T]`, or one column as rows
                `[1, R, 1, 32]` that hold the channels in order; other ports do not matter.

        Raises:
            InputError: The context is full.
        """
        self._reserve(self.columns + count)
        where = slice(self.columns, self.columns + count)
        for layout in self._layouts:
            held = self.surfaces[layout.input].array[0, :, 0, where]
            held[...] = _columns(new[layout.output], layout.channels)[:, :count]
        self.columns += count

    def truncate(self, columns: int) -> None:
        """Forget the columns from `columns` on; what stays lies as if nothing had followed it."""
        self.columns = min(columns, self.columns)
        self._reserve(self.columns)

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.columns = self.capacity = 0
        self.surfaces = {}

    def _reserve(self, columns: int) -> None:
        capacity = self._rungs.holding(columns)
        if capacity == self.capacity:
            return
        surfaces: dict[str, Surface] = {}
        for layout in self._layouts:
            shape = (1, layout.channels, 1, capacity)
            kind = TensorType(DType.FP16, shape)
            surface = self._allocate(Port.padded(layout.input, kind, self._dtype))
            if old := self.surfaces.get(layout.input):
                surface.array[..., : self.columns] = old.array[..., : self.columns]
            surfaces[layout.input] = surface
        # Another dict: whoever has bound functions to the old surfaces can tell, and an interrupt is no harm.
        self.surfaces, self.capacity = surfaces, capacity


def _columns(array: Array, channels: int) -> Array:
    """`[channels, T]` from what a prefill or a decode call returns."""
    if array.shape[1] == channels and array.shape[2] == 1:
        return array[0, :, 0]
    if array.shape == (1, -(-channels // array.shape[3]), 1, array.shape[3]):
        return array.reshape(-1)[:channels, None]
    raise InputError(f"new columns of shape {list(array.shape)} for {channels} channels")
