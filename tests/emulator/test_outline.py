"""Outlining: finding the repeated block never changes which op computes what."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.emulator.outline import MIN_BLOCK, segments
from anex.mil.builder import Builder
from anex.mil.ir import Function, Value
from anex.mil.types import DType


def layered(layers: int, before: int, after: int, kinds: list[str], factors: list[float]) -> Function:
    """`before` ops, then layers that differ only in a weight, then `after` ops."""
    b = Builder("main")
    x = b.input("x", DType.FP32, (1, 4, 1, 8))
    table = b.input("table", DType.FP32, (1, 4 * layers, 1, 8))
    y = x
    for _ in range(before):
        y = b.op("tanh", x=y)
    kept = []
    for i in range(layers):
        row = b.op("slice_by_size", x=table, begin=[0, 4 * i, 0, 0], size=[1, 4, 1, 8])
        z = b.op("add", x=y, y=row)
        for kind in kinds:
            z = b.op(kind, x=z)
        y = b.op("mul", x=b.op("add", x=y, y=z), y=np.full((1, 4, 1, 1), factors[i], np.float32))
        kept.append(z)
    for _ in range(after):
        y = b.op("abs", x=y)
    kept_all = b.op("concat", values=tuple(kept), axis=1, interleave=False)
    return b.finish({"y": b.op("exp", x=y), "kept": b.op("abs", x=kept_all)})


def cut(function: Function):
    constants = function.constants
    ops = [op for op in function.ops if op.kind != "const"]

    def constant(value: Value):
        # The weights (rank 4) are run-time arguments here, everything else is baked in.
        literal = constants.get(value.name)
        return None if literal is None or literal.array.ndim == 4 else literal

    return ops, segments(ops, function.outputs, constant)


LAYERS = {
    "layers": st.integers(2, 6),
    "before": st.integers(0, 3),
    "after": st.integers(0, 3),
    "kinds": st.lists(st.sampled_from(["sin", "cos", "sigmoid", "square"]), min_size=5, max_size=9),
}


@settings(max_examples=40, deadline=None)
@given(**LAYERS)
def test_every_op_is_in_one_instance_and_is_fed_as_before(layers, before, after, kinds):
    function = layered(layers, before, after, kinds, [1.0 + i for i in range(layers)])
    ops, found = cut(function)
    repeated = max(found, key=lambda s: len(s.bindings))
    assert len(repeated.ops) * len(repeated.bindings) >= MIN_BLOCK
    assert sum(len(s.ops) * len(s.bindings) for s in found) == len(ops)
    # Replay: each instance must see, under its arguments, exactly what the flat program wired.
    position = 0
    made = {"x", "table"} | set(function.constants)
    for segment in found:
        for names, exports in zip(segment.bindings, segment.exports, strict=True):
            assert set(names) <= made
            made |= set(exports)
            renaming = dict(zip(segment.arguments, names, strict=True))
            local: dict[str, str] = {}
            for op, original in zip(segment.ops, ops[position:], strict=False):
                assert op.kind == original.kind
                for mine, theirs in zip(op.operands(), original.operands(), strict=True):
                    if isinstance(mine, Value) and isinstance(theirs, Value):
                        assert local.get(mine.name, renaming.get(mine.name)) == theirs.name
                local.update({a.name: b.name for a, b in zip(op.outputs, original.outputs, strict=True)})
            position += len(segment.ops)
    assert {v.name for v in function.outputs} <= made


@settings(max_examples=20, deadline=None)
@given(**LAYERS)
def test_layers_become_one_block(layers, before, after, kinds):
    function = layered(layers, before, after, kinds, [1.0 + i for i in range(layers)])
    _, found = cut(function)
    instances = max(len(s.bindings) for s in found)
    # The op sequence of one layer may itself be periodic; then a block can be part of a layer.
    assert instances >= layers - 1


def test_the_next_best_period_is_taken_where_the_best_is_wired_differently():
    """Odd layers add the value after `sin`, even ones that after `cos`: only two layers repeat."""
    b = Builder("main")
    y = b.input("x", DType.FP32, (1, 4))
    for i in range(6):
        first = b.op("sin", x=y)
        second = b.op("cos", x=first)
        z = second
        for kind in ("abs", "tanh", "sigmoid", "square", "exp"):
            z = b.op(kind, x=z)
        y = b.op("add", x=z, y=second if i % 2 else first)
    ops, found = cut(b.finish({"y": y}))
    assert [(len(s.ops), len(s.bindings)) for s in found] == [(16, 3)]
    assert [op.kind for s in found for _ in s.bindings for op in s.ops] == [op.kind for op in ops]


def test_layers_with_another_op_in_one_of_them_stay_right():
    b = Builder("main")
    y = b.input("x", DType.FP32, (1, 4))
    for i in range(4):
        for kind in (
            "sin",
            "cos",
            "abs",
            "tanh",
            "sigmoid",
            "square",
            "exp" if i == 2 else "sin",
            "cos",
            "tanh",
        ):
            y = b.op(kind, x=y)
    function = b.finish({"y": y})
    ops, found = cut(function)
    assert [op.kind for s in found for _ in s.bindings for op in s.ops] == [op.kind for op in ops]
