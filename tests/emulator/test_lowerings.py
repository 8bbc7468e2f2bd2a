"""Every lowering against the float64 formula of its op, at both levels, on every example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

# Compiling is nearly all of the time of these tests; the engine's own tests use the optimiser.
OPTIONS = {"xla_allow_excess_precision": False, "xla_backend_optimization_level": 0}
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


def rounds(example: Example) -> bool:
    """Whether the levels differ: an example without fp16 gives the same at both."""
    arrays = [a.array if isinstance(a, Literal) else a for a in _flat(example.args.values())]
    declared = {a.dtype for a in arrays} | {t.dtype.numpy for t in result_types(example)}
    return np.dtype(np.float16) in declared


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    for argument in arguments:
        yield from argument if isinstance(argument, tuple) else (argument,)


def cases(kind: str, level: Level) -> list[Example]:
    return [e for e in examples(kind) if level is Level.FP32 or rounds(e)]


def run(cases: list[Example], level: Level) -> list[list[np.ndarray]]:
    """The results of examples, compiled as one function."""
    ops, inputs = [], []
    for example in cases:
        arrays: dict[str, np.ndarray] = {}
        ops.append(op_of(example, arrays))
        kinds = {n: TensorType(DType.of(a.dtype), a.shape) for n, a in arrays.items()}
        inputs.append({n: a.astype(storage(kinds[n], level)) for n, a in arrays.items()})

    def all_examples(inputs: list[dict[str, jax.Array]]) -> list[list[jax.Array]]:
        results = [trace([op], values, level, XlaMatmul()) for op, values in zip(ops, inputs, strict=True)]
        return [[found[v.name] for v in op.outputs] for op, found in zip(ops, results, strict=True)]

    compiled = jax.jit(all_examples).lower(inputs).compile(OPTIONS)
    return [[np.asarray(a) for a in arrays] for arrays in compiled(inputs)]


@pytest.mark.parametrize("level", list(Level), ids=lambda level: level.value)
@pytest.mark.parametrize("kind", KINDS)
def test_lowering_gives_the_formula(kind: str, level: Level) -> None:
    chosen = cases(kind, level)
    found = zip(chosen, run(chosen, level), strict=True)
    messages = [compare(example, level.value, got) for example, got in found]
    assert not [m for m in messages if m is not None]
