"""A MIL program made runnable: functions compiled when first used, one block per layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.emulator import native
from anex.emulator.matmul import Matmul, NativeMatmul, XlaMatmul
from anex.emulator.numerics import Level, storage
from anex.emulator.outline import Segment, segments
from anex.emulator.trace import trace
from anex.errors import CompileError, EvaluateError, InputError, UnsupportedError
from anex.mil import CONSTEXPR, BlobFile, Function, Literal, Program, TensorType, Value, fold

if TYPE_CHECKING:
    import jax

Array = np.ndarray[Any, np.dtype[Any]]

_OPTIONS = {
    # XLA may otherwise drop a rounding to fp16 between two ops.
    "xla_allow_excess_precision": False,
    # Its kernel library computes exp and its kin with other bits where the shape suits it.
    "xla_cpu_experimental_ynn_fusion_type": "",
}
"""How every block is compiled: the value of an op must not depend on its neighbours or its shape."""


@dataclass(frozen=True, slots=True)
class Port:
    """One parameter or result of a function as the emulator holds it.

    Attributes:
        type: As the program declares it.
        dtype: numpy dtype of the array that is passed: fp32 for a declared fp16 at level `fp32`.
    """

    name: str
    type: TensorType
    dtype: np.dtype[Any]


class Weights:
    """The constants of a program as JAX arrays that alias the blob's memory map."""

    def __init__(self, blob: BlobFile | None) -> None:
        self._blob = blob
        self._arrays: dict[tuple[int, TensorType], jax.Array] = {}

    def read(self, literal: Literal) -> Array:
        """The numbers of a tensor literal; a view of the blob where they lie there."""
        if not literal.is_blob:
            return literal.array
        if self._blob is None:
            raise InputError("the program refers to a blob file, but none was given")
        return self._blob.array(literal)

    def device(self, literal: Literal) -> jax.Array:
        """The same as a JAX array; shared between all functions that use it."""
        if not literal.is_blob or not isinstance(literal.type, TensorType):
            return aliased(self.read(literal))
        key = (literal.data.offset, literal.type)
        if key not in self._arrays:
            self._arrays[key] = aliased(self.read(literal))
        return self._arrays[key]


def aliased(array: Array) -> jax.Array:
    """A JAX array on the same memory where it is aligned to 64 bytes, else a copy."""
    import jax

    alias: jax.Array = jax.device_put(array, may_alias=True)
    return alias


class _Compiled:
    """One function: its segments, and the constants each call of a segment takes."""

    def __init__(self, function: Function, weights: Weights, level: Level, matmul: Matmul) -> None:
        self.inputs = tuple(_port(v, level) for v in function.inputs)
        self.outputs = tuple(_port(v, level) for v in function.outputs)
        literals, fixed, ops = _constants(function, weights)
        self._segments = segments(
            ops, function.outputs, lambda v: None if v.name in fixed else literals.get(v.name)
        )
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

    def warm(self) -> None:
        """Compile every segment by running one instance of each on zeros."""
        import jax

        # On a named device, as bound surfaces are: other arrays would be compiled for once more.
        device = jax.devices()[0]
        zeros = {p.name: jax.device_put(np.zeros(p.type.dims, p.dtype), device) for p in self.inputs}
        env = {**self._fixed, **zeros}
        for call, segment in self._calls:
            results = call(*[env[n] for n in segment.bindings[0]])
            for exports in segment.exports:
                env.update(zip(exports, results, strict=True))

    def run(self, inputs: Mapping[str, jax.Array]) -> tuple[jax.Array, ...]:
        env: dict[str, jax.Array] = {**self._fixed, **inputs}
        for call, segment in self._calls:
            for names, exports in zip(segment.bindings, segment.exports, strict=True):
                env.update(zip(exports, call(*[env[n] for n in names]), strict=True))
        return tuple(env[port.name] for port in self.outputs)


def _port(value: Value, level: Level) -> Port:
    if not isinstance(value.type, TensorType):
        raise UnsupportedError(f"a port of type {value.type} in the emulator", where=value.name)
    if not value.type.is_static:
        raise UnsupportedError(f"the unknown dimension of {value.type}", where=value.name)
    return Port(value.name, value.type, storage(value.type, level))


def _constants(function: Function, weights: Weights) -> tuple[dict[str, Literal], dict[str, Any], list[Any]]:
    """(immediate literals, weights passed at run time, the computing ops) of a function."""
    literals: dict[str, Literal] = {}
    fixed: dict[str, Any] = {}
    ops = []
    for op in function.ops:
        if op.kind in CONSTEXPR:
            for value, array in zip(op.outputs, _folded(op, weights, literals, fixed), strict=True):
                fixed[value.name] = aliased(array)
        elif op.literal is None:
            ops.append(op)
        elif op.literal.is_blob:
            fixed[op.output.name] = op.literal
        else:
            literals[op.output.name] = op.literal
    return literals, fixed, ops


def _folded(op: Any, weights: Weights, literals: Mapping[str, Literal], fixed: Mapping[str, Any]) -> Any:
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


class Emulated:
    """A program loaded into the emulator.

    Args:
        program: Verified, with static shapes.
        blob: The weight file its constants refer to; None if they refer to none.
        level: Arithmetic level.
        use_native: Take the native matmul where it is there.

    Raises:
        UnsupportedError: An op, a type or a port that the emulator does not have
            (when the function that needs it is first used).
    """

    def __init__(
        self, program: Program, blob: BlobFile | None, level: Level = Level.FP16, use_native: bool = True
    ) -> None:
        self.program = program
        self.level = level
        self._weights = Weights(blob)
        self._matmul: Matmul = NativeMatmul() if use_native and native.available() else XlaMatmul()
        self._compiled: dict[str, _Compiled] = {}
        self._lock = threading.Lock()

    @property
    def native(self) -> bool:
        """Whether the native matmul does the products."""
        return self._matmul.native

    def function(self, name: str) -> _Compiled:
        """The function of that name, prepared on first use.

        Raises:
            InputError: The program has no such function.
        """
        with self._lock:
            if name not in self._compiled:
                function = self.program.functions.get(name)
                if function is None:
                    known = ", ".join(self.program.functions)
                    raise InputError(f"the program has no function '{name}'", hint=f"it has {known}")
                self._compiled[name] = _Compiled(function, self._weights, self.level, self._matmul)
            return self._compiled[name]

    def extend(self, program: Program) -> None:
        """Add the functions of another program over the same blob; weights are shared.

        Raises:
            InputError: A function of that name is there already, and is another one.
        """
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
        """
        import jax

        compiled = self.function(name)
        try:
            compiled.warm()
        except jax.errors.JaxRuntimeError as error:
            raise CompileError(f"XLA: {str(error).splitlines()[0]}", where=name) from error

    def run(self, name: str, inputs: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Call a function with arrays in storage dtype and wait for its results.

        Raises:
            EvaluateError: A parameter is missing, unknown, or of another shape or dtype.
            CompileError: XLA refused the function.
        """
        import jax

        compiled = self.function(name)
        _check_inputs(name, compiled, inputs)
        try:
            results = compiled.run(inputs)
            for array in results:
                array.block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            raise CompileError(f"XLA: {str(error).splitlines()[0]}", where=name) from error
        return {port.name: array for port, array in zip(compiled.outputs, results, strict=True)}


def _check_inputs(name: str, compiled: _Compiled, inputs: Mapping[str, Any]) -> None:
    known = {port.name: port for port in compiled.inputs}
    if inputs.keys() != known.keys():
        wrong = sorted(inputs.keys() ^ known.keys())
        raise EvaluateError(f"parameters are {', '.join(known)}; missing or unknown: {wrong}", where=name)
    for port in compiled.inputs:
        array = inputs[port.name]
        if array.shape != port.type.dims or array.dtype != port.dtype:
            found = f"{array.dtype}{list(array.shape)}"
            wanted = f"{port.dtype}{list(port.type.dims)}"
            raise EvaluateError(f"'{port.name}' is {found}, wants {wanted}", where=name)
