"""The op table: what each op takes and what type it gives, per opset."""

from anex.mil.ops import (
    activation,
    constexpr,
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
    state,
)
from anex.mil.ops.decl import Call, OpDecl, Param, infer, kinds, lookup
from anex.mil.ops.window import Window

FAMILIES = (
    activation,
    constexpr,
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
    state,
)
"""The modules that declare ops; importing them fills the table."""

__all__ = ["FAMILIES", "Call", "OpDecl", "Param", "Window", "infer", "kinds", "lookup"]
