"""The functions of a model on one engine, shared by any number of conversations or texts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from anex.engines import Bound, Engine, Executable, Port, Surface
from anex.errors import EvaluateError, UnsupportedError
from anex.mil import BlobFile, Program
from anex.models import Feed, Prepared, Progress, Signature


class Programs(Protocol):
    """A model whose weights lie in a blob; decoders and encoders are."""

    @property
    def blob_path(self) -> Path: ...

    def program(self, functions: Iterable[str]) -> Program:
        """The program with the named functions.

        Raises:
            InputError: No function has such a name.
        """
        ...


class Compiled:
    """Builds and compiles each function once, when it is first asked for; threads may ask at the same time.

    Args:
        model: Its weights lie in a blob; it stays the caller's.
        engine: Compiles and runs the functions.
        progress: Told about compiling.
        compilers: Most functions compiled at the same time; one per core, up to 4, if None.
    """

    def __init__(
        self,
        model: Programs,
        engine: Engine,
        *,
        progress: Progress | None = None,
        compilers: int | None = None,
    ) -> None:
        self._programs = model
        self._engine = engine
        self._progress = progress or (lambda stage, done, total: None)
        self._compilers = compilers or min(4, os.cpu_count() or 1)
        self._homes: dict[str, Executable] = {}
        self._executables: list[Executable] = []
        self._lock = threading.Lock()
        self._closed = False

    def check_open(self) -> None:
        """Refuse work after `close`.

        Raises:
            EvaluateError: It is closed.
        """
        if self._closed:
            raise EvaluateError("the model is closed")

    def compile(self, names: Sequence[str]) -> bool:
        """Make sure that functions are compiled, several at the same time; whether any was missing.

        Raises:
            InputError: No function has such a name.
            CompileError: The engine refuses one.
            EvaluateError: The model is closed.
        """
        self.check_open()
        if self._homes.keys() >= set(names):
            return False
        with self._lock:
            self.check_open()
            missing = [name for name in dict.fromkeys(names) if name not in self._homes]
            if missing:
                self._compile(missing, lambda done: self._progress("compile", done, len(missing)))
            return bool(missing)

    def _compile(self, names: Sequence[str], progress: Callable[[int], None]) -> None:
        progress(0)
        executable = self._loaded(self._programs.program(names))
        with ThreadPoolExecutor(self._compilers) as pool:
            jobs = [pool.submit(executable.warm, name) for name in names]
            for done, job in enumerate(as_completed(jobs), 1):
                job.result()
                progress(done)
        self._homes.update(dict.fromkeys(names, executable))

    def _loaded(self, program: Program) -> Executable:
        """The executable that has the functions of a program now: the last one, or a new one.

        An engine that cannot extend a program has the weights once for each
        time that functions were missing; `Session.compile` asks for those of a prompt together.
        """
        if self._executables:
            with suppress(UnsupportedError):
                self._executables[-1].extend(program)
                return self._executables[-1]
        with ExitStack() as opened:
            blob = opened.enter_context(BlobFile(self._programs.blob_path))
            self._executables.append(self._engine.compile(program, blob))
            opened.pop_all()  # the executable closes it
        return self._executables[-1]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Element type in which the engine holds fp16 ports of a compiled function."""
        return self._home(name).inputs(name)[0].dtype

    def allocate(self, port: Port) -> Surface:
        """New memory of the engine's own kind, once something is compiled."""
        self.check_open()
        if not self._executables:
            raise EvaluateError("nothing is compiled")
        return self._executables[-1].allocate(port)

    def bound(
        self, name: str, given: Mapping[str, Surface]
    ) -> tuple[Bound, Mapping[str, Surface], Mapping[str, Surface]]:
        """A compiled function on given surfaces and others of its own; its inputs and outputs by port."""
        home = self._home(name)
        inputs = {p.name: given.get(p.name) or home.allocate(p) for p in home.inputs(name)}
        outputs = {p.name: home.allocate(p) for p in home.outputs(name)}
        return home.bind(name, inputs | outputs), inputs, outputs

    def describe(self) -> Mapping[str, Any]:
        """What the engine says about itself, once something was compiled."""
        return self._executables[-1].describe() if self._executables else {}

    def close(self) -> None:
        """Release what the engine holds; calling it twice is allowed."""
        with self._lock:
            self._closed = True
            for executable in self._executables:
                executable.close()
            self._executables = []
            self._homes = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _home(self, name: str) -> Executable:
        self.check_open()
        if name not in self._homes:
            raise EvaluateError(f"'{name}' is not compiled")
        return self._homes[name]


class Functions(Compiled):
    """The functions of a decoder; see `Compiled`."""

    def __init__(
        self,
        model: Prepared,
        engine: Engine,
        *,
        progress: Progress | None = None,
        compilers: int | None = None,
    ) -> None:
        super().__init__(model, engine, progress=progress, compilers=compilers)
        self.model = model

    def bind(self, name: str, caches: Mapping[str, Surface], context: int | None = None) -> Function:
        """A compiled function on the surfaces of a cache and others of its own.

        Args:
            context: Most tokens of the conversation; the model's own context if None.
        """
        bound, inputs, outputs = self.bound(name, caches)
        return Function(self.model.signature(name), self.model.feed(name, context), bound, inputs, outputs)


class Function:
    """A function bound to surfaces; one conversation's own.

    Attributes:
        inputs: Port → surface.
        outputs: Port → array, after `run`.
    """

    def __init__(
        self,
        signature: Signature,
        feed: Feed,
        bound: Bound,
        inputs: Mapping[str, Surface],
        outputs: Mapping[str, Surface],
    ) -> None:
        self.signature = signature
        self.inputs = inputs
        self.outputs = {name: surface.array for name, surface in outputs.items()}
        self._feed = feed
        self._bound = bound

    def take(self, ids: Any, positions: Any, held: Any) -> None:
        """Fill the host's ports (see `anex.models.Feed`) and run."""
        for port, values in self._feed(ids, positions, held).items():
            self.inputs[port].array[..., : values.shape[3]] = values
        self._bound.run()

    def run(self) -> None:
        """Run on what the input surfaces hold."""
        self._bound.run()
