"""What an engine is: it compiles a program and its blob, and runs the functions.

An engine is one module of this package that registers itself by name.  What
is optional says what happens without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from anex.engines.port import Port
from anex.engines.surface import Surface
from anex.errors import InputError, LoadError
from anex.mil import Blobs, Program

Array = np.ndarray[Any, np.dtype[Any]]


class State(Protocol):
    """What the states of functions hold between calls; several can exist side by side."""

    def read(self, name: str) -> Array:
        """A copy of what a state holds.

        Raises:
            EvaluateError: There is no such state.
        """
        ...

    def write(self, name: str, array: Array) -> None:
        """Set what a state holds.

        Raises:
            EvaluateError: There is no such state, or the shape or dtype is another.
        """
        ...


class Bound(Protocol):
    """A function bound to surfaces; `run` reads and writes them in place."""

    def run(self) -> None:
        """Execute once; results are in the output surfaces when it returns.

        Raises:
            EvaluateError: The engine failed.
        """
        ...


class Executable(Protocol):
    """A compiled program: many functions, shared weights."""

    def extend(self, program: Program) -> None:
        """Add the functions of another program over the same weights, which are loaded once.

        Optional: an engine that cannot do it raises `UnsupportedError`, and the
        caller compiles one program with all functions anew.

        Raises:
            InputError: The program is malformed, or has another function under a name that is here.
            CompileError: The engine refuses it.
        """
        ...

    def warm(self, function: str) -> None:
        """Compile a function now; threads may do it for several side by side.

        Optional: an engine may do nothing here, and compile in `compile` or in the first call.

        Raises:
            CompileError: The engine refuses it.
        """
        ...

    def inputs(self, function: str) -> tuple[Port, ...]:
        """Ports in binding order; compiles the function if the engine must, to know their layout.

        Raises:
            InputError: There is no such function.
        """
        ...

    def outputs(self, function: str) -> tuple[Port, ...]: ...

    def allocate(self, port: Port) -> Surface:
        """New, zero-filled memory of the engine's own kind with a port's layout.

        Args:
            port: One of this executable, or one like it (`Port.padded`): a cache
                is allocated before the function that reads it is compiled.

        Raises:
            ResourceError: The memory does not suffice.
        """
        ...

    def new_state(self, function: str) -> State:
        """Zeros for the states of a function; good for every function with states of these names and types.

        Optional: an engine without states refuses the program with `UnsupportedError`.
        """
        ...

    def call(self, function: str, inputs: Mapping[str, Any], state: State | None = None) -> dict[str, Array]:
        """Run a function on arrays and return its results.

        Args:
            inputs: By name: arrays of the port's dtype, or numbers and lists, which are converted.
            state: What the function's states hold; what they hold then is in it when this returns.

        Raises:
            EvaluateError: A parameter or the state is missing, unknown, or of another shape or dtype.
        """
        ...

    def bind(self, function: str, surfaces: Mapping[str, Surface], state: State | None = None) -> Bound:
        """Bind surfaces to every port of a function, without copies where they are packed.

        Raises:
            SurfaceError: A surface is missing, of another engine, or has not its port's type and layout.
            EvaluateError: As `call`, for the state.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """(optional: an empty mapping) facts about the compiled program, for summaries."""
        ...

    def close(self) -> None:
        """Release what the engine holds, and close the weight files; calling it twice is allowed."""
        ...

    def __enter__(self) -> Executable: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Engine(Protocol):
    """Compiles programs.  `name` is what the user writes."""

    name: str

    def compile(self, program: Program, blob: Blobs) -> Executable:
        """Verify and load a program.

        Args:
            blob: Its weight file, or several by path; open as long as the
                executable, which closes them.  After an error they stay open.

        Raises:
            InputError: The program or its blob is malformed.
            CompileError: The engine refuses it.
            ResourceError: It needs more memory than there is.
        """
        ...


Factory = Callable[..., Engine]


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine in the registry.

    Attributes:
        missing: Why it cannot be used on this machine, or "" if it can.
        note: What to know about it on this machine, in one line, or "".
    """

    factory: Factory
    missing: Callable[[], str]
    note: Callable[[], str]


_ENGINES: dict[str, Entry] = {}


def _nothing() -> str:
    return ""


def register(
    name: str, factory: Factory, missing: Callable[[], str] = _nothing, note: Callable[[], str] = _nothing
) -> None:
    """Add an engine to the registry; see `Entry`."""
    _ENGINES[name] = Entry(factory, missing, note)


def engines() -> Mapping[str, Entry]:
    """Every known engine by name, usable here or not."""
    return _ENGINES


def engine(name: str, **options: Any) -> Engine:
    """The engine of that name.

    Args:
        options: What the engine's own constructor takes.

    Raises:
        LoadError: There is no such engine, or it cannot be used on this machine.
        InputError: The engine has no such option.
    """
    entry = _ENGINES.get(name)
    if entry is None:
        raise LoadError(f"no engine '{name}'", hint=f"known: {', '.join(sorted(_ENGINES))}")
    if reason := entry.missing():
        raise LoadError(f"engine '{name}' cannot be used here: {reason}")
    known = inspect.signature(entry.factory).parameters
    if unknown := [option for option in options if option not in known]:
        raise InputError(
            f"engine '{name}' has no option '{unknown[0]}'", hint=f"it has {', '.join(known) or 'none'}"
        )
    return entry.factory(**options)
