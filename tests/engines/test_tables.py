"""Whoever adds an op adds all that belongs to it: this names what is missing."""

from __future__ import annotations

import pytest

from anex.emulator.lowering import lowerings
from anex.engines.conformance import NOT_CALLED, formulas
from anex.mil.examples import examples
from anex.mil.ops import kinds

CALLED = [kind for kind in kinds() if kind not in NOT_CALLED]


def test_every_exemption_is_an_op_and_has_a_reason() -> None:
    assert set(NOT_CALLED) <= set(kinds())
    assert all(NOT_CALLED.values())


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
