"""Slices whose begin the executor passes as an argument, as it does for the offsets of a repeated layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

from anex.emulator.matmul import XlaMatmul
from anex.emulator.numerics import Level
from anex.emulator.trace import trace
from anex.errors import UnsupportedError
from anex.mil.ir import Literal, Op, Value
from anex.mil.types import DType, TensorType

X = np.arange(4 * 5 * 6, dtype=np.float16).reshape(4, 5, 6)
const = Literal.of


def run(kind: str, shape: tuple[int, ...], begin: list[int], **parameters: Any) -> np.ndarray:
    """The op with `begin` as an argument of one compiled function."""
    bound: Mapping[str, Any] = {
        "x": Value("x", TensorType(DType.FP16, X.shape)),
        "begin": Value("begin", TensorType(DType.INT32, (X.ndim,))),
        **{k: v if isinstance(v, (Literal, Value)) else const(v) for k, v in parameters.items()},
    }
    op = Op(kind, bound, (Value("out", TensorType(DType.FP16, shape)),))

    def call(x: jax.Array, begin: jax.Array) -> Any:
        return trace([op], {"x": x, "begin": begin}, Level.FP16, XlaMatmul())["out"]

    return np.asarray(jax.jit(call)(X, np.array(begin, np.int32)))


@pytest.mark.parametrize("begin", [[0, 0, 0], [2, 3, 1], [-2, 1, 2]])
def test_slice_by_size(begin: list[int]) -> None:
    a, b, c = (at % d for at, d in zip(begin, X.shape, strict=True))
    found = run("slice_by_size", (2, 2, 4), begin, size=[2, 2, 4])
    np.testing.assert_array_equal(found, X[a : a + 2, b : b + 2, c : c + 4])


def test_slice_by_index_takes_the_declared_size_from_begin_on() -> None:
    # `end` is the one of another layer: only its distance from that layer's begin counted
    found = run("slice_by_index", (2, 5, 3), [1, 9, 2], end=[4, 0, 6],
                begin_mask=[False, True, False], end_mask=[False, True, False])  # fmt: skip
    np.testing.assert_array_equal(found, X[1:3, :, 2:5])


def test_slice_by_index_with_one_index() -> None:
    found = run("slice_by_index", (2, 6), [3, 1, 0], end=[0, 3, 6], squeeze_mask=[True, False, False])
    np.testing.assert_array_equal(found, X[3, 1:3, :])


def test_slice_update() -> None:
    update = np.full((2, 5, 2), -1, np.float16)
    found = run("slice_update", X.shape, [2, 0, 3], update=update, end=[4, 5, 5])
    wanted = X.copy()
    wanted[2:4, :, 3:5] = -1
    np.testing.assert_array_equal(found, wanted)


def test_a_stride_needs_a_constant_begin() -> None:
    with pytest.raises(UnsupportedError, match="run-time 'begin' of slice_by_index with a stride"):
        run("slice_by_index", (2, 5, 6), [0, 0, 0], end=[4, 5, 6], stride=[2, 1, 1])
