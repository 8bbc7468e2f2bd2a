"""Surfaces: memory shared with an engine, in the engine's own layout.

Element (n, c, h, w) of a port lies at `n·batch + c·plane + h·row + w·size`;
the row pitch is `W·size` rounded up to 64 bytes, the plane is `H·row`, the
batch is `C·plane` (facts: ane.md §2.3).  Ports whose rows fill whole 64-byte
units are packed; those are the only ones that anex itself makes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anex.errors import ResourceError, SurfaceError
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
    """Memory of one port.  Each engine has its own kind, which its executables allocate.

    Args:
        type: Type of the port.
        array: The elements in the port's shape: a view of the memory, with its strides.
    """

    def __init__(self, type: TensorType, array: Array) -> None:
        self.type = type
        self.array = array

    @property
    def is_packed(self) -> bool:
        """Whether the elements follow each other without gaps."""
        return bool(self.array.flags.c_contiguous)

    def write(self, array: Array) -> None:
        """Copy values into the surface.

        Raises:
            SurfaceError: It is no numpy array, or the shape or dtype is not the port's.
        """
        where = f"surface of {self.array.dtype}{list(self.array.shape)}"
        if not isinstance(array, np.ndarray):
            raise SurfaceError(
                f"cannot hold {array.__class__.__name__}", where=where, hint="give a numpy array"
            )
        if array.shape != self.array.shape or array.dtype != self.array.dtype:
            raise SurfaceError(f"cannot hold {array.dtype}{list(array.shape)}", where=where)
        self.array[...] = array

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.type}, strides {self.array.strides})"


class HostSurface(Surface):
    """Page-aligned, zero-filled memory of this process: what the emulator reads where it lies.

    Args:
        steps: Bytes between neighbours along each axis.

    Raises:
        ResourceError: The memory does not suffice.
    """

    def __init__(self, type: TensorType, dtype: np.dtype[Any], steps: tuple[int, ...]) -> None:
        used = dtype.itemsize + sum((n - 1) * step for n, step in zip(type.dims, steps, strict=True))
        self.nbytes = -(-max(used, 1) // PAGE) * PAGE
        try:
            memory = np.zeros(self.nbytes + PAGE, np.uint8)
        except MemoryError as error:
            raise ResourceError(f"no memory for a surface of {self.nbytes} bytes") from error
        start = -memory.ctypes.data % PAGE
        self.memory: Array = memory[start : start + self.nbytes]
        super().__init__(type, np.ndarray(type.dims, dtype, self.memory.data, strides=steps))
