"""The emulator as an engine: works on every machine, never stands for silicon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.engines.port import Array, Port, check_surfaces, checked_arrays
from anex.engines.protocol import State, register
from anex.engines.surface import HostSurface, Surface
from anex.errors import EvaluateError
from anex.mil import BlobFile, Blobs, Program, Value, blob_files, verify

if TYPE_CHECKING:
    import jax

    from anex.emulator import Emulated


class EmulatorEngine:
    """Compiles for the emulator.

    Args:
        numerics: Arithmetic level, `fp16` or `fp32` (see `anex.emulator.numerics`).
        native: Use the native matmul where it was built.
        threads: Size of the thread pool, of the whole process; by default one per core.
        cache: Folder that keeps compiled functions between runs.

    Raises:
        UnsupportedError: There is no such level.
        InputError: `threads` is not positive, or comes too late.
    """

    name = "emulator"

    def __init__(
        self,
        numerics: str = "fp16",
        native: bool = True,
        threads: int | None = None,
        cache: Path | None = None,
    ) -> None:
        from anex.emulator import Level, keep_compiled, limit_threads

        self.level = Level.named(numerics)
        self._native = native
        if threads is not None:
            limit_threads(threads)
        if cache is not None:
            keep_compiled(cache)

    def compile(self, program: Program, blob: Blobs) -> EmulatorExecutable:
        from anex.emulator import Emulated

        verify(program, blob_files(blob), engine=True)
        return EmulatorExecutable(Emulated(program, blob, self.level, self._native), blob_files(blob))


class EmulatorExecutable:
    """A program in the emulator; each function is traced and compiled when first used."""

    def __init__(self, emulated: Emulated, files: Mapping[str, BlobFile]) -> None:
        self._emulated: Emulated | None = emulated
        self._files = files

    def _live(self) -> Emulated:
        if self._emulated is None:
            raise EvaluateError("the executable is closed")
        return self._emulated

    def extend(self, program: Program) -> None:
        live = self._live()
        verify(program, self._files, engine=True)
        live.extend(program)

    def warm(self, function: str) -> None:
        self._live().warm(function)

    def inputs(self, function: str) -> tuple[Port, ...]:
        return _ports(self._live().inputs(function))

    def outputs(self, function: str) -> tuple[Port, ...]:
        return _ports(self._live().outputs(function))

    def allocate(self, port: Port) -> HostSurface:
        return port.surface()

    def new_state(self, function: str) -> EmulatorState:
        return EmulatorState(self._live().new_state(function))

    def call(self, function: str, inputs: Mapping[str, Any], state: State | None = None) -> dict[str, Array]:
        live = self._live()
        arrays = checked_arrays(function, self.inputs(function), inputs)
        results = live.run(function, arrays, _held(live, function, state))
        return {name: np.asarray(array) for name, array in results.items()}

    def bind(
        self, function: str, surfaces: Mapping[str, Surface], state: State | None = None
    ) -> BoundFunction:
        check_surfaces(function, (*self.inputs(function), *self.outputs(function)), surfaces, HostSurface)
        return BoundFunction(self, function, surfaces, _held(self._live(), function, state))

    def describe(self) -> Mapping[str, Any]:
        live = self._live()
        blocks = {name: [list(block) for block in found] for name, found in live.blocks.items()}
        return {
            "engine": "emulator",
            "numerics": live.level.value,
            "native_matmul": live.native,
            "blocks": blocks,  # function → [ops, instances] of each block that was compiled
        }

    def close(self) -> None:
        self._emulated = None
        for file in self._files.values():
            file.close()

    def __enter__(self) -> EmulatorExecutable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ports(held: Iterable[tuple[Value, np.dtype[Any]]]) -> tuple[Port, ...]:
    return tuple(Port.padded(value.name, value.tensor, dtype) for value, dtype in held)


class EmulatorState:
    """States as JAX arrays by name.

    Attributes:
        arrays: What each holds; every call that writes a state puts another array here.
    """

    def __init__(self, arrays: MutableMapping[str, Any]) -> None:
        self.arrays = arrays

    def read(self, name: str) -> Array:
        return np.array(self._array(name))

    def write(self, name: str, array: Array) -> None:
        import jax.numpy as jnp

        old = self._array(name)
        if np.shape(array) != old.shape or np.asarray(array).dtype != old.dtype:
            raise EvaluateError(f"state '{name}' is {old.dtype}{list(old.shape)}, not {_described(array)}")
        self.arrays[name] = jnp.array(array)

    def _array(self, name: str) -> Any:
        if name not in self.arrays:
            known = ", ".join(self.arrays) or "none"
            raise EvaluateError(f"there is no state '{name}'", hint=f"there are: {known}")
        return self.arrays[name]


def _described(array: Any) -> str:
    return f"{np.asarray(array).dtype}{list(np.shape(array))}"


def _held(live: Emulated, function: str, state: State | None) -> MutableMapping[str, Any]:
    """The arrays of a state that fits a function; empty for a function without states."""
    wanted = live.states(function)
    if state is None and not wanted:
        return {}
    if not isinstance(state, EmulatorState):
        what = "none was given" if state is None else f"not a {state.__class__.__name__}"
        raise EvaluateError(
            f"states are {', '.join(wanted) or 'none'}; {what}", where=function, hint="new_state makes one"
        )
    found = {name: (array.shape, array.dtype) for name, array in state.arrays.items()}
    for name, (kind, dtype) in wanted.items():
        if found.get(name) != (kind.dims, dtype):
            raise EvaluateError(f"the state given has no '{name}' of {kind} held as {dtype}", where=function)
    return state.arrays


class BoundFunction:
    """A function whose packed input surfaces XLA reads where they lie."""

    def __init__(
        self,
        executable: EmulatorExecutable,
        function: str,
        surfaces: Mapping[str, Surface],
        state: MutableMapping[str, Any],
    ) -> None:
        self._executable = executable
        self._function = function
        self._state = state
        self._inputs = {p.name: surfaces[p.name] for p in executable.inputs(function)}
        self._outputs = {p.name: surfaces[p.name] for p in executable.outputs(function)}
        self._aliases = {name: _alias(s) for name, s in self._inputs.items() if s.is_packed}

    def run(self) -> None:
        inputs = {name: self._aliases.get(name, s.array) for name, s in self._inputs.items()}
        results = self._executable._live().run(self._function, inputs, self._state)
        for name, surface in self._outputs.items():
            surface.array[...] = np.asarray(results[name])


def _alias(surface: Surface) -> jax.Array:
    """A JAX array on the surface's memory: it sees what the host writes between two runs."""
    import jax

    alias: jax.Array = jax.dlpack.from_dlpack(surface.array)
    return alias


def _note() -> str:
    from anex.emulator import native

    return "native matmul" if native.available() else "no native matmul: XLA does the work, slower"


register("emulator", EmulatorEngine, note=_note)
"""XLA is a dependency of the package, so nothing can be missing."""
