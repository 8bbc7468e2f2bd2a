"""Type rules against coremltools' inference: equal where both accept, and never laxer.

Where coremltools accepts and we refuse, the refusal is a row of a table
(`anex.mil.ops.strict`, `anex.mil.ops.refusals`), and has a call here or in
`test_shape_rules`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from coremltools_types import Args, call_of, ours, run_time, theirs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anex.engines.conformance import result_types
from anex.errors import InputError
from anex.mil.examples import Example, examples
from anex.mil.ir import Literal
from anex.mil.ops import kinds
from anex.mil.ops.refusals import REFUSALS as HINTS
from anex.mil.ops.strict import REFUSALS
from anex.mil.types import DType, TensorType

F16, F32, I32, BOOL = DType.FP16, DType.FP32, DType.INT32, DType.BOOL


def half(*shape: int | None) -> TensorType:
    return run_time(F16, *shape)


def halves(*shape: int) -> Literal:
    """A constant of ones."""
    return Literal.of(np.ones(shape, np.float16))


def c(value: Any) -> Literal:
    """A constant; floats are fp16."""
    return Literal.of(value, F16 if isinstance(value, float) else None)


def args_of(example: Example) -> Args:
    def one(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(one, argument))
        return (
            argument if isinstance(argument, Literal) else run_time(DType.of(argument.dtype), *argument.shape)
        )

    return {name: one(argument) for name, argument in example.args.items()}


NEEDS = {
    # coremltools 9.0 makes a constant of Python's `range` where axes are absent, and fails.
    "layer_norm:default": {"axes": c([0, 1, 2, 3])},
}


@pytest.mark.parametrize("kind", [kind for kind in kinds() if examples(kind)])
def test_examples_have_the_types_that_coremltools_infers(kind: str) -> None:
    for example in examples(kind):
        args = {**args_of(example), **NEEDS.get(example.id, {})}
        assert result_types(example) == theirs(kind, args, example.opset), example.id


X4 = half(1, 6, 8, 8)
WEIGHT = halves(4, 6, 3, 3)
POOL = {"x": X4, "kernel_sizes": c([2, 2]), "pad_type": c("valid")}
LSTM = {
    "x": run_time(F32, 5, 2, 3),
    "initial_h": run_time(F32, 2, 4),
    "initial_c": run_time(F32, 2, 4),
    "weight_ih": Literal.of(np.ones((16, 3), np.float32)),
    "weight_hh": Literal.of(np.ones((16, 4), np.float32)),
}

REFUSED_BY_BOTH: list[tuple[str, str, Args]] = [
    ("add", "ios15", {"x": half(2, 3), "y": half(2, 4)}),
    ("add", "ios15", {"x": run_time(BOOL, 2), "y": run_time(BOOL, 2)}),
    ("add", "ios15", {"x": half(2)}),
    ("add", "ios15", {"x": half(2), "y": half(2), "z": half(2)}),
    ("logical_and", "ios15", {"x": half(2), "y": half(2)}),
    ("exp", "ios15", {"x": run_time(I32, 2)}),
    ("clip", "ios15", {"x": half(2), "alpha": half(), "beta": c(1.0)}),
    ("clip", "ios17", {"x": half(2), "alpha": c(1.0), "beta": c(1.0)}),
    ("gelu", "ios15", {"x": half(2), "mode": c("FAST")}),
    ("leaky_relu", "ios15", {"x": half(2), "alpha": Literal.of(0.5)}),
    ("prelu", "ios15", {"x": half(2, 3), "alpha": halves(3)}),
    ("prelu", "ios15", {"x": half(2, 3, 4), "alpha": halves(4)}),
    ("prelu", "ios15", {"x": half(2, 3, 4), "alpha": c([0.1, 0.2, 0.3])}),
    ("prelu", "ios15", {"x": half(2, 3, 4, 4), "alpha": halves(3, 1)}),
    ("softplus_parametric", "ios15", {"x": half(2, 3, 4), "alpha": halves(3), "beta": halves(2)}),
    ("softplus_parametric", "ios15", {"x": half(2, 3), "alpha": halves(3), "beta": halves(3)}),
    ("reduce_sum", "ios15", {"x": half(2, 3), "axes": c([2])}),
    ("reduce_sum", "ios15", {"x": run_time(BOOL, 2, 3)}),
    ("reduce_argmax", "ios15", {"x": half(2, 3), "axis": c(2)}),
    ("reduce_argmax", "ios15", {"x": half(2, 3), "output_dtype": c("uint16")}),
    ("reduce_argmax", "ios17", {"x": half(2, 3), "output_dtype": c("int16")}),
    ("cumsum", "ios15", {"x": half(2, 3), "axis": c(-2)}),
    ("cumsum", "ios15", {"x": half(2, 3), "axis": c(2)}),
    ("layer_norm", "ios15", {"x": half(2, 3), "axes": c([2])}),
    ("layer_norm", "ios15", {"x": half(2, 3), "axes": c([1]), "gamma": halves(2)}),
    ("layer_norm", "ios15", {"x": half(2, 3), "axes": c([1]), "beta": halves(3)}),
    ("l2_norm", "ios15", {"x": half(2, 3)}),
    ("conv", "ios15", {"x": half(1, 5, 8, 8), "weight": WEIGHT}),
    ("conv", "ios15", {"x": half(1, 7, 8, 8), "weight": halves(4, 3, 1, 1), "groups": c(2)}),
    ("conv", "ios15", {"x": X4, "weight": WEIGHT, "bias": halves(5)}),
    ("conv", "ios15", {"x": X4, "weight": WEIGHT, "bias": halves(4, 1)}),
    ("conv", "ios15", {"x": X4, "weight": WEIGHT, "pad_type": c("same_lower")}),
    ("conv", "ios16", {"x": X4, "weight": WEIGHT, "pad_type": c("SAME")}),
    ("conv", "ios16", {"x": X4, "weight": WEIGHT, "pad_type": c("custom"), "pad": c([1, 1])}),
    ("conv", "ios16", {"x": X4, "weight": WEIGHT, "strides": c([1])}),
    ("conv", "ios16", {"x": X4, "weight": WEIGHT, "strides": c([0, 1])}),
    ("conv", "ios16", {"x": X4, "weight": WEIGHT, "dilations": c([4, 4])}),
    ("conv", "ios16", {"x": X4, "weight": half(4, 6, 3, 3), "dilations": c([2, 1])}),
    ("conv", "ios16", {"x": X4, "weight": halves(4, 6, 9, 3)}),
    ("conv", "ios16", {"x": X4, "weight": Literal.of(np.ones((4, 6, 3, 3), np.float32))}),
    ("conv_transpose", "ios15", {"x": X4, "weight": halves(6, 4, 3, 3), "bias": halves(6)}),
    ("conv_transpose", "ios15", {"x": X4, "weight": half(6, 4, 3, 3)}),
    ("conv_transpose", "ios16", {"x": X4, "weight": halves(6, 4, 3, 3), "pad_type": c("same_lower")}),
    ("conv_transpose", "ios16", {"x": X4, "weight": halves(6, 4, 3, 3), "output_shape": c([1, 5, 10, 10])}),
    ("linear", "ios15", {"x": half(2, 3), "weight": halves(4, 5)}),
    ("linear", "ios15", {"x": half(2, 3), "weight": halves(1, 4, 3)}),
    ("linear", "ios15", {"x": half(2, 3), "weight": halves(4, 3), "bias": halves(3)}),
    ("linear", "ios17", {"x": half(2, 3), "weight": half(4, 3)}),
    ("matmul", "ios15", {"x": half(2, 3), "y": half(4, 5)}),
    ("matmul", "ios15", {"x": half(2, 3), "y": half(3)}),
    ("matmul", "ios15", {"x": half(3), "y": half(3, 4), "transpose_x": c(True)}),
    ("matmul", "ios15", {"x": half(2, 2, 3), "y": half(3, 3, 4)}),
    ("matmul", "ios15", {"x": half(2, 3), "y": run_time(F32, 3, 4)}),
    ("matmul", "ios17", {"x": half(2, 3), "y": run_time(F32, 3, 4)}),
    ("einsum", "ios15", {"values": (half(2, 3, 4),), "equation": c("nchw,nwhu->nchu")}),
    ("einsum", "ios15", {"values": (half(1, 2, 3, 4), half(1, 4, 3, 5)), "equation": c("nchw,nwhu->nchuu")}),
    ("einsum", "ios15", {"values": (half(1, 2, 3, 4), half(1, 4, 3, 5)), "equation": c("abcd,abcd->abcd")}),
    ("einsum", "ios15", {"values": (half(1, 2, 3, 4), half(1, 5, 3, 5)), "equation": c("nchw,nwhu->nchu")}),
    ("einsum", "ios15", {"values": (half(1, 2, 3, 4), half(1, 4, 2, 5)), "equation": c("nchw,nwhu->nchu")}),
    *(
        (
            "scaled_dot_product_attention",
            "ios18",
            {"query": half(*q), "key": half(*k), "value": half(*v), **more},
        )
        for q, k, v, more in [
            ((3, 8), (5, 8), (5, 8), {}),
            ((1, 3, 8), (1, 1, 5, 8), (1, 5, 8), {}),
            ((1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8), {}),
            ((1, 3, 8), (1, 5, 7), (1, 5, 8), {}),
            ((1, 3, 8), (1, 5, 8), (1, 4, 8), {}),
            ((1, 3, 8), (1, 5, 8), (1, 5, 8), {"attn_mask": half(3, 4)}),
            ((1, 3, 8), (1, 5, 8), (1, 5, 8), {"attn_mask": half(2, 5)}),
        ]
    ),
    ("max_pool", "ios15", {**POOL, "pad_type": c("same_lower")}),
    ("max_pool", "ios15", {**POOL, "pad_type": c("full")}),
    ("max_pool", "ios15", {**POOL, "kernel_sizes": c([2])}),
    ("max_pool", "ios15", {**POOL, "kernel_sizes": c([9, 1])}),
    ("max_pool", "ios15", {**POOL, "strides": c([0, 1])}),
    ("max_pool", "ios15", {**POOL, "pad": c([1])}),
    ("max_pool", "ios15", {**POOL, "pad_type": c("same"), "ceil_mode": c(True)}),
    ("max_pool", "ios15", {**POOL, "pad_type": c("custom"), "pad": c([1, 0, 0, 0]), "ceil_mode": c(True)}),
    (
        "avg_pool",
        "ios15",
        {**POOL, "x": half(1, 2, 4, 4, 4), "kernel_sizes": c([2, 2, 2]), "ceil_mode": c(True)},
    ),
    ("l2_pool", "ios15", {**POOL, "x": half(1, 2, 4, 4, 4), "kernel_sizes": c([2, 2, 2])}),
    ("lstm", "ios15", {**LSTM, "x": run_time(F32, 5, 3)}),
    ("lstm", "ios15", {**LSTM, "direction": c("backward")}),
    ("lstm", "ios15", {**LSTM, "direction": c("bidirectional")}),
    ("lstm", "ios15", {**LSTM, "activation": c("gelu")}),
    ("lstm", "ios15", {**LSTM, "weight_hh": Literal.of(np.ones((12, 4), np.float32))}),
    ("lstm", "ios15", {**LSTM, "x": half(5, 2, 3)}),
    ("lstm", "ios18", {k: v for k, v in LSTM.items() if k != "initial_c"}),
]


def case_ids(cases: list[tuple[str, str, Args]]) -> list[str]:
    return [f"{kind}-{i}" for i, (kind, *_) in enumerate(cases)]


@pytest.mark.parametrize(("kind", "opset", "args"), REFUSED_BY_BOTH, ids=case_ids(REFUSED_BY_BOTH))
def test_what_coremltools_refuses_is_refused(kind: str, opset: str, args: Args) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 (coremltools raises whatever comes)
        theirs(kind, args, opset)
    with pytest.raises(InputError, match=kind):
        ours(kind, args, opset)


NORM = {"mean": halves(3), "variance": halves(3)}
TRANSPOSE = {"x": X4, "weight": halves(6, 4, 3, 3)}
ATTENTION = {"query": half(1, 3, 8), "key": half(1, 5, 8), "value": half(1, 5, 8)}
CEIL = {"ceil_mode": c(True)}
EINSUM4 = c("nchw,nwhu->nchu")

NONSENSE: list[tuple[str, str, Args]] = [
    ("clip-order", "clip", {"x": half(2, 3), "alpha": c(1.0), "beta": c(-1.0), "opset": "ios15"}),
    ("select-cond", "select", {"cond": run_time(BOOL, 4, 3), "a": half(1, 3), "b": half(3)}),
    ("select-cond", "select", {"cond": run_time(BOOL, 2, 1, 3), "a": half(2, 3), "b": half(3)}),
    ("batch_norm-channels", "batch_norm", {"x": half(2, 4, 5), **NORM}),
    ("batch_norm-channels", "batch_norm", {"x": half(2, 3), **NORM}),
    ("instance_norm-channels", "instance_norm", {"x": half(2, 4, 5), "gamma": halves(3)}),
    (
        "layer_norm-beta", "layer_norm",
        {"x": half(2, 3), "axes": c([1]), "gamma": halves(3), "beta": halves(4)},
    ),
    ("lrn-rank", "local_response_norm", {"x": half(2, 3), "size": c(3)}),
    ("lrn-size", "local_response_norm", {"x": half(2, 3, 4), "size": c(0)}),
    ("spatial-rank", "conv", {"x": half(1, 2, 3, 3, 3, 3), "weight": halves(2, 2, 1, 1, 1, 1)}),
    ("window-step", "conv", {"x": X4, "weight": halves(4, 6, 8, 8), "strides": c([-1, 1])}),
    ("window-step", "max_pool", {**POOL, "kernel_sizes": c([0, 2])}),
    ("negative-pad", "conv", {"x": X4, "weight": WEIGHT, "pad_type": c("custom"), "pad": c([-1, 0, 0, 0])}),
    ("unused-pad", "conv", {"x": X4, "weight": WEIGHT, "pad_type": c("valid"), "pad": c([1, 1, 1, 1])}),
    ("unused-pad", "avg_pool", {**POOL, "pad": c([1, 1, 1, 1])}),
    ("conv-groups", "conv", {"x": X4, "weight": halves(4, 2, 3, 3), "groups": c(3)}),
    ("conv_transpose-channels", "conv_transpose", {**TRANSPOSE, "weight": halves(5, 4, 3, 3)}),
    ("conv_transpose-channels", "conv_transpose", {**TRANSPOSE, "groups": c(4)}),
    ("conv_transpose-size", "conv_transpose", {**TRANSPOSE, "pad_type": c("custom"), "pad": c([5, 5, 0, 0])}),
    ("conv_transpose-size", "conv_transpose", {**TRANSPOSE, "output_shape": c([1, 4, 10, 11])}),
    ("linear-mixed", "linear", {"x": half(2, 3), "weight": Literal.of(np.ones((4, 3), np.int32))}),
    ("matmul-mixed", "matmul", {"x": half(2, 3), "y": Literal.of(np.ones((3, 4), np.int32))}),
    ("matmul-vector-batch", "matmul", {"x": half(7), "y": half(2, 7, 3)}),
    ("einsum-operands", "einsum", {"values": (half(2, 3, 4), half(4, 3, 5)), "equation": EINSUM4}),
    (
        "einsum-operands", "einsum",
        {"values": (run_time(I32, 1, 2, 3, 4), run_time(I32, 1, 4, 3, 5)), "equation": EINSUM4},
    ),
    ("attention-mask", "scaled_dot_product_attention", {**ATTENTION, "attn_mask": half(4, 3, 5)}),
    ("attention-mask", "scaled_dot_product_attention", {**ATTENTION, "attn_mask": half(2, 1, 3, 5)}),
    ("attention-mask", "scaled_dot_product_attention", {**ATTENTION, "attn_mask": run_time(F32, 3, 5)}),
    ("pool-empty-window", "max_pool", {**POOL, "pad_type": c("custom"), "pad": c([2, 2, 0, 0])}),
    (
        "pool-empty-window", "avg_pool",
        {**POOL, "x": half(1, 2, 5, 5), "kernel_sizes": c([1, 1]), "strides": c([3, 3]), **CEIL},
    ),
    ("pool-ceil-same", "max_pool", {**POOL, "pad_type": c("same_lower"), "ceil_mode": c(True)}),
    ("lstm-shapes", "lstm", {**LSTM, "initial_h": run_time(F32, 2, 5)}),
    ("lstm-shapes", "lstm", {**LSTM, "weight_ih": Literal.of(np.ones((17, 3), np.float32))}),
    ("lstm-shapes", "lstm", {**LSTM, "bias": Literal.of(np.ones(15, np.float32))}),
]  # fmt: skip


def test_every_listed_refusal_has_a_call() -> None:
    assert {name for name, *_ in NONSENSE} == {refusal.name for refusal in REFUSALS}


@pytest.mark.parametrize(
    ("name", "kind", "args"),
    NONSENSE,
    ids=[f"{kind}-{name}-{i}" for i, (name, kind, _) in enumerate(NONSENSE)],
)
def test_nonsense_that_coremltools_accepts_is_refused(name: str, kind: str, args: dict[str, Any]) -> None:
    opset = args.get("opset", "ios18")
    call = {key: value for key, value in args.items() if key != "opset"}
    theirs(kind, call, opset)
    with pytest.raises(InputError, match=kind):
        ours(kind, call, opset)
    (refusal,) = (r for r in REFUSALS if r.name == name)
    assert kind in refusal.kinds


ONE_FALSE = Literal.of([False])
HINTED: list[tuple[str, str, Args]] = [
    ("axis-range", "softmax", {"x": half(2, 3), "axis": c(4)}),
    ("axis-range", "softmax", {"x": half()}),
    ("axis-range", "reduce_sum", {"x": half(2, 3, 4), "axes": c([-5])}),
    ("axis-twice", "reduce_sum", {"x": half(2, 3, 4), "axes": c([1, 1])}),
    ("axis-twice", "reduce_max", {"x": half(2, 3, 4), "axes": c([1, -2]), "keep_dims": c(True)}),
    ("axis-twice", "layer_norm", {"x": half(2, 3, 4), "axes": c([1, 1])}),
    ("scalar", "leaky_relu", {"x": half(2, 3), "alpha": halves(3)}),
    ("scalar", "threshold", {"x": half(2, 3), "alpha": halves(3)}),
    ("scalar", "rsqrt", {"x": half(2, 3), "epsilon": halves(3)}),
    ("scalar", "rsqrt", {"x": half(2, 3), "epsilon": halves(1)}),
    ("scalar", "local_response_norm", {"x": half(2, 3, 4), "size": c(3), "alpha": halves(3)}),
    ("scalar", "matmul", {"x": half(2, 3), "y": half(3, 2), "transpose_y": ONE_FALSE}),
    ("scalar", "softmax", {"x": half(2, 3), "axis": c([0])}),
    ("rank", "reverse", {"x": half(2, 3), "axes": c(0)}),
]


@pytest.mark.parametrize(
    ("row", "kind", "args"), HINTED, ids=[f"{kind}-{row}-{i}" for i, (row, kind, _) in enumerate(HINTED)]
)
def test_wrong_ranks_and_axes_that_coremltools_accepts_are_refused(row: str, kind: str, args: Args) -> None:
    theirs(kind, args)
    with pytest.raises(InputError, match=kind) as caught:
        ours(kind, args)
    assert caught.value.hint == HINTS[row]


SAME = {"pad_type": c("same")}
UNKNOWN: list[tuple[str, Args, tuple[TensorType, ...]]] = [
    ("add", {"x": half(None, 3), "y": half(1, 3)}, (half(None, 3),)),
    ("add", {"x": half(None, 1), "y": half(4, 3)}, (half(4, 3),)),
    ("less", {"x": half(None), "y": half(2, None)}, (run_time(BOOL, 2, None),)),
    ("select", {"cond": run_time(BOOL, 1, None), "a": half(2, None), "b": half(1)}, (half(2, None),)),
    ("silu", {"x": half(None, 4)}, (half(None, 4),)),
    ("softmax", {"x": half(None, 4), "axis": c(0)}, (half(None, 4),)),
    ("reduce_sum", {"x": half(None, 4, None), "axes": c([0])}, (half(4, None),)),
    ("reduce_sum", {"x": half(None, 4), "axes": c([0]), "keep_dims": c(True)}, (half(1, 4),)),
    ("layer_norm", {"x": half(None, 4), "axes": c([1]), "gamma": halves(4)}, (half(None, 4),)),
    ("batch_norm", {"x": half(1, None, 4), **NORM}, (half(1, None, 4),)),
    ("matmul", {"x": half(None, 2, 3), "y": half(1, None, 4)}, (half(None, 2, 4),)),
    ("matmul", {"x": half(1, None, 3), "y": half(3, 4)}, (half(1, None, 4),)),
    ("linear", {"x": half(1, None, 3), "weight": halves(4, 3)}, (half(1, None, 4),)),
    ("conv", {"x": half(None, 6, None, 8), "weight": WEIGHT, **SAME}, (half(None, 4, None, 8),)),
    ("conv", {"x": half(1, None, 8, 8), "weight": WEIGHT}, (half(1, 4, 6, 6),)),
    ("conv_transpose", {**TRANSPOSE, "x": half(None, 6, 8, None)}, (half(None, 4, 10, None),)),
    ("max_pool", {**POOL, "x": half(None, 6, 8, None)}, (half(None, 6, 7, None),)),
    ("scaled_dot_product_attention", {**ATTENTION, "query": half(1, None, 8)}, (half(1, None, 8),)),
    (
        "einsum", {"values": (half(None, 2, 3, None), half(1, 4, None, 5)), "equation": EINSUM4},
        (half(None, 2, 3, 5),),
    ),
    (
        "lstm", {**LSTM, "x": run_time(F32, None, 2, 3), "output_sequence": c(True)},
        (run_time(F32, None, 2, 4), run_time(F32, 2, 4), run_time(F32, 2, 4)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "args", "expected"), UNKNOWN, ids=[f"{k}-{i}" for i, (k, *_) in enumerate(UNKNOWN)]
)
def test_unknown_dimensions_stay_unknown_and_no_more(
    kind: str, args: Args, expected: tuple[TensorType, ...]
) -> None:
    assert ours(kind, args) == expected


# --- random calls against coremltools --------------------------------------------


def agrees(kind: str, args: Args, opset: str = "ios18") -> None:
    """Both give the same type, both refuse, or ours refuses for a listed reason."""
    try:
        reference = theirs(kind, args, opset)
    except Exception:  # whatever coremltools raises is its refusal
        with pytest.raises(InputError):
            ours(kind, args, opset)
        return
    try:
        found = ours(kind, args, opset)
    except InputError as error:
        if error.hint in HINTS.values():
            return
        listed = [r.find(call_of(kind, args, opset)) for r in REFUSALS if kind in r.kinds]
        assert any(what is not None for what in listed)
    else:
        assert found == reference


FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
dims = st.integers(1, 4)
shapes = st.lists(dims, max_size=4)


@FEW
@given(shapes, shapes, st.sampled_from(["add", "less", "pow"]))
def test_random_broadcasts_agree(x: list[int], y: list[int], kind: str) -> None:
    agrees(kind, {"x": half(*x), "y": half(*y)})


@FEW
@given(st.data())
def test_random_reductions_agree(data: Any) -> None:
    shape = data.draw(st.lists(dims, min_size=1, max_size=4))
    axes = data.draw(st.lists(st.integers(-4, 4), min_size=1, max_size=3))
    args = {"x": half(*shape), "axes": c(axes), "keep_dims": c(data.draw(st.booleans()))}
    agrees("reduce_mean", args)


@FEW
@given(shapes, shapes, st.booleans(), st.booleans())
def test_random_products_agree(x: list[int], y: list[int], tx: bool, ty: bool) -> None:
    agrees("matmul", {"x": half(*x), "y": half(*y), "transpose_x": c(tx), "transpose_y": c(ty)})


@FEW
@given(st.data())
def test_random_windows_agree(data: Any) -> None:
    rank, small = data.draw(st.integers(1, 2)), st.integers(1, 3)
    vector = st.lists(small, min_size=rank, max_size=rank)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    kernel, strides, dilations = (data.draw(vector) for _ in range(3))
    pad_type = data.draw(st.sampled_from(["valid", "same", "same_lower", "custom"]))
    pad = data.draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank))
    step = {
        "strides": c(strides),
        "pad_type": c(pad_type),
        **({"pad": c(pad)} if pad_type == "custom" else {}),
    }
    conv = {**step, "dilations": c(dilations)}
    agrees("conv", {"x": half(1, 2, *sizes), "weight": halves(3, 2, *kernel), **conv})
    agrees("conv_transpose", {"x": half(1, 2, *sizes), "weight": halves(2, 3, *kernel), **conv})
    pool = {
        "x": half(1, 2, *sizes),
        "kernel_sizes": c(kernel),
        **step,
        "ceil_mode": c(data.draw(st.booleans())),
    }
    agrees("max_pool", pool)
