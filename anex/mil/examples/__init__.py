"""Example calls of every op, one module per family; importing this registers them all."""

from anex.mil.examples import (
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
from anex.mil.examples.case import ADVERSARIAL_FP16, Argument, Example, examples, examples_of, rng

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
"""The modules that hold examples; importing them fills the lists."""

__all__ = ["ADVERSARIAL_FP16", "FAMILIES", "Argument", "Example", "examples", "examples_of", "rng"]
