"""Formulas of elementwise ops, activations, reductions and normalisations."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, erfc
from typing import Any

import numpy as np

from anex.engines.conformance.registry import Arguments, Array, formula
from anex.mil import DType

_erf, _erfc = np.vectorize(erf, otypes=[np.float64]), np.vectorize(erfc, otypes=[np.float64])


def _floor_div(x: Array, y: Array) -> Array:
    if x.dtype.kind == "i":
        return np.floor_divide(x, y)
    quotient = x / y
    # numpy's floor_divide is exact where the rounded quotient is not, but has no infinities.
    return np.where(np.isfinite(quotient), np.floor_divide(x, y), quotient)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "real_div": np.true_divide,
    "floor_div": _floor_div,
    "mod": np.mod,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}


@formula(*_BINARY)
def binary(a: Arguments) -> Array:
    return np.asarray(_BINARY[a.kind](a["x"], a["y"]))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Any) -> Any:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _erf,
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "logical_not": np.logical_not,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "round": np.rint,
    "sigmoid": _sigmoid,
    "sign": np.sign,
    "silu": lambda x: x * _sigmoid(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}


@formula(*_UNARY)
def unary(a: Arguments) -> Array:
    return np.asarray(_UNARY[a.kind](a["x"]))


_EPSILON: dict[str, tuple[float, Callable[[Any], Any]]] = {
    "inverse": (1e-4, np.reciprocal),
    "log": (1e-45, np.log),
    "rsqrt": (1e-12, lambda x: 1 / np.sqrt(x)),
}


@formula(*_EPSILON)
def with_epsilon(a: Arguments) -> Array:
    default, function = _EPSILON[a.kind]
    # The default is a constant of x's own type: in fp16 the small ones are 0.
    default = float(a.results[0].dtype.numpy.type(default))
    return np.asarray(function(a["x"] + a.const("epsilon", default)))


@formula("clip")
def clip(a: Arguments) -> Array:
    return np.minimum(np.maximum(a["x"], a["alpha"]), a["beta"])


@formula("threshold")
def threshold(a: Arguments) -> Array:
    return np.maximum(a["x"], a["alpha"])


@formula("select")
def select(a: Arguments) -> Array:
    return np.where(a["cond"], a["a"], a["b"])


_WITH_CONSTANTS: dict[str, Callable[..., Any]] = {
    "clamped_relu": lambda x, a, b: np.minimum(b, np.where(x >= 0, x, a * x)),
    "elu": lambda x, a: np.where(x > 0, x, a * np.expm1(x)),
    "leaky_relu": lambda x, a: np.where(x >= 0, x, a * x),
    "linear_activation": lambda x, a, b: a * x + b,
    "prelu": lambda x, a: np.where(x > 0, x, a * x),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "sigmoid_hard": lambda x, a, b: np.minimum(np.maximum(a * x + b, 0), 1),
    "softplus_parametric": lambda x, a, b: a * _softplus(b * x),
    "thresholded_relu": lambda x, a: np.where(x < a, 0, x),
}


@formula(*_WITH_CONSTANTS)
def with_constants(a: Arguments) -> Array:
    x = a["x"]
    constants = [a[name] for name in ("alpha", "beta") if name in a]
    if a.kind in ("prelu", "softplus_parametric"):
        constants = [per_channel(c, x) for c in constants]
    return np.asarray(_WITH_CONSTANTS[a.kind](x, *constants))


def per_channel(values: Array, x: Array) -> Array:
    """A vector laid along dimension 1 of x."""
    return values.reshape(-1, *[1] * (x.ndim - 2))


@formula("gelu")
def gelu(a: Arguments) -> Array:
    # Written without 1 + erf and 1 + tanh, which lose all digits for negative x.
    x, mode = a["x"], a.const("mode", "EXACT")
    if mode == "EXACT":
        return np.asarray(0.5 * x * _erfc(-x / np.sqrt(2)))
    if mode == "TANH_APPROXIMATION":
        return np.asarray(x * _sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return np.asarray(x * _sigmoid(1.702 * x))


@formula("softmax")
def softmax(a: Arguments) -> Array:
    x, axis = a["x"], a.const("axis", -1)
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


def _log_sum_exp(x: Array, **over: Any) -> Array:
    top = np.max(x, axis=over["axis"], keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), **over))
    return np.asarray(total + top.reshape(np.shape(total)))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_l1_norm": lambda x, **over: np.sum(np.abs(x), **over),
    "reduce_l2_norm": lambda x, **over: np.sqrt(np.sum(np.square(x), **over)),
    "reduce_log_sum": lambda x, **over: np.log(np.sum(x, **over)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": np.max,
    "reduce_mean": np.mean,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_sum": np.sum,
    "reduce_sum_square": lambda x, **over: np.sum(np.square(x), **over),
}


@formula(*_REDUCTIONS)
def reduction(a: Arguments) -> Array:
    x = a["x"]
    axes = tuple(a.const("axes", range(x.ndim)))
    result = np.asarray(_REDUCTIONS[a.kind](x, axis=axes, keepdims=a.const("keep_dims", False)))
    # coremltools casts the result to x's type, which cuts the fraction of an integer mean or norm.
    return np.trunc(result).astype(np.int64) if a.results[0].dtype is DType.INT32 else result


@formula("reduce_argmax", "reduce_argmin")
def index(a: Arguments) -> Array:
    function = np.argmax if a.kind == "reduce_argmax" else np.argmin
    found = function(a["x"], axis=a.const("axis", -1), keepdims=a.const("keep_dims", False))
    return np.asarray(found)


@formula("cumsum")
def cumsum(a: Arguments) -> Array:
    x = np.moveaxis(a["x"], a.const("axis", 0), 0)
    exclusive, reverse = a.const("exclusive", False), a.const("reverse", False)
    result = np.empty_like(x)
    for i in range(len(x)):
        part = x[i + exclusive :] if reverse else x[: i + 1 - exclusive]
        result[i] = part.sum(axis=0)
    return np.moveaxis(result, 0, a.const("axis", 0))


def _normalized(a: Arguments, mean: Array, variance: Array, gamma: Any, beta: Any) -> Array:
    return np.asarray((a["x"] - mean) / np.sqrt(variance + a.const("epsilon", 1e-5)) * gamma + beta)


def _channel_affine(a: Arguments) -> tuple[Any, Any]:
    x = a["x"]
    gamma = per_channel(a["gamma"], x) if "gamma" in a else 1
    return gamma, per_channel(a["beta"], x) if "beta" in a else 0


@formula("batch_norm")
def batch_norm(a: Arguments) -> Array:
    mean, variance = (per_channel(a[name], a["x"]) for name in ("mean", "variance"))
    return _normalized(a, mean, variance, *_channel_affine(a))


@formula("instance_norm")
def instance_norm(a: Arguments) -> Array:
    axes = tuple(range(2, a["x"].ndim))
    mean, variance = (f(a["x"], axis=axes, keepdims=True) for f in (np.mean, np.var))
    return _normalized(a, mean, variance, *_channel_affine(a))


@formula("layer_norm")
def layer_norm(a: Arguments) -> Array:
    x = a["x"]
    axes = tuple(sorted(axis % x.ndim for axis in a.const("axes", range(x.ndim))))
    shape = [size if i in axes else 1 for i, size in enumerate(x.shape)]
    gamma = a["gamma"].reshape(shape) if "gamma" in a else 1
    beta = a["beta"].reshape(shape) if "beta" in a else 0
    mean, variance = (f(x, axis=axes, keepdims=True) for f in (np.mean, np.var))
    return _normalized(a, mean, variance, gamma, beta)


@formula("l2_norm")
def l2_norm(a: Arguments) -> Array:
    x = a["x"]
    squares = np.sum(x * x, axis=(-3, -2, -1), keepdims=True)
    return np.asarray(x / np.sqrt(squares + a.const("epsilon", 1e-6)))


@formula("local_response_norm")
def local_response_norm(a: Arguments) -> Array:
    """Channel i sees `size` channels, i - size // 2 first; what is outside counts as 0."""
    x, size = a["x"], a.const("size")
    alpha, beta, k = a.const("alpha", 1e-4), a.const("beta", 0.75), a.const("k", 1.0)
    squares = np.zeros_like(x)
    for i in range(x.shape[1]):
        first = i - size // 2
        near = x[:, max(first, 0) : first + size]
        squares[:, i] = np.sum(near * near, axis=1)
    return np.asarray(x / (k + alpha / size * squares) ** beta)
