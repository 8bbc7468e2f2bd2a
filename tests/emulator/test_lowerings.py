"""What the conformance suite does not reach: products without the native kernel, and refusals.

Every other lowering is held to its formula by the suite (tests/engines/test_conformance.py).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from anex.emulator.matmul import XlaMatmul
from anex.emulator.numerics import Level, storage
from anex.emulator.trace import trace
from anex.engines.conformance import compare, result_types
from anex.errors import UnsupportedError
from anex.mil.examples import Example, examples
from anex.mil.examples.build import const, fp16, fp32, int32
from anex.mil.ir import Literal, Op, Value
from anex.mil.types import DType, TensorType

PRODUCTS = ("conv", "linear", "matmul", "scaled_dot_product_attention")


def op_of(example: Example, inputs: dict[str, np.ndarray]) -> Op:
    """The example as one op whose constants are literals; fills `inputs` by value name."""

    def bind(name: str, argument: Any) -> Any:
        if isinstance(argument, Literal):
            return argument
        inputs[name] = argument
        return Value(name, TensorType(DType.of(argument.dtype), argument.shape))

    bindings = {name: bind(name, argument) for name, argument in example.args.items()}
    outputs = tuple(Value(f"result_{i}", t) for i, t in enumerate(result_types(example)))
    return Op(example.kind, bindings, outputs)


def run(cases: tuple[Example, ...], level: Level) -> list[list[np.ndarray]]:
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

    compiled = jax.jit(all_examples).lower(inputs).compile({"xla_allow_excess_precision": False})
    return [[np.asarray(a) for a in arrays] for arrays in compiled(inputs)]


@pytest.mark.parametrize("level", list(Level), ids=lambda level: level.value)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_without_the_native_kernel_give_the_formula(kind: str, level: Level) -> None:
    found = zip(examples(kind), run(examples(kind), level), strict=True)
    messages = [compare(example, level.value, got) for example, got in found]
    assert not [m for m in messages if m is not None]


def lstm(**more: Any) -> Example:
    plain = next(e for e in examples("lstm") if e.name == "default")
    return Example("lstm", "refused", {**plain.args, **{k: const(v) for k, v in more.items()}}, outputs=3)


POOL = {
    "x": fp16("pool", 1, 1, 6, 5), "kernel_sizes": const([3, 2]), "strides": const([2, 2]),
    "pad_type": const("valid"), "ceil_mode": const(True),
}  # fmt: skip

UNDEFINED = {
    "integer-quotient": Example("real_div", "int", {"x": int32("x", 3), "y": int32("y", 3, low=1)}),
    "lstm-clip": lstm(clip=0.5),
    "lstm-hard_sigmoid": lstm(recurrent_activation="hard_sigmoid"),
    "lstm-scaled_tanh": lstm(activation="SCALED_TANH"),
    "mean-behind-the-padding": Example("avg_pool", "ceil", POOL),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_no_document_defines_is_not_computed(name: str) -> None:
    with pytest.raises(UnsupportedError, match="not supported"):
        run((UNDEFINED[name],), Level.FP32)


def test_a_mean_whose_windows_all_fit_may_use_ceil_mode() -> None:
    args = {**POOL, "x": fp32("pool", 1, 1, 5, 4)}
    example = Example("avg_pool", "ceil", args)
    assert compare(example, "fp32", run((example,), Level.FP32)[0]) is None
