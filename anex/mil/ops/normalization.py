"""Normalisations."""

from __future__ import annotations

from anex.mil.ops.decl import Call, Rule, declare
from anex.mil.ops.rules import fits, reduced_axes, same_as_x
from anex.mil.ops.strict import strict
from anex.mil.types import Type


def _l2_norm(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    if x.rank < 3:
        raise call.error(f"x has rank {x.rank}, takes 3 or more")
    return (x,)


def _layer_norm(call: Call) -> tuple[Type, ...]:
    x = call.type("x")
    normalized = [x.shape[a] for a in sorted(reduced_axes(call))]
    for name in ("gamma", "beta"):
        if name in call and not fits(call.type(name).shape, normalized):
            raise call.error(f"{name} is {call.type(name)}, but the normalised shape is {normalized}")
    if "beta" in call and "gamma" not in call:
        # coremltools 9.0 compares the shape of gamma where it means beta, and fails without one.
        raise call.error("beta needs gamma")
    return (x,)


_AFFINE = "gamma?: const {0}, beta?: const {0}, epsilon?: const scalar {0}"
_NORMS: list[tuple[str, str, Rule, str]] = [
    ("batch_norm", "mean: const {0}, variance: const {0}, " + _AFFINE, strict(same_as_x),
     "(x - mean) / sqrt(variance + epsilon) * gamma + beta, each one value a channel."),
    ("instance_norm", _AFFINE, strict(same_as_x),
     "batch_norm with the mean and variance of each channel of each item."),
    ("layer_norm", "axes?: const int32[], " + _AFFINE, strict(_layer_norm),
     "(x - mean) / sqrt(variance + epsilon) * gamma + beta over axes, all unless given."),
    ("l2_norm", "epsilon?: const scalar {0}", _l2_norm,
     "x / sqrt(sum of squares + epsilon) over the last three dimensions."),
    ("local_response_norm",
     "size: const int32, alpha?: const scalar {0}, beta?: const scalar {0}, k?: const scalar {0}",
     strict(same_as_x), "x / (k + alpha / size * sum of squares of near channels) ** beta"),
]  # fmt: skip
for _kind, _signature, _rule, _doc in _NORMS:
    _text = "x: T, " + _signature
    declare(_kind, "ios15", _text.format("T"), T="fp16 fp32", rule=_rule, doc=_doc)
    declare(_kind, "ios17", _text.format("U"), T="fp16 fp32", U="fp16 fp32", rule=_rule, doc=_doc)
