"""The meaning of each op as a float64 formula in numpy, registered by name.

These are written from the op's definition (coremltools' documentation of the
op), never from an engine's implementation: they are what engines are held to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.mil import TensorType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call.

    Floating-point arrays arrive as float64, integers as int64, booleans and
    strings as they are.

    Attributes:
        kind: The op.
        values: Parameter name to array, or tuple of arrays.
        results: The types that the type rule gave.
    """

    kind: str
    values: Mapping[str, Any]
    results: tuple[TensorType, ...]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Array:
        array: Array = self.values[name]
        return array

    def many(self, name: str) -> tuple[Array, ...]:
        bound = self.values[name]
        return bound if isinstance(bound, tuple) else (bound,)

    def const(self, name: str, default: Any = None) -> Any:
        """A parameter as Python scalar, string or list; `default` where absent."""
        return self.values[name].tolist() if name in self.values else default


Formula = Callable[[Arguments], Any]
_TABLE: dict[str, Formula] = {}


def formula(*kinds: str) -> Callable[[Formula], Formula]:
    """Register the float64 formula of one or several ops."""

    def register(function: Formula) -> Formula:
        for kind in kinds:
            assert kind not in _TABLE, f"{kind} has two formulas"
            _TABLE[kind] = function
        return function

    return register


def formulas() -> Mapping[str, Formula]:
    """Every registered formula by op kind."""
    return _TABLE
