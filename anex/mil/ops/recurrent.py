"""The long short-term memory."""

from __future__ import annotations

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.strict import strict
from anex.mil.types import TensorType, Type

DIRECTIONS = ("forward", "reverse", "bidirectional")
ACTIVATIONS = ("tanh", "scaled_tanh", "sigmoid", "hard_sigmoid", "relu", "linear")

_LSTM = (
    "x: T, initial_h: T, initial_c: T, weight_ih: const T, weight_hh: const T, bias?: const T, "
    "peephole?: const T, weight_ih_back?: const T, weight_hh_back?: const T, bias_back?: const T, "
    "peephole_back?: const T, direction?: const string, output_sequence?: const bool, "
    "recurrent_activation?: const string, cell_activation?: const string, "
    "activation?: const string, clip?: const scalar T"
)


def _check_weights(call: Call, suffix: str) -> int:
    """The hidden size, after the shapes of one direction's weights were checked."""
    names = (f"weight_ih{suffix}", f"weight_hh{suffix}")
    for name in names:
        if name not in call:
            raise call.error(f"direction 'bidirectional' needs '{name}'")
    inner, hidden = (call.type(name) for name in names)
    if inner.rank != 2 or hidden.rank != 2:
        raise call.error(f"weights have the ranks {inner.rank} and {hidden.rank}, takes 2")
    (outer, _), (gates, size) = inner.dims, hidden.dims
    if size == 0 or outer // size != 4 or gates // size != 4:
        raise call.error(f"weights are {inner} and {hidden}, takes [4 * H, I] and [4 * H, H]")
    return size


def _lstm(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if x.rank != 3:
        raise call.error(f"x has rank {x.rank}, takes 3")
    direction = call.value("direction", "forward")
    if direction not in DIRECTIONS:
        raise call.error(f"unknown direction '{direction}' (known: {', '.join(DIRECTIONS)})")
    size = _check_weights(call, "")
    if direction == "bidirectional":
        _check_weights(call, "_back")
        size *= 2
    for name in ("recurrent_activation", "cell_activation", "activation"):
        activation = call.value(name, "tanh")
        if activation.lower() not in ACTIVATIONS:
            raise call.error(f"unknown {name} '{activation}' (known: {', '.join(ACTIVATIONS)})")
    length, batch, _ = x.shape
    steps = length if call.value("output_sequence", False) else 1
    last = TensorType(x.dtype, (batch, size))
    return TensorType(x.dtype, (steps, batch, size)), last, last


for _opset, _dtypes in (("ios15", "fp32"), ("ios17", "fp16 fp32")):
    declare(
        "lstm", _opset, _LSTM, T=_dtypes, rule=strict(_lstm),
        doc="Runs [s, b, I] through gates; gives the hidden states, the last one and the last cell.",
    )  # fmt: skip
