"""What coremltools infers for one call: the other implementation that type rules are held to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, get_new_symbol, types
from coremltools.converters.mil.mil.types.symbolic import is_symbolic

from anex.mil.ir import Literal, Value
from anex.mil.ops import Call, infer, lookup
from anex.mil.types import DType, TensorType

TARGETS = {f"ios{n}": getattr(ct.target, f"iOS{n}") for n in (15, 16, 17, 18)}
Args = Mapping[str, Any]
"""Parameter name to a `TensorType` (passed at run time), a `Literal`, or a tuple of these."""

logging.getLogger("coremltools").setLevel(logging.ERROR)


def run_time(dtype: DType, *shape: int | None) -> TensorType:
    return TensorType(dtype, shape)


def _placeholder(kind: TensorType) -> Any:
    shape = tuple(get_new_symbol() if d is None else d for d in kind.shape)
    return mb.placeholder(shape, types.string_to_builtin(kind.dtype.value), allow_rank0_input=True)


def _value(literal: Literal) -> Any:
    array, kind = literal.array, literal.type
    assert isinstance(kind, TensorType)
    if kind.dtype is DType.STRING:
        return str(array.item())
    if kind.dtype.is_sub_byte:
        return array.astype(types.nptype_from_builtin(types.string_to_builtin(kind.dtype.value)))
    if array.ndim == 0:
        return bool(array) if array.dtype == np.bool_ else array[()]
    return array


def theirs(kind: str, args: Args, opset: str = "ios18") -> tuple[TensorType, ...]:
    """The types that coremltools infers; raises whatever it raises where it refuses."""
    flat = {
        f"{name}_{i}": item
        for name, value in args.items()
        for i, item in enumerate(value if isinstance(value, tuple) else (value,))
    }
    inputs = {name: _placeholder(item) for name, item in flat.items() if isinstance(item, TensorType)}
    inputs = inputs or {"unused": mb.placeholder((1,), types.fp32)}
    Program()  # starts a fresh stack of functions
    with Function(inputs, opset_version=TARGETS[opset]) as function, np.errstate(all="ignore"):

        def get(name: str) -> Any:
            item = flat[name]
            return function.inputs[name] if isinstance(item, TensorType) else _value(item)

        bound = {
            name: tuple(get(f"{name}_{i}") for i in range(len(value)))
            if isinstance(value, tuple)
            else get(f"{name}_0")
            for name, value in args.items()
        }
        results = getattr(mb, kind)(**bound)
    return tuple(_type(var) for var in (results if isinstance(results, (tuple, list)) else (results,)))


def _type(var: Any) -> TensorType:
    shape = tuple(None if is_symbolic(d) else int(d) for d in var.shape or ())
    # Of nonsense coremltools makes negative sizes, which are no dimensions.
    known = tuple(None if d is not None and d < 0 else d for d in shape)
    return TensorType(DType(types.builtin_to_string(var.dtype)), known)


def ours(kind: str, args: Args, opset: str = "ios18") -> tuple[TensorType, ...]:
    """The types that the op table infers; raises `InputError` where it refuses."""
    return infer(call_of(kind, args, opset))  # type: ignore[return-value]


def call_of(kind: str, args: Args, opset: str = "ios18") -> Call:
    """The call as a type rule sees it."""

    def bind(name: str, item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(bind(f"{name}_{i}", each) for i, each in enumerate(item))
        return Value(name, item) if isinstance(item, TensorType) else item

    bindings = {name: bind(name, item) for name, item in args.items()}
    return Call(lookup(kind, opset), bindings, lambda o: o if isinstance(o, Literal) else None)
