"""Ports: parameters and results of a compiled function, and what may be put into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.engines.surface import HostSurface, Surface, strides
from anex.errors import EngineError, EvaluateError, SurfaceError
from anex.mil import TensorType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Port:
    """One parameter or result of a compiled function.

    Attributes:
        type: As the program declares it.
        dtype: Element type in memory: fp32 for a declared fp16 at the emulator's level `fp32`.
        strides: Bytes between neighbours along each axis, as the engine laid the port out.
    """

    name: str
    type: TensorType
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def padded(cls, name: str, type: TensorType, dtype: np.dtype[Any]) -> Port:
        """A port with the usual layout: rows padded to 64 bytes, the rest packed."""
        return cls(name, type, dtype, strides(type.dims, dtype.itemsize))

    def surface(self) -> HostSurface:
        """Memory of this process with the port's layout."""
        return HostSurface(self.type, self.dtype, self.strides)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.type.dims)}"


def checked_arrays(function: str, ports: Iterable[Port], given: Mapping[str, Any]) -> dict[str, Any]:
    """An array for each port: arrays as they are, lists and numbers in the port's dtype.

    Raises:
        EvaluateError: One is missing, unknown, or of another shape or dtype.
    """
    arrays = {}
    for port, value in _paired(function, ports, given, EvaluateError):
        array = (
            value if hasattr(value, "dtype") and hasattr(value, "shape") else _array(function, port, value)
        )
        if array.shape != port.type.dims or array.dtype != port.dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise EvaluateError(f"'{port.name}' is {found}, wants {port}", where=function)
        arrays[port.name] = array
    return arrays


def _array(function: str, port: Port, value: Any) -> Array:
    try:
        with np.errstate(over="raise"):
            return np.asarray(value, port.dtype)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise EvaluateError(f"'{port.name}' wants {port}: {error}", where=function) from error


def check_surfaces(
    function: str, ports: Iterable[Port], given: Mapping[str, Surface], kind: type[Surface]
) -> None:
    """Refuse surfaces that an engine cannot use for these ports.

    Args:
        kind: The surfaces that the engine itself allocates.

    Raises:
        SurfaceError: One is missing, unknown, of another engine, or has another type or layout.
    """
    for port, surface in _paired(function, ports, given, SurfaceError):
        if not isinstance(surface, kind):
            found = surface.__class__.__name__
            raise SurfaceError(
                f"port '{port.name}' is given a {found}, this engine takes a {kind.__name__}",
                where=function,
                hint="executable.allocate(port) makes one",
            )
        wanted = (port.type, port.dtype, port.strides)
        if (surface.type, surface.array.dtype, surface.array.strides) != wanted:
            raise SurfaceError(
                f"port '{port.name}' wants {port.type} held as {port.dtype} with strides {port.strides}, "
                f"the surface is {surface.type} held as {surface.array.dtype} with {surface.array.strides}",
                where=function,
            )


def _paired(
    function: str, ports: Iterable[Port], given: Mapping[str, Any], error: type[EngineError]
) -> Iterable[tuple[Port, Any]]:
    if not isinstance(given, Mapping):
        raise error(f"a mapping from port names is needed, not a {type(given).__name__}", where=function)
    known = {port.name: port for port in ports}
    if given.keys() != known.keys():
        wrong = ", ".join(sorted(map(str, given.keys() ^ known.keys())))
        raise error(f"ports are {', '.join(known)}; missing or unknown: {wrong}", where=function)
    return [(port, given[name]) for name, port in known.items()]
