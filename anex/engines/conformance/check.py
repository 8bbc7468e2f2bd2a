"""What an example must give, and whether a result is that.

`build` makes the program that an engine runs, `expected` the float64 answer,
`compare` the verdict with a one-line reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from anex import mil
from anex.engines.conformance.registry import Arguments, Array, formulas
from anex.errors import UnsupportedError
from anex.mil import Builder, DType, TensorType
from anex.mil.examples import Argument, Example
from anex.mil.ops import Call, infer, lookup

Level = Literal["fp32", "fp16"]

FREE_ZERO = frozenset(
    {
        "sign", "maximum", "minimum", "clip", "threshold", "relu", "relu6", "clamped_relu", "gelu",
        "thresholded_relu", "prelu", "sigmoid_hard", "linear_activation", "mod", "floor_div", "pow", "add",
        "sub", "log", "cumsum", "conv", "conv_transpose", "linear", "matmul", "einsum", "lstm",
        "scaled_dot_product_attention", "max_pool", "avg_pool", "batch_norm", "instance_norm",
        "layer_norm", "softplus_parametric", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max",
        "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "scatter", "scatter_nd",
        "scatter_along_axis", "resize_bilinear", "upsample_bilinear", "dequantize",
    }
)  # fmt: skip
"""Ops whose definition leaves the sign of a zero result open (sums, choices between +0 and -0)."""

_FP16_LIMIT = 2.0**16
_FP32_LIMIT = 2.0**128
_FP32_TINY = 2.0**-126


def result_types(example: Example) -> tuple[TensorType, ...]:
    """The types that the op table infers for an example's results.

    Raises:
        InputError: The type rule refuses the call.
    """
    bindings = {name: _binding(name, argument) for name, argument in example.args.items()}
    call = Call(
        lookup(example.kind, example.opset), bindings, lambda o: o if isinstance(o, mil.Literal) else None,
        example.outputs,
    )  # fmt: skip
    return cast("tuple[TensorType, ...]", infer(call))


def dtypes_of(example: Example) -> frozenset[DType]:
    """The element types of an example's arguments and results."""
    bindings = {name: _binding(name, argument) for name, argument in example.args.items()}
    call = mil.Op(example.kind, bindings, ())
    kinds = [*(operand.type for operand in call.operands()), *result_types(example)]
    return frozenset(kind.dtype for kind in kinds if isinstance(kind, TensorType))


def _binding(name: str, argument: Argument) -> mil.Binding:
    if isinstance(argument, tuple):
        return tuple(cast(mil.Operand, _binding(f"{name}_{i}", a)) for i, a in enumerate(argument))
    if isinstance(argument, mil.Literal):
        return argument
    return mil.Value(name, TensorType(DType.of(argument.dtype), argument.shape))


def expected(example: Example) -> tuple[Array, ...]:
    """The results of an example by its float64 formula: float64, int64 or bool arrays.

    Raises:
        UnsupportedError: The op has no formula.
        AssertionError: The formula's shape is not the inferred one.
    """
    formula = formulas().get(example.kind)
    if formula is None:
        raise UnsupportedError(f"op '{example.kind}' in the conformance suite")
    types = result_types(example)
    values = {name: _wide(argument) for name, argument in example.args.items()}
    with np.errstate(all="ignore"):
        results = formula(Arguments(example.kind, values, types))
    results = tuple(np.asarray(r) for r in (results if isinstance(results, tuple) else (results,)))
    shapes = [r.shape for r in results]
    assert shapes == [t.dims for t in types], f"{example.id}: formula gives {shapes}, type rule {types}"
    return results


def _wide(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(_wide(a) for a in argument)
    array: Array = argument.array if isinstance(argument, mil.Literal) else argument
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    return array if array.dtype.kind in "bUO" else array.astype(np.float64)


def build(*examples: Example) -> tuple[mil.Program, Mapping[str, Array]]:
    """A program with the one function `main` that makes the examples' calls, and its inputs.

    Run-time arguments become parameters (`x`, or `values_0`, `values_1`, …),
    literals become constants; results are called `result` or `result_0`, …,
    and are returned in the order of the examples.  Where there are several
    examples, which must be of one opset, the names of the second start with
    `e1_`, and so on.
    """
    builder = Builder("main", examples[0].opset)
    inputs: dict[str, Array] = {}

    def bind(name: str, argument: Argument) -> Any:
        if isinstance(argument, tuple):
            return tuple(bind(f"{name}_{i}", a) for i, a in enumerate(argument))
        if isinstance(argument, mil.Literal):
            return builder.const(argument, name=name)
        inputs[name] = argument
        return builder.input(name, DType.of(argument.dtype), argument.shape)

    results: dict[str, mil.Value] = {}
    for i, example in enumerate(examples):
        start = f"e{i}_" if len(examples) > 1 else ""
        arguments = {name: bind(start + name, argument) for name, argument in example.args.items()}
        values = builder.ops(example.kind, name=f"{start}result", outputs=example.outputs, **arguments)
        results |= {v.name: v for v in values}
    return mil.Program({"main": builder.finish(results)}), inputs


def compare(example: Example, level: Level, got: Sequence[Any]) -> str | None:
    """None where results are right, else one line that says what is wrong first.

    Args:
        example: The call.
        level: `fp16` where each fp16 result was rounded once, `fp32` where none was.
        got: One array per result, of any dtype that holds the values.
    """
    wanted, types = expected(example), result_types(example)
    if len(got) != len(wanted):
        return f"{example.id}: {len(got)} results, not {len(wanted)}"
    for i, (ref, kind, array) in enumerate(zip(wanted, types, got, strict=True)):
        where = example.id if len(wanted) == 1 else f"{example.id} result {i}"
        array = np.asarray(array)
        if array.shape != ref.shape:
            return f"{where}: shape {array.shape}, not {ref.shape}"
        found = _worst(example, level, kind.dtype, ref, array)
        if found is not None:
            return f"{where} at {level}: {found}"
    return None


def _worst(example: Example, level: Level, dtype: DType, ref: Array, got: Array) -> str | None:
    if not dtype.is_float:
        return _first(ref != got, ref, got)
    narrow = level == "fp16" and dtype is DType.FP16
    got = got.astype(np.float64)
    special = np.isinf(ref) | np.isnan(ref)
    wrong = special & ~((ref == got) | (np.isnan(ref) & np.isnan(got)))
    if example.kind not in FREE_ZERO:
        wrong |= (ref == 0) & (got == 0) & (np.signbit(ref) != np.signbit(got))
    if wrong.any():
        return _first(wrong, ref, got)
    limit = _FP16_LIMIT if narrow else _FP32_LIMIT
    finite_ref = np.where(special, 0, np.clip(ref, -limit, limit))
    finite_got = np.where(special, 0, np.clip(got, -limit, limit))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(finite_got - finite_ref)
        allowed = _allowed(example, narrow, finite_ref)
        wrong = ~(error <= allowed)
        if not wrong.any():
            return None
        worst = int(np.argmax(np.where(wrong, np.where(np.isnan(error), np.inf, error / allowed), 0)))
    index = np.unravel_index(worst, ref.shape)
    ulp = fp16_ulp(finite_ref) if narrow else np.maximum(np.abs(finite_ref) * 2.0**-23, _FP32_TINY)
    return (
        f"[{', '.join(map(str, index))}] is {got[index]:.9g}, not {ref[index]:.9g}: "
        f"off by {error[index] / ulp[index]:.3g} ulp of {'fp16' if narrow else 'fp32'}, "
        f"{int(wrong.sum())} of {ref.size} wrong"
    )


def _allowed(example: Example, narrow: bool, ref: Array) -> Array:
    # Engines may flush what is subnormal in fp32; fp16 subnormals are normal there.
    base = np.abs(ref) if example.scale is None else np.full_like(ref, example.scale)
    wide: Array = base * example.fp32 + _FP32_TINY
    if not narrow:
        return wide
    once: Array = fp16_ulp(ref) * example.ulps
    return once if example.scale is None else once + wide


def fp16_ulp(values: Array) -> Array:
    """The distance of neighbouring fp16 numbers at each value, subnormals included."""
    _, exponent = np.frexp(np.clip(np.abs(values), 2.0**-14, 65504.0))
    ulp: Array = np.ldexp(1.0, exponent - 11)
    return ulp


def _first(wrong: Array, ref: Array, got: Array) -> str | None:
    if not wrong.any():
        return None
    index = np.unravel_index(int(np.argmax(wrong)), ref.shape)
    text = f"[{', '.join(map(str, index))}] is {got[index]}, not {ref[index]}"
    return f"{text}; {int(wrong.sum())} of {ref.size} wrong"
