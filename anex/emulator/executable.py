"""A MIL program made runnable: functions compiled when first used, one block per layer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator import native
from anex.emulator.footprint import check_memory
from anex.emulator.matmul import Matmul, NativeMatmul, XlaMatmul
from anex.emulator.numerics import Level, storage
from anex.emulator.outline import Segment, segments
from anex.emulator.state import states, threaded
from anex.emulator.trace import trace
from anex.emulator.weights import Weights, aliased
from anex.errors import CompileError, EvaluateError, InputError, ResourceError, UnsupportedError
from anex.mil import (
    CONSTEXPR,
    Blobs,
    Function,
    Literal,
    Op,
    Operand,
    Program,
    StateType,
    TensorType,
    Value,
    blob_files,
    fold,
)

if TYPE_CHECKING:
    import jax

Array = np.ndarray[Any, np.dtype[Any]]

Held = tuple[Value, np.dtype[Any]]
"""A parameter or result, and the dtype of the array that holds it."""

State = MutableMapping[str, Any]
"""What each state of a function holds, by name: JAX arrays."""

_OPTIONS = {
    # XLA may otherwise drop a rounding to fp16 between two ops.
    "xla_allow_excess_precision": False,
    # Its kernel library computes exp and its kin with other bits where the shape suits it.
    "xla_cpu_experimental_ynn_fusion_type": "",
}
"""How every block is compiled: the value of an op must not depend on its neighbours or its shape."""


class _Compiled:
    """One function: its segments, and the constants each call of a segment takes."""

    def __init__(self, function: Function, weights: Weights, level: Level, matmul: Matmul) -> None:
        self.function = function
        self.states = {name: (kind, storage(kind, level)) for name, kind in states(function).items()}
        self.inputs = held(function.inputs, level)
        self.outputs = held(function.outputs, level)
        threads, self._written = threaded(function)
        literals, fixed, ops = _constants(threads, weights)
        results = (*function.outputs, *self._written.values())
        self._segments = segments(ops, results, lambda v: None if v.name in fixed else literals.get(v.name))
        for name, literal in literals.items():
            fixed.setdefault(name, literal)
        self._fixed = {
            name: weights.device(fixed[name]) if isinstance(fixed[name], Literal) else fixed[name]
            for segment in self._segments
            for names in segment.bindings
            for name in names
            if name in fixed
        }
        self._calls = [(_jitted(s, level, matmul), s) for s in self._segments]

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """(ops, instances) of each segment."""
        return tuple((len(s.ops), len(s.bindings)) for s in self._segments)

    def new_state(self) -> State:
        import jax

        # On a named device, as bound surfaces are: other arrays would be compiled for once more.
        device = jax.devices()[0]
        zeros = {name: np.zeros(kind.dims, dtype) for name, (kind, dtype) in self.states.items()}
        return {name: jax.device_put(array, device) for name, array in zeros.items()}

    def warm(self) -> None:
        """Compile every segment by running one instance of each on zeros."""
        import jax

        device = jax.devices()[0]
        zeros = {v.name: jax.device_put(np.zeros(v.tensor.dims, dtype), device) for v, dtype in self.inputs}
        env = {**self._fixed, **zeros, **self.new_state()}
        for call, segment in self._calls:
            results = call(*[env[n] for n in segment.bindings[0]])
            for exports in segment.exports:
                env.update(zip(exports, results, strict=True))

    def run(self, inputs: Mapping[str, Any], state: State) -> dict[str, jax.Array]:
        env: dict[str, Any] = {**self._fixed, **inputs, **state}
        for call, segment in self._calls:
            for names, exports in zip(segment.bindings, segment.exports, strict=True):
                env.update(zip(exports, call(*[env[n] for n in names]), strict=True))
        results = {value.name: env[value.name] for value, _ in self.outputs}
        after = {name: env[value.name] for name, value in self._written.items()}
        for array in (*results.values(), *after.values()):
            array.block_until_ready()
        if after:
            # XLA hands a parameter that comes out unchanged through; its memory is the caller's.
            lent = {_address(array) for array in inputs.values()}
            state.update({n: a.copy() if _address(a) in lent else a for n, a in after.items()})
        return results


def _address(array: Any) -> int:
    pointer: int = array.ctypes.data if isinstance(array, np.ndarray) else array.unsafe_buffer_pointer()
    return pointer


def held(values: Sequence[Value], level: Level) -> tuple[Held, ...]:
    """The ports among parameters or results, each with the dtype in which it is held; states are none.

    Raises:
        UnsupportedError: The emulator has no ports of such a type.
    """
    ports = []
    for value in values:
        if isinstance(value.type, StateType):
            continue
        if not isinstance(value.type, TensorType):
            raise UnsupportedError(f"a port of type {value.type} in the emulator", where=value.name)
        if not value.type.is_static:
            raise UnsupportedError(f"the unknown dimension of {value.type}", where=value.name)
        ports.append((value, storage(value.type, level)))
    return tuple(ports)


def _constants(ops: Iterable[Op], weights: Weights) -> tuple[dict[str, Literal], dict[str, Any], list[Op]]:
    """(immediate literals, weights passed at run time, the computing ops) of a function."""
    literals: dict[str, Literal] = {}
    fixed: dict[str, Any] = {}
    computing = []

    def named(operand: Operand) -> Operand:
        """A weight that stands in an op's place gets a name, which no legal name can be."""
        if not isinstance(operand, Literal) or not operand.is_blob:
            return operand
        value = Value(f"{operand.data.path}@{operand.data.offset}@{operand.type}", operand.type)
        fixed[value.name] = operand
        return value

    for op in ops:
        if op.kind in CONSTEXPR:
            for value, array in zip(op.outputs, _folded(op, weights, literals, fixed), strict=True):
                fixed[value.name] = aliased(array)
        elif op.literal is None:
            computing.append(op.map_operands(named))
        elif op.literal.is_blob:
            fixed[op.output.name] = op.literal
        else:
            literals[op.output.name] = op.literal
    return literals, fixed, computing


def _folded(op: Op, weights: Weights, literals: Mapping[str, Literal], fixed: Mapping[str, Any]) -> Any:
    def read(operand: Any) -> Array:
        if isinstance(operand, Literal):
            return weights.read(operand)
        if operand.name in literals:
            return literals[operand.name].array
        known = fixed[operand.name]
        return weights.read(known) if isinstance(known, Literal) else np.asarray(known)

    return fold(op, read)


def _jitted(segment: Segment, level: Level, matmul: Matmul) -> Callable[..., tuple[jax.Array, ...]]:
    import jax

    def block(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        env = trace(segment.ops, dict(zip(segment.arguments, arrays, strict=True)), level, matmul)
        return tuple(env[name] for name in segment.results)

    jitted: Callable[..., tuple[jax.Array, ...]] = jax.jit(block, compiler_options=_OPTIONS)
    return jitted


class _Slot:
    """Where a function's compiled form appears; functions are compiled side by side."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.compiled: _Compiled | None = None


class Emulated:
    """A program loaded into the emulator.

    Args:
        program: Verified, with static shapes.
        blob: The weight files its constants refer to; None if they refer to none.
        level: Arithmetic level.
        use_native: Take the native matmul where it is there.

    Raises:
        ResourceError: A function cannot fit into the free memory.
        UnsupportedError: An op, a type or a port that the emulator does not have
            (when the function that needs it is first used).
    """

    def __init__(
        self, program: Program, blob: Blobs = None, level: Level = Level.FP16, use_native: bool = True
    ) -> None:
        self.program = program
        self.level = level
        self._weights = Weights(blob_files(blob))
        self._matmul: Matmul = NativeMatmul() if use_native and native.available() else XlaMatmul()
        self._slots: dict[str, _Slot] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()  # XLA's threads do not follow into a forked child: it would wait for ever
        for function in program.functions.values():
            check_memory(function, level)

    @property
    def native(self) -> bool:
        """Whether the native matmul does the products."""
        return self._matmul.native

    @property
    def blocks(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """(ops, instances) of each compiled block, by function that was used so far."""
        return {n: s.compiled.blocks for n, s in list(self._slots.items()) if s.compiled is not None}

    def inputs(self, name: str) -> tuple[Held, ...]:
        """Parameters and the dtype in which each is held: fp32 for a declared fp16 at level `fp32`.

        Raises:
            InputError: The program has no such function.
            UnsupportedError: The emulator cannot hold one of them.
        """
        return held(self._function(name).inputs, self.level)

    def outputs(self, name: str) -> tuple[Held, ...]:
        """Results, as `inputs`."""
        return held(self._function(name).outputs, self.level)

    def states(self, name: str) -> Mapping[str, tuple[TensorType, np.dtype[Any]]]:
        """What the states of a function hold, and the dtype in which they hold it."""
        kinds = states(self._function(name))
        return {state: (kind, storage(kind, self.level)) for state, kind in kinds.items()}

    def new_state(self, name: str) -> State:
        """What the states of a function hold at the start: zeros; empty where it has none."""
        return self._compiled(name).new_state()

    def extend(self, program: Program) -> None:
        """Add the functions of another program over the same blob; weights are shared.

        Raises:
            InputError: A function of that name is there already, and is another one.
            ResourceError: A function cannot fit into the free memory.
        """
        for function in program.functions.values():
            check_memory(function, self.level)
        with self._lock:
            functions = dict(self.program.functions)
            for name, function in program.functions.items():
                if functions.setdefault(name, function) != function:
                    raise InputError(f"the program has another function '{name}'")
            self.program = Program(functions, self.program.attributes, self.program.version)

    def warm(self, name: str) -> None:
        """Compile a function now instead of in its first call.

        Raises:
            CompileError: XLA refused the function.
            ResourceError: The memory does not suffice.
        """
        with _translated(name):
            self._compiled(name).warm()

    def run(self, name: str, inputs: Mapping[str, Any], state: State | None = None) -> dict[str, jax.Array]:
        """Call a function and wait for its results.

        Args:
            inputs: An array of the held dtype and the declared shape for each parameter (`inputs`).
            state: What its states hold (`new_state`); replaced by what they hold then.

        Raises:
            CompileError: XLA refused the function.
            EvaluateError: The process was forked since.
            ResourceError: The memory does not suffice.
        """
        if os.getpid() != self._process:
            raise EvaluateError(
                "a program cannot be used after a fork", where=name, hint="load it in the child"
            )
        with _translated(name):
            return self._compiled(name).run(inputs, {} if state is None else state)

    def _function(self, name: str) -> Function:
        function = self.program.functions.get(name)
        if function is None:
            known = ", ".join(self.program.functions)
            raise InputError(f"the program has no function '{name}'", hint=f"it has {known}")
        return function

    def _compiled(self, name: str) -> _Compiled:
        function = self._function(name)
        with self._lock:
            slot = self._slots.setdefault(name, _Slot())
        with slot.lock:
            if slot.compiled is None:
                slot.compiled = _Compiled(function, self._weights, self.level, self._matmul)
            return slot.compiled


@contextmanager
def _translated(function: str) -> Iterator[None]:
    """Errors of XLA and of the system as ours."""
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = str(error).splitlines()[0]
        kind = ResourceError if "RESOURCE_EXHAUSTED" in text else CompileError
        raise kind(f"XLA: {text}", where=function) from error
    except MemoryError as error:
        raise ResourceError("there is not enough memory", where=function) from error
