"""Turns a stretch of MIL ops into JAX operations: widen, lower, round once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator.lowering import Entry, Lowered, lookup
from anex.emulator.matmul import Matmul
from anex.emulator.numerics import Level, storage
from anex.errors import CompileError
from anex.mil import Literal, Op, Operand, map_binding

if TYPE_CHECKING:
    import jax


def trace(ops: Sequence[Op], values: Mapping[str, jax.Array], level: Level, matmul: Matmul) -> dict[str, Any]:
    """Apply `ops` in order and return every value by name.

    Args:
        ops: Ops whose constants are literals; see `anex.emulator.outline`.
        values: Arrays of the values that come from outside, in storage dtype.

    Raises:
        UnsupportedError: An op or an element type has no lowering.
        CompileError: A lowering failed, or its result is not what the program declares.
    """
    env: dict[str, Any] = dict(values)
    for op in ops:
        entry = lookup(op)
        types = [v.tensor for v in op.outputs]
        dtypes = tuple(storage(t, level) for t in types)
        results = _lowered(op, entry, env, dtypes, matmul)
        if [tuple(array.shape) for array in results] != [t.dims for t in types]:
            found = ", ".join(str(list(array.shape)) for array in results)
            raise CompileError(f"gives {found}, declared is {', '.join(map(str, types))}", where=_label(op))
        env.update((v.name, a.astype(d)) for v, a, d in zip(op.outputs, results, dtypes, strict=True))
    return env


def _lowered(
    op: Op, entry: Entry, env: Mapping[str, Any], dtypes: tuple[np.dtype[Any], ...], matmul: Matmul
) -> tuple[Any, ...]:
    try:
        results = entry.function(_operands(op, entry, env, dtypes, matmul))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # The type rule let the call through, so jax and numpy say why it cannot be computed.
        raise CompileError(str(error).partition("\n")[0] or repr(error), where=_label(op)) from error
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _label(op: Op) -> str:
    return f"{op.kind} '{op.name}'"


def _operands(
    op: Op, entry: Entry, env: Mapping[str, Any], dtypes: tuple[np.dtype[Any], ...], matmul: Matmul
) -> Lowered:
    arrays: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, binding in op.inputs.items():
        if isinstance(binding, Literal):
            constants[name] = binding.array
            if binding.array.dtype == object:
                continue
        arrays[name] = map_binding(lambda operand: _array(operand, entry, env), binding)
    return Lowered(op, arrays, constants, dtypes, matmul)


def _array(operand: Operand, entry: Entry, env: Mapping[str, Any]) -> Any:
    import jax.numpy as jnp

    stored = jnp.asarray(operand.array) if isinstance(operand, Literal) else env[operand.name]
    narrow_float = jnp.issubdtype(stored.dtype, jnp.floating) and stored.dtype.itemsize < 4
    return stored if entry.stored or not narrow_float else stored.astype(jnp.float32)
