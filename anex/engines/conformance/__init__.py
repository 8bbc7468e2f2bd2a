"""The conformance suite: what every engine is held to, example by example."""

from anex.engines.conformance import formulas_compute, formulas_linear, formulas_shape
from anex.engines.conformance.check import Level, build, compare, expected, result_types
from anex.engines.conformance.registry import Arguments, formula, formulas
from anex.engines.conformance.suite import NOT_CALLED, Case, Failure, cases, run

FORMULAS = (formulas_compute, formulas_linear, formulas_shape)
"""The modules that hold formulas; importing them fills the table."""

__all__ = [
    "FORMULAS",
    "NOT_CALLED",
    "Arguments",
    "Case",
    "Failure",
    "Level",
    "build",
    "cases",
    "compare",
    "expected",
    "formula",
    "formulas",
    "result_types",
    "run",
]
