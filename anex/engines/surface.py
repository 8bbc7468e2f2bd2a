"""Surfaces: memory shared with an engine, in the engine's own layout.

Element (n, c, h, w) of a port lies at `n·batch + c·plane + h·row + w·size`;
the row pitch is `W·size` rounded up to 64 bytes, the plane is `H·row`, the
batch is `C·plane` (facts: ane.md §2.3).  Ports whose rows fill whole 64-byte
units are packed; those are the only ones that anex itself makes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from anex.errors import SurfaceError
from anex.mil import TensorType

ROW_BYTES = 64
PAGE = 16384
"""Surfaces are whole pages of Apple silicon (ane.md §2.1)."""

Array = np.ndarray[Any, np.dtype[Any]]


def strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes between neighbours along each axis, rows padded to 64 bytes."""
    if not shape:
        return ()
    steps = [itemsize]
    pitch = -(-shape[-1] * itemsize // ROW_BYTES) * ROW_BYTES
    for size in reversed(shape[1:]):
        steps.append(pitch if len(steps) == 1 else steps[-1] * size)
    return tuple(reversed(steps))


class Surface:
    """Page-aligned, zero-filled memory for one port.

    Args:
        type: Type of the port.
        dtype: Element type in memory; by default that of the port.  The
            emulator's level `fp32` keeps fp32 behind a declared fp16.

    Attributes:
        array: The elements in the port's shape; a view of the memory.
    """

    def __init__(self, type: TensorType, dtype: np.dtype[Any] | None = None) -> None:
        self.type = type
        dtype = np.dtype(dtype or type.dtype.numpy)
        steps = strides(type.dims, dtype.itemsize)
        used = steps[0] * type.dims[0] if steps else dtype.itemsize
        self.nbytes = -(-max(used, 1) // PAGE) * PAGE
        memory = np.zeros(self.nbytes + PAGE, np.uint8)
        start = -memory.ctypes.data % PAGE
        self.memory: Array = memory[start : start + self.nbytes]
        self.array: Array = np.ndarray(type.dims, dtype, self.memory.data, strides=steps)

    @property
    def is_packed(self) -> bool:
        """Whether the elements follow each other without gaps."""
        return bool(self.array.flags.c_contiguous)

    def write(self, array: Array) -> None:
        """Copy values into the surface.

        Raises:
            SurfaceError: The shape or dtype is not the port's.
        """
        if array.shape != self.array.shape or array.dtype != self.array.dtype:
            raise SurfaceError(
                f"cannot hold {array.dtype}{list(array.shape)}",
                where=f"surface of {self.array.dtype}{list(self.array.shape)}",
            )
        self.array[...] = array

    def __repr__(self) -> str:
        return f"Surface({self.type}, {prod(self.type.dims)} elements in {self.nbytes} bytes)"
