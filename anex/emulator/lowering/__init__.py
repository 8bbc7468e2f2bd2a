"""How each op is executed: one registered function per op, one module per family."""

from anex.emulator.lowering import (
    activation,
    elementwise,
    gather,
    linear,
    misc,
    normalization,
    pool,
    quantize,
    recurrent,
    reduction,
    resize,
    shape,
    slicing,
)
from anex.emulator.lowering.registry import Entry, Lowered, Lowering, lookup, lowering, lowerings

FAMILIES = (
    activation,
    elementwise,
    gather,
    linear,
    misc,
    normalization,
    pool,
    quantize,
    recurrent,
    reduction,
    resize,
    shape,
    slicing,
)
"""The modules that register lowerings; importing them fills the table."""

__all__ = ["FAMILIES", "Entry", "Lowered", "Lowering", "lookup", "lowering", "lowerings"]
