"""The judge of results is itself held to numpy's fp16 and to what it must not let pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anex.engines.conformance import build, compare, expected, result_types
from anex.engines.conformance.check import fp16_ulp
from anex.mil.examples import Example
from anex.mil.ir import Literal
from anex.mil.types import DType, TensorType

X = np.array([1.0, -2.5, 0.0, -0.0, 2.0**-24, 60000.0, np.inf, np.nan], np.float16)
ABS = Example("abs", "test", {"x": X})
DOUBLED = Example("add", "test", {"x": X, "y": X})


def test_ulp_is_numpys_spacing() -> None:
    # Of all finite numbers but the largest, whose upper neighbour is no number.
    values = np.arange(0x7BFF, dtype=np.uint16).view(np.float16)
    assert np.array_equal(fp16_ulp(values.astype(np.float64)), np.spacing(values).astype(np.float64))


def test_expected_is_wide_and_typed() -> None:
    (result,) = expected(DOUBLED)
    assert result.dtype == np.float64
    assert np.array_equal(result, X.astype(np.float64) * 2, equal_nan=True)
    assert result_types(DOUBLED) == (TensorType(DType.FP16, (8,)),)


def test_build_names_inputs_and_results() -> None:
    y = Literal.of(0.5, DType.FP16)
    program, inputs = build(Example("mul", "test", {"x": X, "y": y}))
    main = program.functions["main"]
    assert list(inputs) == ["x"]
    assert [v.name for v in main.inputs] == ["x"]
    assert [(v.name, v.type) for v in main.outputs] == [("result", TensorType(DType.FP16, (8,)))]
    assert [op.kind for op in main.ops] == ["const", "mul"]


def test_a_correct_rounding_is_right_at_both_levels() -> None:
    with np.errstate(over="ignore"):
        rounded = (X.astype(np.float64) * 2).astype(np.float16)
    assert compare(DOUBLED, "fp16", [rounded]) is None
    assert compare(DOUBLED, "fp32", [X.astype(np.float32) * 2]) is None


def test_overflow_is_infinite_only_where_values_are_rounded_to_fp16() -> None:
    finite = np.where(np.arange(8) == 5, 65504.0, X.astype(np.float64) * 2)
    message = compare(DOUBLED, "fp16", [finite])
    assert message is not None
    assert "65504" in message
    with np.errstate(over="ignore"):
        overflowed = (X.astype(np.float64) * 2).astype(np.float16)
    assert compare(DOUBLED, "fp32", [overflowed]) is not None


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, 1 + 2.0**-10),  # one ulp off
        (1, 2.5 - 2.0**-9),
        (2, -0.0),  # the sign of zero
        (4, 0.0),  # a flushed subnormal
        (5, np.inf),
        (6, 65504.0),
        (6, -np.inf),
        (7, 0.0),
        (0, np.nan),
    ],
)
def test_one_wrong_number_is_found(index: int, value: float) -> None:
    right = np.abs(X.astype(np.float64))
    assert compare(ABS, "fp16", [right]) is None
    wrong = right.copy()
    wrong[index] = value
    message = compare(ABS, "fp16", [wrong])
    assert message is not None
    assert f"[{index}]" in message
    assert "\n" not in message


def test_shapes_counts_and_integers_are_exact() -> None:
    assert "shape" in str(compare(ABS, "fp16", [np.ones((1, 8))]))
    assert "2 results" in str(compare(ABS, "fp16", [X, X]))
    ints = np.array([1, -2, 3], np.int32)
    call = Example("abs", "int", {"x": ints})
    assert compare(call, "fp16", [np.abs(ints)]) is None
    assert "[1] is 3, not 2" in str(compare(call, "fp16", [np.array([1, 3, 3])]))


def test_a_scale_allows_for_sums_that_cancel() -> None:
    args: dict[str, Any] = {"x": np.array([3.0, 1.0, -3.0], np.float32)}
    plain = Example("reduce_sum", "plain", args)
    scaled = Example("reduce_sum", "scaled", args, scale=10.0)
    off = [np.array(1 + 5e-6)]
    assert compare(plain, "fp32", off) is not None
    assert compare(scaled, "fp32", off) is None
