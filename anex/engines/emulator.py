"""The emulator as an engine: works on every machine, never stands for silicon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.engines.protocol import Array, Port, register
from anex.engines.surface import Surface
from anex.errors import EvaluateError, SurfaceError
from anex.mil import BlobFile, Program, verify

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

    def compile(self, program: Program, blob: BlobFile | None) -> EmulatorExecutable:
        from anex.emulator import Emulated

        verify(program, blob, engine=True)
        return EmulatorExecutable(Emulated(program, blob, self.level, self._native), blob)


class EmulatorExecutable:
    """A program in the emulator; each function is traced and compiled when first used."""

    def __init__(self, emulated: Emulated, blob: BlobFile | None) -> None:
        self._emulated: Emulated | None = emulated
        self._blob = blob

    def _live(self) -> Emulated:
        if self._emulated is None:
            raise EvaluateError("the executable is closed")
        return self._emulated

    def extend(self, program: Program) -> None:
        verify(program, self._blob, engine=True)
        self._live().extend(program)

    def warm(self, function: str) -> None:
        self._live().warm(function)

    def inputs(self, function: str) -> tuple[Port, ...]:
        return tuple(Port(p.name, p.type, p.dtype) for p in self._live().function(function).inputs)

    def outputs(self, function: str) -> tuple[Port, ...]:
        return tuple(Port(p.name, p.type, p.dtype) for p in self._live().function(function).outputs)

    def call(self, function: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        results = self._live().run(function, inputs)
        return {name: np.asarray(array) for name, array in results.items()}

    def bind(self, function: str, surfaces: Mapping[str, Surface]) -> BoundFunction:
        return BoundFunction(self, function, surfaces)

    def describe(self) -> Mapping[str, Any]:
        emulated = self._live()
        return {"engine": "emulator", "numerics": emulated.level.value, "native_matmul": emulated.native}

    def close(self) -> None:
        self._emulated = None

    def __enter__(self) -> EmulatorExecutable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BoundFunction:
    """A function whose packed input surfaces XLA reads where they lie."""

    def __init__(
        self, executable: EmulatorExecutable, function: str, surfaces: Mapping[str, Surface]
    ) -> None:
        self._executable = executable
        self._function = function
        inputs, outputs = executable.inputs(function), executable.outputs(function)
        _check(function, (*inputs, *outputs), surfaces)
        self._inputs = {p.name: surfaces[p.name] for p in inputs}
        self._outputs = {p.name: surfaces[p.name] for p in outputs}
        self._aliases = {name: _alias(s) for name, s in self._inputs.items() if s.is_packed}

    def run(self) -> None:
        inputs = {name: self._aliases.get(name, s.array) for name, s in self._inputs.items()}
        results = self._executable._live().run(self._function, inputs)
        for name, surface in self._outputs.items():
            surface.array[...] = np.asarray(results[name])


def _alias(surface: Surface) -> jax.Array:
    """A JAX array on the surface's memory: it sees what the host writes between two runs."""
    import jax

    alias: jax.Array = jax.dlpack.from_dlpack(surface.array)
    return alias


def _check(function: str, ports: tuple[Port, ...], surfaces: Mapping[str, Surface]) -> None:
    names = {port.name for port in ports}
    if surfaces.keys() != names:
        wrong = sorted(surfaces.keys() ^ names)
        raise SurfaceError(
            f"ports are {', '.join(sorted(names))}; missing or unknown: {wrong}", where=function
        )
    for port in ports:
        surface = surfaces[port.name]
        if surface.type != port.type or surface.array.dtype != port.dtype:
            raise SurfaceError(
                f"port '{port.name}' wants {port.type} held as {port.dtype}, the surface is "
                f"{surface.type} held as {surface.array.dtype}",
                where=function,
            )


register("emulator", EmulatorEngine)
"""XLA is a dependency of the package, so nothing can be missing."""
