"""Whoever adds an op adds all that belongs to it: this names what is missing."""

from __future__ import annotations

import pytest

from anex.emulator.lowering import lowerings
from anex.engines.conformance import NOT_CALLED, formulas
from anex.mil.constexpr import KINDS as CONSTEXPR
from anex.mil.examples import examples
from anex.mil.ops import kinds

STATE = {
    "read_state": "no engine of ours keeps memory between calls; caches are ports",
    "write_state": "as read_state",
    "coreml_update_state": "coremltools' own form, never in a file; its type rule refuses it",
    "non_zero": "the shape of its result depends on data, which no engine takes",
}
"""Ops that files hold and no engine executes, with the reason."""

EXEMPT = {
    **STATE,
    **dict.fromkeys(CONSTEXPR, "folded when a program is loaded"),
    "const": "is no computation",
}
CALLED = [kind for kind in kinds() if kind not in EXEMPT]


def test_the_exemptions_are_those_of_the_conformance_suite() -> None:
    assert set(EXEMPT) == set(NOT_CALLED)
    assert set(EXEMPT) <= set(kinds())


@pytest.mark.parametrize("table", ["lowering", "formula"])
def test_every_op_is_in_the_table_and_nothing_else_is(table: str) -> None:
    registered = set({"lowering": lowerings, "formula": formulas}[table]())
    missing, unknown = set(CALLED) - registered, registered - set(kinds())
    assert not missing, f"no {table} of {sorted(missing)}"
    assert not unknown, f"{table} of unknown ops {sorted(unknown)}"


def test_every_op_has_at_least_two_examples() -> None:
    assert not {kind: len(examples(kind)) for kind in CALLED if len(examples(kind)) < 2}


def test_examples_have_different_names() -> None:
    for kind in CALLED:
        names = [example.name for example in examples(kind)]
        assert len(set(names)) == len(names), kind


def test_examples_are_small() -> None:
    for kind in CALLED:
        for example in examples(kind):
            for argument in example.args.values():
                parts = argument if isinstance(argument, tuple) else (argument,)
                sizes = [a.array.size if hasattr(a, "array") else a.size for a in parts]
                assert sum(sizes) < 4096, example.id
