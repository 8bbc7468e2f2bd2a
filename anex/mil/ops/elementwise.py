"""Elementwise ops: arithmetic, functions of one value, comparison, logic, selection."""

from __future__ import annotations

from anex.mil.ops.decl import Call, Rule, declare
from anex.mil.ops.rules import broadcast, same_as_x
from anex.mil.ops.strict import strict
from anex.mil.types import DType, TensorType, Type

_ARITHMETIC = {
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "real_div": "x / y",
    "floor_div": "The floor of x / y.",
    "mod": "The remainder of x / y; it has the sign of y.",
    "maximum": "The larger of x and y.",
    "minimum": "The smaller of x and y.",
    "pow": "x to the power of y.",
}

_COMPARISON = {
    "equal": "x == y",
    "not_equal": "x != y",
    "greater": "x > y",
    "greater_equal": "x >= y",
    "less": "x < y",
    "less_equal": "x <= y",
}

_LOGIC = {
    "logical_and": "x and y",
    "logical_or": "x or y",
    "logical_xor": "Either x or y, not both.",
}

_UNARY = {
    "acos": "The arc cosine.",
    "asin": "The arc sine.",
    "atan": "The arc tangent.",
    "atanh": "The inverse hyperbolic tangent.",
    "ceil": "The next integer above.",
    "cos": "The cosine.",
    "cosh": "The hyperbolic cosine.",
    "erf": "The Gauss error function.",
    "exp": "e to the power of x.",
    "floor": "The next integer below.",
    "round": "The nearest integer; a half goes to the even one.",
    "sin": "The sine.",
    "sinh": "The hyperbolic sine.",
    "sqrt": "The square root.",
    "tan": "The tangent.",
    "tanh": "The hyperbolic tangent.",
}

_UNARY_WITH_INT = {
    "abs": "The magnitude.",
    "exp2": "2 to the power of x.",
    "sign": "-1, 0 or 1.",
    "square": "x * x",
}

_WITH_EPSILON = {
    "inverse": "1 / (x + epsilon), epsilon 1e-4 unless given.",
    "log": "The natural logarithm of x + epsilon, epsilon 1e-45 unless given.",
    "rsqrt": "1 / sqrt(x + epsilon), epsilon 1e-12 unless given.",
}


def _broadcast_to(dtype: DType | None) -> Rule:
    """x and y broadcast; the result has their dtype, or the one given."""

    def rule(call: Call) -> tuple[Type, ...]:
        x, y = call.type("x"), call.type("y")
        return (TensorType(dtype or x.dtype, broadcast(call, x.shape, y.shape)),)

    return rule


def _select(call: Call) -> tuple[Type, ...]:
    a, b = call.type("a"), call.type("b")
    return (TensorType(a.dtype, broadcast(call, a.shape, b.shape)),)


def _clip_ios17(call: Call) -> tuple[Type, ...]:
    low, high = call.value("alpha"), call.value("beta")
    if low >= high:
        raise call.error(f"alpha {low} is not below beta {high}")
    return (call.type("x"),)


for _kind, _doc in _ARITHMETIC.items():
    declare(_kind, "ios15", "x: T, y: T", T="fp16 fp32 int32", rule=_broadcast_to(None), doc=_doc)

for _kind, _doc in _COMPARISON.items():
    declare(_kind, "ios15", "x: T, y: T", T="fp16 fp32 int32", rule=_broadcast_to(DType.BOOL), doc=_doc)

for _kind, _doc in _LOGIC.items():
    declare(_kind, "ios15", "x: bool, y: bool", rule=_broadcast_to(DType.BOOL), doc=_doc)

declare("logical_not", "ios15", "x: bool", rule=same_as_x, doc="not x")

for _kind, _doc in _UNARY.items():
    declare(_kind, "ios15", "x: T", T="fp16 fp32", rule=same_as_x, doc=_doc)

for _kind, _doc in _UNARY_WITH_INT.items():
    declare(_kind, "ios15", "x: T", T="fp16 fp32 int32", rule=same_as_x, doc=_doc)

for _kind, _doc in _WITH_EPSILON.items():
    declare(_kind, "ios15", "x: T, epsilon?: const scalar T", T="fp16 fp32", rule=same_as_x, doc=_doc)
    declare(
        _kind,
        "ios17",
        "x: T, epsilon?: const scalar U",
        T="fp16 fp32",
        U="fp16 fp32",
        rule=same_as_x,
        doc=_doc,
    )

_BOUNDS = "x: T, alpha: const scalar T, beta: const scalar T"
_CLIP = "The nearest value inside [alpha, beta]."
declare("clip", "ios15", _BOUNDS, T="fp16 fp32", rule=strict(same_as_x), doc=_CLIP)
declare("clip", "ios17", _BOUNDS, T="fp16 fp32", rule=strict(_clip_ios17), doc=_CLIP)

declare(
    "threshold", "ios15", "x: T, alpha: const scalar T", T="fp16 fp32 int32", rule=same_as_x,
    doc="The larger of x and alpha.",
)  # fmt: skip

declare(
    "select", "ios15", "cond: bool, a: T, b: T", T="fp16 fp32 bool int32", rule=strict(_select),
    doc="a where cond holds, b elsewhere.",
)  # fmt: skip
