"""The generation loop: sample, say, take in, until something ends it."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from anex.errors import InputError
from anex.models import CHUNKS
from anex.models.tokenizer import Tokenizer
from anex.runtime.sampling import Sampler
from anex.runtime.session import Logits, Session


class StopReason(enum.Enum):
    """Why generation ended."""

    END = "end of text"
    STOP = "stop string"
    LENGTH = "token limit"
    CONTEXT = "context full"
    INTERRUPTED = "interrupted"


class StopStrings:
    """Finds stop strings in text that comes in pieces; what may become one is held back.

    The first string to be complete counts; of several that end together, the longest.
    The result does not depend on how the text is cut.

    Raises:
        InputError: A stop string is empty, or no Unicode text: a lone surrogate never comes out of a model.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if "" in strings:
            raise InputError("a stop string is empty")
        for string in strings:
            if not isinstance(string, str) or any("\ud800" <= c <= "\udfff" for c in string):
                raise InputError(f"the stop string {ascii(string)[:60]} is no Unicode text")
        self._strings = tuple(strings)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What may be said now; with `found` it is the last, and ends before the stop string."""
        held = self._held + text
        places = [(at + len(s), at) for s in self._strings if (at := held.find(s)) >= 0]
        if places:
            self.found, self._held = True, ""
            return held[: min(places)[1]]
        keep = max((_overlap(held, s) for s in self._strings), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back, once nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `string`."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)


@dataclass
class Stats:
    """What a generation took.  Compiling is not part of the prefill and decode times.

    Attributes:
        generated_tokens: Tokens that were sampled, without the one that ends the text.
        reused_tokens: Those of the prompt whose keys and values were held already.
        decode_calls: Tokens taken in one by one.
        first_token_seconds: From the start of the generation to its first token.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    decode_calls: int = 0
    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens that were computed, per second."""
        return (
            (self.prompt_tokens - self.reused_tokens) / self.prefill_seconds if self.prefill_seconds else 0.0
        )

    @property
    def decode_rate(self) -> float:
        """Decode calls per second; 0 without one."""
        return self.decode_calls / self.decode_seconds if self.decode_seconds else 0.0


class Completion(Iterator[str]):
    """A completion as it comes: iterate over its pieces of text.

    Attributes:
        ids: Tokens sampled so far.
        seed: Of the draws.
        said: The text so far.
        stats: Grow while it runs.
        stop_reason: None until it has ended.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampler: Sampler,
        *,
        limit: int = -1,
        stop: Sequence[str] = (),
        seed: int | None = None,
        reuse: bool = False,
    ) -> None:
        self.ids: list[int] = []
        self.said = ""
        self.seed = seed
        self.stats = Stats(prompt_tokens=len(prompt))
        self.stop_reason: StopReason | None = None
        self._prompt = list(prompt)
        self._session = session
        self._tokenizer = tokenizer
        self._sampler = sampler
        self._limit = limit
        self._reuse = reuse
        self._is_cancelled = False
        self._stops = StopStrings(stop)
        if not prompt:
            raise InputError("the prompt is empty", hint="give at least one character")
        if len(prompt) > session.limit:
            raise InputError(
                f"the prompt has {len(prompt)} tokens, the context {session.limit}",
                hint="a longer context (-c), if the model has it, or a shorter prompt",
            )
        self._pieces = self._run()

    def __next__(self) -> str:
        piece = next(self._pieces)
        self.said += piece
        return piece

    def text(self) -> str:
        """The rest of the completion."""
        return "".join(self)

    def cancel(self) -> None:
        """End it before the next call of the engine; for a signal handler or another thread."""
        self._is_cancelled = True

    def _cancelled(self) -> bool:
        return self._is_cancelled

    def _run(self) -> Iterator[str]:
        stream = self._tokenizer.stream(skip_special=True)
        for token in self._tokens():
            if piece := self._stops.push(stream.push(token)):
                yield piece
            if self._stops.found:
                self.stop_reason = StopReason.STOP
                return
        if piece := self._stops.push(stream.flush()) + self._stops.flush():
            yield piece

    def _tokens(self) -> Iterator[int]:
        """Sampled tokens up to the end; sets `stop_reason` when there are no more."""
        if self._limit == 0:
            self.stop_reason = StopReason.LENGTH
            return
        session, stats, history = self._session, self.stats, self._prompt.copy()
        start = time.perf_counter()
        turn = session.begin(self._prompt if self._reuse else ())
        stats.reused_tokens = session.past
        new = self._prompt[session.past :]
        session.compile(len(new), decode=self._limit != 1)
        stats.compile_seconds = time.perf_counter() - start
        logits, stats.prefill_seconds = self._timed(partial(self._prefill, new))
        while not self._cancelled():
            token = self._sampler(logits, history)
            stats.first_token_seconds = stats.first_token_seconds or time.perf_counter() - start
            if token in self._tokenizer.eog:
                self.stop_reason = StopReason.END
                return
            self.ids.append(token)
            history.append(token)
            stats.generated_tokens += 1
            yield token
            if stats.generated_tokens == self._limit:
                self.stop_reason = StopReason.LENGTH
                return
            if self._cancelled():
                break
            session.check(turn)
            if session.past >= session.limit:
                self.stop_reason = StopReason.CONTEXT
                return
            logits, seconds = self._timed(partial(session.decode, token))
            stats.decode_calls += 1
            stats.decode_seconds += seconds
        self.stop_reason = StopReason.INTERRUPTED

    def _prefill(self, ids: Sequence[int]) -> Logits:
        """Logits after the prompt; of no use once it is cancelled, which is looked at between two chunks."""
        done, largest = 0, max(CHUNKS)
        while len(ids) - done > largest and not self._cancelled():
            self._session.take(ids[done : done + largest])
            done += largest
        return np.zeros(0, np.float32) if self._cancelled() else self._session.prefill(ids[done:])

    def _timed(self, work: Callable[[], Logits]) -> tuple[Logits, float]:
        """The result and the seconds it took, compiling aside."""
        start, compiled = time.perf_counter(), self._session.compile_seconds
        result = work()
        compiling = self._session.compile_seconds - compiled
        self.stats.compile_seconds += compiling
        return result, time.perf_counter() - start - compiling
