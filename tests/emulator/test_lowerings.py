"""Every lowering against the float64 formula of its op, at both levels, on every example."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from anex.emulator.lowering import lowerings
from anex.emulator.matmul import XlaMatmul
from anex.emulator.numerics import Level, storage
from anex.emulator.trace import trace
from anex.engines.conformance import compare, result_types
from anex.mil.examples import Example, examples
from anex.mil.ir import Literal, Op, Value
from anex.mil.types import DType, TensorType

KINDS = [kind for kind in sorted(lowerings()) if examples(kind)]


def op_of(example: Example, inputs: dict[str, np.ndarray]) -> Op:
    """The example as one op whose constants are literals; fills `inputs` by value name."""

    def bind(name: str, argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(bind(f"{name}_{i}", a) for i, a in enumerate(argument))
        if isinstance(argument, Literal):
            return argument
        inputs[name] = argument
        return Value(name, TensorType(DType.of(argument.dtype), argument.shape))

    bindings = {name: bind(name, argument) for name, argument in example.args.items()}
    outputs = tuple(Value(f"result_{i}", t) for i, t in enumerate(result_types(example)))
    return Op(example.kind, bindings, outputs)


def run(kind: str, level: Level) -> list[list[np.ndarray]]:
    """The results of all examples of an op, compiled as one function."""
    ops, inputs = [], []
    for example in examples(kind):
        arrays: dict[str, np.ndarray] = {}
        ops.append(op_of(example, arrays))
        kinds = {n: TensorType(DType.of(a.dtype), a.shape) for n, a in arrays.items()}
        inputs.append({n: a.astype(storage(kinds[n], level)) for n, a in arrays.items()})

    def all_examples(inputs: list[dict[str, jax.Array]]) -> list[list[jax.Array]]:
        results = [trace([op], values, level, XlaMatmul()) for op, values in zip(ops, inputs, strict=True)]
        return [[found[v.name] for v in op.outputs] for op, found in zip(ops, results, strict=True)]

    compiled = jax.jit(all_examples).lower(inputs).compile({"xla_allow_excess_precision": False})
    return [[np.asarray(a) for a in arrays] for arrays in compiled(inputs)]


@pytest.mark.parametrize("level", list(Level), ids=lambda level: level.value)
@pytest.mark.parametrize("kind", KINDS)
def test_lowering_gives_the_formula(kind: str, level: Level) -> None:
    found = zip(examples(kind), run(kind, level), strict=True)
    messages = [compare(example, level.value, got) for example, got in found]
    assert not [m for m in messages if m is not None]
