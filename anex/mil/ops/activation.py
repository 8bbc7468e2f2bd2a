"""Activations: functions of one value with constants, and softmax."""

from __future__ import annotations

from anex.mil.ops.decl import Call, declare
from anex.mil.ops.rules import axis_of, known_to_differ, same_as_x
from anex.mil.types import Type

GELU_MODES = ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION")

_PLAIN = {
    "relu": "max(x, 0)",
    "relu6": "min(max(x, 0), 6)",
    "sigmoid": "1 / (1 + exp(-x))",
    "silu": "x * sigmoid(x)",
    "softplus": "log(1 + exp(x))",
    "softsign": "x / (1 + |x|)",
}

_WITH_ALPHA = {
    "elu": "x where it is positive, alpha * (exp(x) - 1) elsewhere.",
    "leaky_relu": "x where it is not negative, alpha * x elsewhere.",
    "thresholded_relu": "x where it is at least alpha, 0 elsewhere.",
}

_WITH_ALPHA_AND_BETA = {
    "clamped_relu": "min(beta, x) where x is not negative, min(beta, alpha * x) elsewhere.",
    "linear_activation": "alpha * x + beta",
    "scaled_tanh": "alpha * tanh(beta * x)",
    "sigmoid_hard": "min(max(alpha * x + beta, 0), 1)",
}

for _kind, _doc in _PLAIN.items():
    declare(_kind, "ios15", "x: T", T="fp16 fp32", rule=same_as_x, doc=_doc)


def _gelu(call: Call) -> tuple[Type, ...]:
    mode = call.value("mode", "EXACT")
    if mode not in GELU_MODES:
        raise call.error(f"unknown mode '{mode}' (known: {', '.join(GELU_MODES)})")
    return (call.type("x"),)


def _prelu(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if x.rank not in (3, 4, 5):
        raise call.error(f"x has rank {x.rank}, takes 3, 4 or 5")
    _one_per_channel(call, "alpha")
    values = call.const("alpha")
    if x.rank != 4 and values is not None and any(abs(v - values[0]) > 1e-5 for v in values):
        raise call.error(f"alpha must be the same for all channels where x has rank {x.rank}")
    return (x,)


def _softplus_parametric(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if x.rank < 3:
        raise call.error(f"x has rank {x.rank}, takes 3 or more")
    _one_per_channel(call, "alpha")
    _one_per_channel(call, "beta")
    return (x,)


def _one_per_channel(call: Call, name: str) -> None:
    channels, values = call.type("x").shape[1], call.type(name)
    if values.rank != 1:
        raise call.error(f"{name} has rank {values.rank}, takes 1")
    if known_to_differ(channels, values.shape[0]):
        raise call.error(f"{name} has {values.shape[0]} values for {channels} channels")


_ALPHA, _BOTH = "x: T, alpha: const {}", "x: T, alpha: const {0}, beta: const {0}"
_CONSTANTS = [
    *((kind, _ALPHA, "scalar ", same_as_x, doc) for kind, doc in _WITH_ALPHA.items()),
    *((kind, _BOTH, "scalar ", same_as_x, doc) for kind, doc in _WITH_ALPHA_AND_BETA.items()),
    ("prelu", _ALPHA, "", _prelu, "x where it is positive, alpha[c] * x elsewhere."),
    ("softplus_parametric", _BOTH, "", _softplus_parametric, "alpha[c] * log(1 + exp(beta[c] * x))"),
]
for _kind, _signature, _rank, _rule, _doc in _CONSTANTS:
    declare(_kind, "ios15", _signature.format(_rank + "T"), T="fp16 fp32", rule=_rule, doc=_doc)
    declare(
        _kind, "ios17", _signature.format(_rank + "U"), T="fp16 fp32", U="fp16 fp32", rule=_rule, doc=_doc
    )

declare(
    "gelu", "ios15", "x: T, mode?: const string", T="fp16 fp32", rule=_gelu,
    doc="x times the normal distribution at x, exact or in one of two approximations.",
)  # fmt: skip


def _softmax(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    axis_of(call, call.value("axis", -1), x.rank)
    return (x,)


declare(
    "softmax", "ios15", "x: T, axis?: const int32", T="fp16 fp32", rule=_softmax,
    doc="exp(x) divided by its sum along an axis, -1 unless given.",
)  # fmt: skip
