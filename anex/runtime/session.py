"""One conversation with a model: takes tokens in, gives logits back.

A function is compiled (`anex.runtime.functions`) and bound when a chunk size or
a rung is first used.  Its surfaces are the engine's own memory: what the model
feeds is written into them, logits and new cache columns are read from them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anex.engines import Surface
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
        self._ids: list[int] = []
        self._surfaces: Mapping[str, Surface] | None = None

    @property
    def past(self) -> int:
        """Tokens that are held."""
        return self._cache.columns if self._cache else 0

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens that are held, in their order."""
        return tuple(self._ids)

    def begin(self, ids: Sequence[int] = ()) -> int:
        """Start a turn; its number is what `check` takes.

        Args:
            ids: The tokens of the turn.  What is held and begins them stays, so that `ids[session.past:]`
                are to be taken in: at least the last one, as its logits are not held.  All else is forgotten.
        """
        self._keep(min(common_prefix(self._ids, ids), max(len(ids) - 1, 0)))
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
        self._ids.clear()
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
        (last,) = deque(self._hidden(ids), maxlen=1)
        logits: Logits = self._head(last[..., -1:])[0]
        return logits

    def take(self, ids: Sequence[int]) -> None:
        """Take tokens in whose logits nobody needs; see `prefill`."""
        for _ in self._hidden(ids):
            pass

    def logits(self, ids: Sequence[int]) -> Logits:
        """Take tokens in and return the logits after each, `[len(ids), vocabulary]`; see `prefill`."""
        return np.concatenate([self._head(hidden) for hidden in self._hidden(ids)])

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

    def _hidden(self, ids: Sequence[int]) -> Iterator[Array]:
        """Take tokens in; yields the hidden columns `[1, D, 1, T]` of a call, which the next overwrites."""
        if not len(ids):
            raise InputError("there are no tokens to take in")
        start = 0
        for call in plan(len(ids), past=self.past, limit=self.limit):
            function = self._run(call.function, ids[start : start + call.count])
            start += call.count
            yield function.outputs[function.signature.port(Role.HIDDEN).name][..., : call.count]

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
        assert self._cache is not None
        self._cache.append(function.outputs, len(ids))
        self._ids.extend(map(int, ids))
        return function

    def _keep(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        if count and self._cache:
            # In this order, so that an interrupt between the two leaves no id without its column.
            del self._ids[count:]
            self._cache.truncate(count)
        else:
            self.reset()

    def _function(self, name: str) -> Function:
        self._compile([name])
        if self._cache is None:
            dtype, allocate = self._functions.dtype(name), self._functions.allocate
            self._cache = KVCache(self._model.caches, Rungs(self.limit), dtype, allocate)
        if self._surfaces is not self._cache.surfaces:
            # Functions of the old rung hold the old surfaces; letting go frees them.
            self._bound.clear()
            self._surfaces = self._cache.surfaces
        if name not in self._bound:
            self._bound[name] = self._functions.bind(name, self._cache.surfaces, self.limit)
        return self._bound[name]

    def _compile(self, names: Sequence[str]) -> None:
        start = time.perf_counter()
        if self._functions.compile(names):
            self.compile_seconds += time.perf_counter() - start


def common_prefix(held: Sequence[int], ids: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(held, ids, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(held), len(ids)))


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
