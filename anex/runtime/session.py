"""One conversation with a model: takes tokens in, gives logits back.

A function is compiled (`anex.runtime.functions`) and bound when a chunk size or
a rung is first used.  Its surfaces are the engine's own memory: what the model
feeds is written into them, logits and new cache columns are read from them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anex.errors import InputError
from anex.models import EMPTY, Role, Rungs, decode_name, head_name, plan
from anex.runtime.cache import KVCache
from anex.runtime.functions import Function, Functions

Array = np.ndarray[Any, np.dtype[Any]]
Logits = np.ndarray[Any, np.dtype[np.float32]]


class Session:
    """A conversation; it starts empty.

    Args:
        functions: Those of the model; other conversations may use them too.
        context: Most tokens; the model's own context if None.

    Attributes:
        compile_seconds: Time spent on waiting for functions that were built and compiled.

    Raises:
        InputError: The context is longer than the model's.
    """

    def __init__(self, functions: Functions, *, context: int | None = None) -> None:
        self.config = functions.model.config
        self.limit = checked_context(context, self.config.context_length)
        self.compile_seconds = 0.0
        self._functions = functions
        self._model = functions.model
        self._bound: dict[str, Function] = {}
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
            raise InputError(
                "another generation has begun on this model",
                hint="a session for each: Session(model.functions)",
            )

    def reset(self) -> None:
        """Forget all tokens; compiled functions stay."""
        self._bound.clear()
        if self._cache:
            self._cache.clear()

    def describe(self) -> Mapping[str, Any]:
        """What the engine says about itself, once something was compiled."""
        return self._functions.describe()

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
        function = self._run(decode_name(Rungs(self.limit).holding(self.past)), [token])
        logits: Logits = self._model.logits(function.outputs, 1)[0]
        return logits

    def _take(self, ids: Sequence[int], *, all_columns: bool) -> Logits:
        if not len(ids):
            raise InputError("there are no tokens to take in")
        start, out = 0, []
        for call in plan(len(ids), past=self.past, limit=self.limit):
            function = self._run(call.function, ids[start : start + call.count])
            start += call.count
            hidden = function.outputs[function.signature.port(Role.HIDDEN).name][..., : call.count]
            if all_columns:
                out.append(self._head(hidden))
            elif start == len(ids):
                out.append(self._head(hidden[..., -1:]))
        return np.concatenate(out)

    def _head(self, hidden: Array) -> Logits:
        """Logits of hidden columns `[1, D, 1, T]` → `[T, vocabulary]`."""
        function = self._function(head_name())
        port = function.inputs[function.signature.port(Role.HIDDEN).name].array
        width, count = port.shape[3], hidden.shape[3]
        out = []
        for start in range(0, count, width):
            columns = min(width, count - start)
            port[..., :columns] = hidden[..., start : start + columns]
            port[..., columns:] = 0
            function.run()
            out.append(self._model.logits(function.outputs, columns))
        return np.concatenate(out)

    def _run(self, name: str, ids: Sequence[int]) -> Function:
        """Run a function on new tokens and append their columns to the cache."""
        function, past = self._function(name), self.past
        held = np.full(function.signature.cached, EMPTY)
        held[:past] = np.arange(past)
        function.take(ids, np.arange(past, past + len(ids)), held)
        self._append(function.outputs, len(ids))
        return function

    def _append(self, outputs: Mapping[str, Array], count: int) -> None:
        assert self._cache is not None
        before = self._cache.capacity
        self._cache.append(outputs, count)
        if self._cache.capacity != before:
            # Functions of the old rung hold the old surfaces; letting go frees them.
            self._bound.clear()

    def _function(self, name: str) -> Function:
        self._compile([name])
        if self._cache is None:
            dtype, allocate = self._functions.dtype(name), self._functions.allocate
            self._cache = KVCache(self._model.caches, Rungs(self.limit), dtype, allocate)
        if name not in self._bound:
            self._bound[name] = self._functions.bind(name, self._cache.surfaces)
        return self._bound[name]

    def _compile(self, names: Sequence[str]) -> None:
        start = time.perf_counter()
        if self._functions.compile(names):
            self.compile_seconds += time.perf_counter() - start


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
