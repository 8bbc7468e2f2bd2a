"""The vocabulary of programs of models: linear layers, norms, activations, slices and joins.

Activations are `[1, C, 1, T]` unless a function says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anex.mil import Builder, Literal, Value

Weights = Mapping[str, Literal]
"""Role of each weight (see `anex.models.weights`) to its literal in the blob."""

FAN_IN = 8
"""Most inputs of one concat: from 12 on, the engine's compiler searches for seconds."""


class Scope:
    """Emits ops whose names start with a prefix.

    Args:
        weights: What `weight` looks up, under the same prefix.
    """

    def __init__(self, builder: Builder, weights: Weights, prefix: str = "") -> None:
        self.builder = builder
        self.weights = weights
        self.prefix = prefix

    def __call__(self, kind: str, name: str, **inputs: Any) -> Value:
        return self.builder.op(kind, name=self.prefix + name, **inputs)

    def weight(self, role: str) -> Value:
        name = self.prefix + role
        return self.builder.const(self.weights[name], name=name)

    def within(self, prefix: str) -> Scope:
        return Scope(self.builder, self.weights, self.prefix + prefix)


def conv(emit: Scope, x: Value, role: str, name: str) -> Value:
    """`W x`: `[1, Ci, 1, T]` → `[1, Co, 1, T]`."""
    return emit(
        "conv",
        name,
        x=x,
        weight=emit.weight(role),
        strides=[1, 1],
        pad_type="valid",
        pad=[0, 0, 0, 0],
        dilations=[1, 1],
        groups=1,
    )


def part(emit: Scope, x: Value, name: str, axis: int, first: int, count: int) -> Value:
    """Positions `first … first + count - 1` of one axis."""
    begin, size = [0] * len(x.tensor.dims), list(x.tensor.dims)
    begin[axis], size[axis] = first, count
    return emit("slice_by_size", name, x=x, begin=begin, size=size)


def concat(emit: Scope, parts: Sequence[Value], name: str, axis: int) -> Value:
    """Joins any number of values, never more than `FAN_IN` in one op."""
    level = 0
    while len(parts) > FAN_IN:
        groups = [tuple(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
        parts = [
            emit("concat", f"{name}_{level}_{i}", values=g, axis=axis, interleave=False)
            if len(g) > 1
            else g[0]
            for i, g in enumerate(groups)
        ]
        level += 1
    if len(parts) == 1:
        return parts[0]
    return emit("concat", name, values=tuple(parts), axis=axis, interleave=False)


def rms_norm(emit: Scope, x: Value, role: str, eps: float, axis: int = 1) -> Value:
    """`x / sqrt(mean(x²) + eps) · gamma` over the D entries of an axis, safe in fp16 (Zhang & Sennrich 2019).

    Residual streams of real models reach 2·10⁴, whose square is far beyond
    fp16.  With `r = sqrt(eps·D)`, `m = max(max|x|, r)`, `y = x / m` and `e = r / m`

        x / sqrt(mean(x²) + eps) · gamma  =  y · (sum(y²) + e²)^(-1/2) · (gamma·sqrt(D))

    exactly; the weight holds gamma·sqrt(D), multiplied before its one rounding
    to fp16, and the only rounded constant is r, which moves eps by 2⁻¹⁰ of itself.

    Nothing overflows: |y| ≤ 1 and e ≤ 1, so the sum lies in [0, D], the term
    under the root in [1, D + 1] (its largest y² is 1 where m is max|x|, and e² is
    1 where m is r), its root's inverse in [1/sqrt(D + 1), 1], and y times that in
    [-1, 1].  D ≤ 32752 keeps the sum below the engine's cliff at 2¹⁵.  What
    underflows does not count: each square is off by at most 2⁻²⁵, their sum by at
    most D·2⁻²⁵ ≤ 2⁻¹⁰ beside a term of at least 1.

    r has to be a normal fp16 number, or it would lose bits and, flushed to zero,
    a column of zeros would be 0 / 0: `anex.models.metadata` refuses models below that.
    """
    n = emit.within(role + "_")
    r = math.sqrt(eps * x.tensor.dims[axis])
    m = _at_least(n, x, r, axis)
    y = n("real_div", "y", x=x, y=m)
    total = n("reduce_sum", "total", x=n("mul", "square", x=y, y=y), axes=[axis], keep_dims=True)
    e = n("real_div", "e", x=r, y=m)
    under = n("add", "under", x=total, y=n("mul", "e2", x=e, y=e))
    unit = n("mul", "unit", x=y, y=n("pow", "inverse", x=under, y=-0.5))
    return n("mul", "out", x=unit, y=emit.weight(role))


def layer_norm(emit: Scope, x: Value, role: str, eps: float, axis: int = 1) -> Value:
    """`(x - mean(x)) / sqrt(var(x) + eps) · gamma` over an axis, safe in fp16 (Ba et al. 2016).

    It is the RMSNorm of what is left of x without its mean.  The mean is that of
    `y = x / m`, |y| ≤ 1, times m, so that no sum leaves fp16.
    """
    n = emit.within(role + "_centre_")
    m = _at_least(n, x, math.sqrt(eps * x.tensor.dims[axis]), axis)
    # A sum and a division: some compilers refuse reduce_mean (facts: ane.md §3.6).
    total = n("reduce_sum", "total", x=n("real_div", "y", x=x, y=m), axes=[axis], keep_dims=True)
    mean = n("real_div", "mean_y", x=total, y=float(x.tensor.dims[axis]))
    centred = n("sub", "out", x=x, y=n("mul", "mean", x=mean, y=m))
    return rms_norm(emit, centred, role, eps, axis)


def _at_least(n: Scope, x: Value, r: float, axis: int) -> Value:
    """max(max|x|, r) over an axis."""
    largest = n("reduce_max", "largest", x=n("abs", "abs", x=x), axes=[axis], keep_dims=True)
    return n("maximum", "m", x=largest, y=r)


NORMS: Mapping[str, Callable[[Scope, Value, str, float, int], Value]] = {"rms": rms_norm, "layer": layer_norm}
"""Kinds of norms: (emit, x, role of the weight, eps, axis) → the normalised x."""


def silu(emit: Scope, x: Value) -> Value:
    """`x · sigmoid(x)`, spelt out: the engine's own table is off by 0.001 at 0, its sigmoid is not."""
    return emit("mul", "silu", x=x, y=emit("sigmoid", "sigmoid", x=x))


def _gated_by(emit: Scope, name: str, x: Value, y: Value) -> Value:
    """`x / 2 · (1 + y)`: exactly 0 at 0, which the engine's own gelu is not."""
    half = emit("mul", f"{name}_half", x=x, y=0.5)
    return emit("add", name, x=half, y=emit("mul", f"{name}_rest", x=half, y=y))


def gelu(emit: Scope, x: Value) -> Value:
    """`x/2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))` (Hendrycks & Gimpel 2016).

    Beyond ±8 the tanh is ±1 to the last bit of fp16; the square of a wider number need not fit fp16.
    """
    near = emit("clip", "gelu_near", x=x, alpha=-8.0, beta=8.0)
    square = emit("mul", "gelu_square", x=near, y=near)
    root = math.sqrt(2 / math.pi)
    slope = emit("add", "gelu_slope", x=emit("mul", "gelu_cube", x=square, y=0.044715 * root), y=root)
    return _gated_by(emit, "gelu", x, emit("tanh", "gelu_tanh", x=emit("mul", "gelu_angle", x=near, y=slope)))


def gelu_erf(emit: Scope, x: Value) -> Value:
    """`x/2 · (1 + erf(x / sqrt(2)))`."""
    return _gated_by(
        emit, "gelu", x, emit("erf", "gelu_erf", x=emit("mul", "gelu_angle", x=x, y=math.sqrt(0.5)))
    )


def relu(emit: Scope, x: Value) -> Value:
    """`max(x, 0)`."""
    return emit("relu", "relu", x=x)


def relu_squared(emit: Scope, x: Value) -> Value:
    """`max(x, 0)²` (So et al. 2021); 256 and more are beyond fp16."""
    positive = relu(emit, x)
    return emit("mul", "relu_squared", x=positive, y=positive)


ACTIVATIONS: Mapping[str, Callable[[Scope, Value], Value]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu_squared": relu_squared,
}
"""Functions inside a feed-forward network."""
