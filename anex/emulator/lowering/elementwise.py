"""Elementwise ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator.lowering.registry import Lowered, lowering
from anex.errors import UnsupportedError
from anex.mil import Operand, Value

if TYPE_CHECKING:
    import jax

_BINARY = {
    # op: function of jax.numpy
    "add": "add", "sub": "subtract", "mul": "multiply", "maximum": "maximum", "minimum": "minimum",
    "mod": "mod", "pow": "power", "equal": "equal", "not_equal": "not_equal", "greater": "greater",
    "greater_equal": "greater_equal", "less": "less", "less_equal": "less_equal",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
}  # fmt: skip

_UNARY = {
    "abs": "abs", "acos": "arccos", "asin": "arcsin", "atan": "arctan", "atanh": "arctanh", "ceil": "ceil",
    "cos": "cos", "cosh": "cosh", "exp": "exp", "floor": "floor", "logical_not": "logical_not",
    "round": "rint", "sign": "sign", "sin": "sin", "sinh": "sinh", "sqrt": "sqrt", "square": "square",
    "tan": "tan", "tanh": "tanh",
}  # fmt: skip


@lowering(*_BINARY)
def binary(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    result: jax.Array = getattr(jnp, _BINARY[low.op.kind])(low["x"], low["y"])
    return result


@lowering(*_UNARY)
def unary(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    result: jax.Array = getattr(jnp, _UNARY[low.op.kind])(low["x"])
    return result


@lowering("erf")
def erf(low: Lowered) -> jax.Array:
    import jax

    return jax.lax.erf(low["x"])


@lowering("exp2")
def exp2(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x = low["x"]
    if np.issubdtype(x.dtype, np.integer):
        return jnp.where(x < 0, 0, jnp.left_shift(1, x))
    # XLA computes exp(x * ln 2), which loses digits as x grows; powers of two must be exact.
    whole = jnp.clip(jnp.rint(x), -150, 128)
    return jnp.ldexp(jnp.exp2(x - whole), jnp.nan_to_num(whole).astype(jnp.int32))


@lowering("real_div")
def real_div(low: Lowered) -> jax.Array:
    if np.issubdtype(low["x"].dtype, np.integer):
        # The result is declared int32, but nobody says what happens to the fraction.
        raise UnsupportedError("real_div of integers", where=low.op.name, hint="use floor_div or cast first")
    return low["x"] / low["y"]


@lowering("floor_div")
def floor_div(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    x, y = low["x"], low["y"]
    exact = jnp.floor_divide(x, y)
    if np.issubdtype(x.dtype, np.integer):
        return exact
    quotient = x / y
    return jnp.where(jnp.isfinite(quotient), exact, quotient)


def _rsqrt(x: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    # x is a sum with epsilon, so a zero is +0; XLA may drop the sum with 0 and leave -0.
    return jnp.where(x == 0, jnp.inf, 1 / jnp.sqrt(x))


def _reciprocal(x: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return jnp.where(x == 0, jnp.inf, 1 / x)


def _log(x: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return jnp.log(x)


_EPSILON: dict[str, tuple[float, Callable[[Any], Any]]] = {
    "inverse": (1e-4, _reciprocal),
    "log": (1e-45, _log),
    "rsqrt": (1e-12, _rsqrt),
}


def constant(low: Lowered, name: str, default: float, like: str = "x") -> Any:
    """An optional constant; the default is rounded to the declared dtype of another parameter."""
    if name in low:
        return low[name]
    declared = _declared(low.op.inputs[like])
    return np.float32(np.float64(default).astype(declared))


def _declared(binding: Operand | tuple[Operand, ...]) -> np.dtype[Any]:
    operand = binding[0] if isinstance(binding, tuple) else binding
    return Value("", operand.type).tensor.dtype.numpy


@lowering(*_EPSILON)
def with_epsilon(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    default, function = _EPSILON[low.op.kind]
    epsilon, x = constant(low, "epsilon", default), low["x"]
    result: jax.Array = function(x + epsilon)
    if low.op.kind == "log" and "epsilon" not in low and 0 < epsilon < np.finfo(np.float32).tiny:
        # The default is subnormal in fp32 and XLA flushes it; it only shows at 0.
        return jnp.where(x == 0, np.log(epsilon), result)
    return result


@lowering("clip")
def clip(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.minimum(jnp.maximum(low["x"], low["alpha"]), low["beta"])


@lowering("threshold")
def threshold(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.maximum(low["x"], low["alpha"])


@lowering("select")
def select(low: Lowered) -> jax.Array:
    import jax.numpy as jnp

    return jnp.where(low["cond"], low["a"], low["b"])
