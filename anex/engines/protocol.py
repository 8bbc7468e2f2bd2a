"""What an engine is: it compiles a program and its blob, and runs the functions.

An engine is one module of this package that registers itself by name.  What
is optional says what happens without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from anex.engines.surface import Surface
from anex.errors import LoadError
from anex.mil import BlobFile, Program, TensorType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Port:
    """One parameter or result of a compiled function.

    Attributes:
        dtype: Element type in memory (see `Surface`).
    """

    name: str
    type: TensorType
    dtype: np.dtype[Any]

    def surface(self) -> Surface:
        """A new surface for this port."""
        return Surface(self.type, self.dtype)


class Bound(Protocol):
    """A function bound to surfaces; `run` reads and writes them in place."""

    def run(self) -> None:
        """Execute once; results are in the output surfaces when it returns.

        Raises:
            EvaluateError: The engine failed.
        """
        ...


class Executable(Protocol):
    """A compiled program: many functions, one blob."""

    def extend(self, program: Program) -> None:
        """Add the functions of another program over the same blob; weights are loaded once.

        Raises:
            InputError: The program is malformed, or has a function that is here under the same name.
            CompileError: The engine refuses it.
        """
        ...

    def warm(self, function: str) -> None:
        """(optional: nothing happens) compile a function now; threads may do it side by side.

        Raises:
            CompileError: The engine refuses it.
        """
        ...

    def inputs(self, function: str) -> tuple[Port, ...]:
        """Ports in binding order; compiles the function if that was left for later."""
        ...

    def outputs(self, function: str) -> tuple[Port, ...]: ...

    def call(self, function: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run a function on arrays and return its results.

        Raises:
            EvaluateError: A parameter is missing, unknown, or of another shape or dtype.
        """
        ...

    def bind(self, function: str, surfaces: Mapping[str, Surface]) -> Bound:
        """Bind surfaces to every port of a function, without copies where they are packed.

        Raises:
            SurfaceError: A surface is missing, or not of its port's type.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """(optional: an empty mapping) facts about the compiled program, for summaries."""
        ...

    def close(self) -> None:
        """Release what the engine holds; calling it twice is allowed."""
        ...

    def __enter__(self) -> Executable: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Engine(Protocol):
    """Compiles programs.  `name` is what the user writes."""

    name: str

    def compile(self, program: Program, blob: BlobFile | None) -> Executable:
        """Verify and load a program.

        Raises:
            InputError: The program or its blob is malformed.
            CompileError: The engine refuses it.
        """
        ...


Factory = Callable[..., Engine]


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine in the registry.

    Attributes:
        missing: Why it cannot be used on this machine, or "" if it can.
    """

    factory: Factory
    missing: Callable[[], str]


_ENGINES: dict[str, Entry] = {}


def register(name: str, factory: Factory, missing: Callable[[], str] = lambda: "") -> None:
    """Add an engine to the registry."""
    _ENGINES[name] = Entry(factory, missing)


def engines() -> Mapping[str, Entry]:
    """Every known engine by name, usable here or not."""
    return _ENGINES


def engine(name: str, **options: Any) -> Engine:
    """The engine of that name.

    Args:
        options: What the engine's own constructor takes.

    Raises:
        LoadError: There is no such engine, or it cannot be used on this machine.
    """
    entry = _ENGINES.get(name)
    if entry is None:
        raise LoadError(f"no engine '{name}'", hint=f"known: {', '.join(sorted(_ENGINES))}")
    if reason := entry.missing():
        raise LoadError(f"engine '{name}' cannot be used here: {reason}")
    return entry.factory(**options)
