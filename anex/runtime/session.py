"""A model on an engine: takes tokens in, gives logits back.

Functions are built, compiled and bound when a chunk size or a rung is first
used.  Their surfaces are the engine's own memory: the host writes embedding
rows, RoPE tables and the mask into them and reads logits and new cache columns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np

from anex.engines import Bound, Engine, Executable, Surface
from anex.errors import InputError
from anex.mil import BlobFile
from anex.models import (
    EMPTY,
    Prepared,
    Rungs,
    cache_surfaces,
    decode_name,
    head_name,
    mask,
    plan,
    tables,
)
from anex.runtime.cache import KVCache

Array = np.ndarray[Any, np.dtype[Any]]
Logits = np.ndarray[Any, np.dtype[np.float32]]

Progress = Callable[[str, int, int], None]
"""Called with a stage (`convert`: bytes, `compile`: functions), what is done and what there is to do."""


class Session:
    """One conversation with a model; it starts empty.

    Args:
        model: Its weights lie in a blob.
        engine: Compiles and runs the functions.
        context: Most tokens; the model's own context if None.
        progress: Told about compiling.
        compilers: Most functions compiled at the same time; one per core, up to 4, if None.

    Attributes:
        compile_seconds: Time spent on building and compiling functions.

    Raises:
        InputError: The context is longer than the model's.
    """

    def __init__(
        self,
        model: Prepared,
        engine: Engine,
        *,
        context: int | None = None,
        progress: Progress | None = None,
        compilers: int | None = None,
    ) -> None:
        self.config = model.config
        self.limit = checked_context(context, model.config.context_length)
        self.compile_seconds = 0.0
        self._model = model
        self._progress = progress or (lambda stage, done, total: None)
        self._layouts = cache_surfaces(model.config)
        self._functions = _Functions(model, engine, compilers or min(4, os.cpu_count() or 1))
        self._cache: KVCache | None = None
        self._turn = 0

    @property
    def past(self) -> int:
        """Tokens that are held."""
        return self._cache.columns if self._cache else 0

    def begin(self) -> int:
        """Forget all tokens and start a turn; its number is what `check` takes."""
        self.reset()
        self._turn += 1
        return self._turn

    def check(self, turn: int) -> None:
        """Refuse to go on with a turn when another one has begun.

        Raises:
            InputError: It has.
        """
        if turn != self._turn:
            raise InputError("another generation has begun on this model", hint="load it once for each")

    def reset(self) -> None:
        """Forget all tokens; compiled functions stay."""
        self._functions.unbind()
        if self._cache:
            self._cache.clear()

    def describe(self) -> Mapping[str, Any]:
        """What the engine says about itself, once something was compiled."""
        return self._functions.describe()

    def close(self) -> None:
        """Release the engine's memory."""
        self.reset()
        self._functions.close()

    def compile(self, tokens: int, *, decode: bool = True) -> None:
        """Compile what taking in `tokens` tokens needs, and the decode step after them.

        Without this call functions are compiled when they are first used; with
        it several are compiled at the same time.

        Raises:
            InputError: The tokens do not fit the context.
        """
        calls = plan(tokens, past=self.past, limit=self.limit)
        names = [*(call.function for call in calls), head_name()]
        if decode and self.past + tokens < self.limit:
            names.append(decode_name(Rungs(self.limit).holding(self.past + tokens)))
        self._compile(names)

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Take tokens in and return the logits after the last one, `[vocabulary]`.

        Raises:
            InputError: There are none, they do not fit the context, or an id is not in the vocabulary.
        """
        last: Logits = self._take(ids, all_columns=False)[0]
        return last

    def logits(self, ids: Sequence[int]) -> Logits:
        """Take tokens in and return the logits after each, `[len(ids), vocabulary]`; see `prefill`."""
        return self._take(ids, all_columns=True)

    def decode(self, token: int) -> Logits:
        """Take one token in by the decode function and return its logits, `[vocabulary]`.

        Raises:
            InputError: The context is full, or there is no such token.
        """
        if self.past >= self.limit:
            raise InputError(f"the context of {self.limit} tokens is full")
        cached = Rungs(self.limit).holding(self.past)
        function = self._function(decode_name(cached))
        self._write(function, [token], columns=1, cached=cached)
        function.run()
        self._append(function.outputs, 1)
        logits: Logits = function.outputs["o00_logits"].array.reshape(-1)[: self.config.vocab_size]
        return logits.astype(np.float32)

    def _take(self, ids: Sequence[int], *, all_columns: bool) -> Logits:
        if not len(ids):
            raise InputError("there are no tokens to take in")
        start, out = 0, []
        for call in plan(len(ids), past=self.past, limit=self.limit):
            function = self._function(call.function)
            self._write(function, ids[start : start + call.count], columns=call.chunk, cached=call.cached)
            function.run()
            start += call.count
            hidden = function.outputs["o00_hidden"].array[..., : call.count]
            self._append(function.outputs, call.count)
            if all_columns:
                out.append(self._head(hidden))
            elif start == len(ids):
                out.append(self._head(hidden[..., -1:]))
        return np.concatenate(out)

    def _head(self, hidden: Array) -> Logits:
        """Logits of hidden columns `[1, D, 1, T]` → `[T, vocabulary]`."""
        function = self._function(head_name())
        port = function.inputs["i00_hidden"].array
        result = function.outputs["o00_logits"].array
        width, count = port.shape[3], hidden.shape[3]
        logits = np.empty((count, self.config.vocab_size), np.float32)
        for start in range(0, count, width):
            columns = min(width, count - start)
            port[..., :columns] = hidden[..., start : start + columns]
            port[..., columns:] = 0
            function.run()
            logits[start : start + columns] = result[0, 0, :columns, : self.config.vocab_size]
        return logits

    def _write(self, function: _Function, ids: Sequence[int], *, columns: int, cached: int) -> None:
        """Fill the input ports for new tokens in the first of `columns` columns."""
        count, past = len(ids), self.past
        positions = np.full(columns, EMPTY)
        positions[:count] = np.arange(past, past + count)
        held = np.full(cached, EMPTY)
        held[:past] = np.arange(past)
        x, cos, sin, bias = (function.inputs[port].array for port in _PORTS)
        x[0, :, 0, :count] = self._model.embedding(ids).T
        x[0, :, 0, count:columns] = 0
        cos[0, 0, :, :columns], sin[0, 0, :, :columns] = tables(self.config.rope, positions)
        bias[0, 0, :columns, : cached + columns] = mask(positions, held, self.config.sliding_window)

    def _append(self, outputs: Mapping[str, Surface], count: int) -> None:
        assert self._cache is not None
        before = self._cache.capacity
        self._cache.append({layout.output: outputs[layout.output].array for layout in self._layouts}, count)
        if self._cache.capacity != before:
            # Functions of the old rung hold the old surfaces; letting go frees them.
            self._functions.unbind()

    def _function(self, name: str) -> _Function:
        self._compile([name])
        if self._cache is None:
            self._cache = KVCache(self._layouts, Rungs(self.limit), self._functions.dtype(name))
        return self._functions.bound(name, self._cache.surfaces)

    def _compile(self, names: Iterable[str]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self._functions.compiled]
        if not missing:
            return
        start = time.perf_counter()
        self._functions.compile(missing, lambda done: self._progress("compile", done, len(missing)))
        self.compile_seconds += time.perf_counter() - start


_PORTS = ("i00_x", "i01_cos", "i02_sin", "i03_mask")


class _Function:
    """A bound function and its surfaces."""

    def __init__(self, bound: Bound, inputs: Mapping[str, Surface], outputs: Mapping[str, Surface]) -> None:
        self.run = bound.run
        self.inputs = inputs
        self.outputs = outputs


class _Functions:
    """The functions of a model on one engine: built and compiled once, bound per rung."""

    def __init__(self, model: Prepared, engine: Engine, compilers: int) -> None:
        self.compiled: set[str] = set()
        self._model = model
        self._engine = engine
        self._compilers = compilers
        self._blob = BlobFile(model.blob_path)
        self._executable: Executable | None = None
        self._bound: dict[str, _Function] = {}

    def compile(self, names: Sequence[str], progress: Callable[[int], None]) -> None:
        progress(0)
        program = self._model.program(names)
        if self._executable is None:
            self._executable = self._engine.compile(program, self._blob)
        else:
            self._executable.extend(program)
        with ThreadPoolExecutor(self._compilers) as pool:
            jobs = [pool.submit(self._live.warm, name) for name in names]
            for done, job in enumerate(as_completed(jobs), 1):
                job.result()
                progress(done)
        self.compiled.update(names)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Element type in which the engine holds fp16 ports."""
        return self._live.inputs(name)[0].dtype

    def bound(self, name: str, caches: Mapping[str, Surface]) -> _Function:
        """A compiled function on the surfaces of the cache and others of its own."""
        if name not in self._bound:
            inputs = {p.name: caches.get(p.name) or p.surface() for p in self._live.inputs(name)}
            outputs = {p.name: p.surface() for p in self._live.outputs(name)}
            self._bound[name] = _Function(self._live.bind(name, inputs | outputs), inputs, outputs)
        return self._bound[name]

    def unbind(self) -> None:
        """Let go of all surfaces."""
        self._bound.clear()

    def describe(self) -> Mapping[str, Any]:
        return {} if self._executable is None else self._executable.describe()

    def close(self) -> None:
        if self._executable is not None:
            self._executable.close()
        self._blob.close()

    @property
    def _live(self) -> Executable:
        assert self._executable is not None
        return self._executable


def checked_context(context: int | None, longest: int) -> int:
    """The context to use: the wanted one, or the longest.

    Raises:
        InputError: It is not positive, or longer than the model's.
    """
    if context is None:
        return longest
    if not 0 < context <= longest:
        raise InputError(f"a context of {context} tokens", hint=f"the model was trained for 1 … {longest}")
    return context
