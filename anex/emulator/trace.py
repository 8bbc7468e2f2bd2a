"""Turns a stretch of MIL ops into JAX operations: widen, lower, round once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator.lowering import Entry, Lowered, lookup
from anex.emulator.matmul import Matmul
from anex.emulator.numerics import Level, storage
from anex.mil import Literal, Op, Operand, TensorType

if TYPE_CHECKING:
    import jax


def trace(ops: Sequence[Op], values: Mapping[str, jax.Array], level: Level, matmul: Matmul) -> dict[str, Any]:
    """Apply `ops` in order and return every value by name.

    Args:
        ops: Ops whose constants are literals; see `anex.emulator.outline`.
        values: Arrays of the values that come from outside, in storage dtype.

    Raises:
        UnsupportedError: An op or an element type has no lowering.
    """
    env: dict[str, Any] = dict(values)
    for op in ops:
        entry = lookup(op)
        types = [v.tensor for v in op.outputs]
        dtypes = tuple(storage(t, level) for t in types)
        results = entry.function(_operands(op, entry, env, dtypes, matmul))
        for value, array, dtype in zip(op.outputs, _as_tuple(results), dtypes, strict=True):
            assert array.shape == value.tensor.shape, (op.kind, value, array.shape)
            env[value.name] = array.astype(dtype)
    return env


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _operands(
    op: Op, entry: Entry, env: Mapping[str, Any], dtypes: tuple[np.dtype[Any], ...], matmul: Matmul
) -> Lowered:
    arrays: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, binding in op.inputs.items():
        if isinstance(binding, tuple):
            arrays[name] = tuple(_array(o, entry, env) for o in binding)
            continue
        if isinstance(binding, Literal):
            constants[name] = binding.array
            if binding.array.dtype == object:
                continue
        arrays[name] = _array(binding, entry, env)
    return Lowered(op, arrays, constants, dtypes, matmul)


def _array(operand: Operand, entry: Entry, env: Mapping[str, Any]) -> Any:
    import jax.numpy as jnp

    stored = jnp.asarray(operand.array) if isinstance(operand, Literal) else env[operand.name]
    narrow_float = jnp.issubdtype(stored.dtype, jnp.floating) and stored.dtype.itemsize < 4
    return stored if entry.stored or not narrow_float else stored.astype(jnp.float32)


__all__ = ["TensorType", "trace"]
