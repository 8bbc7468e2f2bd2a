"""How an op is lowered to XLA: one function per op, registered by name.

A lowering gets its operands as JAX arrays and returns JAX arrays.  How they
arrive and what happens to the result depends on the kind of op:

* `lowering("exp")` computes: floating-point operands arrive widened to fp32,
  the op is computed wide as a whole, and the driver rounds each result once,
  to nearest even, to its declared type (level `fp16`) or not at all (`fp32`).
* `lowering("reshape", stored=True)` gets its operands as they are stored (fp16
  stays fp16): for ops that only move data, and for products, whose kernel
  widens and rounds by itself.  (Results of another dtype are converted.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.errors import UnsupportedError
from anex.mil import Op

if TYPE_CHECKING:
    import jax

    from anex.emulator.matmul import Matmul


@dataclass(frozen=True, slots=True)
class Lowered:
    """One op while it is being lowered.

    Attributes:
        op: The op itself: kind, declared output types, attributes.
        arrays: Parameter name to JAX array, or tuple of arrays for `many`.
        constants: Parameter name to numpy array, for parameters whose value
            is a compile-time constant held in the program (not in the blob).
        dtypes: numpy dtype in which each result will be stored.
        matmul: The matrix product to use.
    """

    op: Op
    arrays: Mapping[str, Any]
    constants: Mapping[str, Any]
    dtypes: tuple[np.dtype[Any], ...]
    matmul: Matmul

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __getitem__(self, name: str) -> jax.Array:
        """The array bound to a parameter; `KeyError` where it is absent."""
        array: jax.Array = self.arrays[name]
        return array

    def many(self, name: str) -> tuple[jax.Array, ...]:
        bound = self.arrays[name]
        return bound if isinstance(bound, tuple) else (bound,)

    def const(self, name: str, default: Any = None) -> Any:
        """A compile-time parameter as Python scalar, string or list.

        Raises:
            UnsupportedError: The value is only known at run time.
        """
        if name not in self.arrays and name not in self.constants:
            return default
        if name not in self.constants:
            raise UnsupportedError(f"run-time '{name}' of {self.op.kind}", where=self.op.name)
        return self.constants[name].tolist()


Lowering = Callable[[Lowered], Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered lowering; see the module text for `stored`."""

    function: Lowering
    stored: bool


_TABLE: dict[str, Entry] = {}


def lowering(*kinds: str, stored: bool = False) -> Callable[[Lowering], Lowering]:
    """Register the lowering of one or several ops."""

    def register(function: Lowering) -> Lowering:
        for kind in kinds:
            assert kind not in _TABLE, f"{kind} has two lowerings"
            _TABLE[kind] = Entry(function, stored)
        return function

    return register


def lowerings() -> Mapping[str, Entry]:
    """Every registered lowering by op kind."""
    return _TABLE


def lookup(op: Op) -> Entry:
    """The lowering of an op.

    Raises:
        UnsupportedError: The emulator cannot execute this op.
    """
    entry = _TABLE.get(op.kind)
    if entry is None:
        raise UnsupportedError(f"op '{op.kind}' in the emulator", where=op.name)
    return entry
