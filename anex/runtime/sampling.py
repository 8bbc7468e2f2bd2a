"""Samplers: from the logits of one position to the next token.

A sampler is a chain of small steps in the order of llama.cpp's default chain:
repetition penalty → top-k → top-p → min-p → temperature → draw
(`common/common.h`, `samplers`; `src/llama-sampler.cpp` for what each step does).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from anex.errors import EvaluateError, InputError

Logits = np.ndarray[Any, np.dtype[np.floating[Any]]]
Ids = np.ndarray[Any, np.dtype[np.int64]]

Sampler = Callable[[Logits, Sequence[int]], int]
"""Takes the logits `[vocabulary]` and the tokens so far; returns the next token."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may still be drawn, in the order of their ids, float64 logits beside them."""

    ids: Ids
    logits: np.ndarray[Any, np.dtype[np.float64]]

    def keep(self, chosen: np.ndarray[Any, Any]) -> Candidates:
        """Those under a boolean mask, or at indices."""
        return Candidates(self.ids[chosen], self.logits[chosen])

    @property
    def probabilities(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Softmax of the logits."""
        powers = np.exp(self.logits - self.logits.max())
        result: np.ndarray[Any, np.dtype[np.float64]] = powers / powers.sum()
        return result


Step = Callable[[Candidates], Candidates]


def penalise(logits: Logits, history: Iterable[int], penalty: float) -> Logits:
    """Make tokens of the history less likely (Keskar et al. 2019, CTRL).

    Positive logits are divided by the penalty and others multiplied, so that a
    penalty above 1 lowers both.  A token counts once, however often it came.
    """
    seen = np.fromiter(set(history), np.int64)
    penalised = logits.astype(np.float64)
    old = penalised[seen]
    penalised[seen] = np.where(old <= 0, old * penalty, old / penalty)
    return penalised


def top_k(k: int) -> Step:
    """Keep the `k` most likely tokens; of equal ones those with the lower ids.  All, if `k` ≤ 0."""

    def step(candidates: Candidates) -> Candidates:
        if not 0 < k < candidates.ids.size:
            return candidates
        threshold = np.partition(candidates.logits, -k)[-k]
        above = candidates.logits > threshold
        ties = np.flatnonzero(candidates.logits == threshold)
        above[ties[: k - int(above.sum())]] = True
        return candidates.keep(above)

    return step


def top_p(p: float) -> Step:
    """Keep the smallest set of most likely tokens whose probability reaches `p` (Holtzman et al. 2020)."""

    def step(candidates: Candidates) -> Candidates:
        if p >= 1.0:
            return candidates
        probabilities = candidates.probabilities
        order = np.argsort(-probabilities, kind="stable")
        reached = np.cumsum(probabilities[order]) >= p
        count = int(np.argmax(reached)) + 1 if reached.any() else order.size
        return candidates.keep(np.sort(order[:count]))

    return step


def min_p(p: float) -> Step:
    """Keep tokens at least `p` times as likely as the most likely one (Nguyen et al. 2024)."""

    def step(candidates: Candidates) -> Candidates:
        if p <= 0.0:
            return candidates
        return candidates.keep(candidates.logits >= candidates.logits.max() + math.log(p))

    return step


def temperature(t: float) -> Step:
    """Divide the logits by a positive temperature."""

    def step(candidates: Candidates) -> Candidates:
        # From the largest, so that a tiny temperature gives -inf for the others and no NaN.
        below = candidates.logits - candidates.logits.max()
        with np.errstate(over="ignore"):
            return Candidates(candidates.ids, below / t)

    return step


@dataclass(frozen=True, slots=True)
class Sampling:
    """What to sample with; the defaults are llama.cpp's.

    Attributes:
        temperature: 0 takes the most likely token (greedy).
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.
        repeat_penalty: 1 is none.
        repeat_last_n: Tokens that the penalty looks back on; 0 none, -1 all.
        seed: Of the draws; None takes a random one.

    Raises:
        InputError: A value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{name} is {value}, wants {low:g} … {high:g}")

    def seeded(self) -> Sampling:
        """The same with a seed: its own, or a random one."""
        return replace(self, seed=secrets.randbits(32)) if self.seed is None else self


_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_k": (0, 2**31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (1e-3, 1e3),
    "repeat_last_n": (-1, 2**31),
    "seed": (0, 2**64 - 1),
}


def make_sampler(sampling: Sampling | None = None, *, forbidden: Iterable[int] = ()) -> Sampler:
    """A sampler; it holds the state of its random numbers.

    Args:
        forbidden: Tokens that are never chosen.
    """
    options = (sampling or Sampling()).seeded()
    never = np.fromiter(forbidden, np.int64)
    random = np.random.default_rng(options.seed)

    def sample(logits: Logits, history: Sequence[int]) -> int:
        if never.size:
            logits = logits.copy()
            logits[never] = -np.inf
        return draw(candidates(logits, history, options), random.random())

    return sample


def candidates(logits: Logits, history: Sequence[int], sampling: Sampling) -> Candidates:
    """The tokens that may be drawn after `history`, through the whole chain.

    Raises:
        EvaluateError: The logits are not numbers.
    """
    check_finite(logits)
    if sampling.repeat_penalty != 1.0:
        logits = penalise(logits, _recent(history, sampling.repeat_last_n), sampling.repeat_penalty)
    chosen = Candidates(np.arange(logits.size), logits.astype(np.float64))
    if sampling.temperature == 0.0:
        return chosen.keep(np.argmax(logits, keepdims=True))
    steps = (
        top_k(sampling.top_k),
        top_p(sampling.top_p),
        min_p(sampling.min_p),
        temperature(sampling.temperature),
    )
    return reduce(lambda held, step: step(held), steps, chosen)


def draw(candidates: Candidates, u: float) -> int:
    """The token at `u` in [0, 1) of the cumulative distribution."""
    cumulative = np.cumsum(candidates.probabilities)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return int(candidates.ids[min(index, candidates.ids.size - 1)])


def _recent(history: Sequence[int], count: int) -> Sequence[int]:
    if count < 0:
        return history
    return history[len(history) - min(count, len(history)) :]


def check_finite(logits: Logits) -> None:
    """Refuse logits, in rows of the vocabulary, that are no numbers.

    Raises:
        EvaluateError: They are not.
    """
    # The maximum is NaN as soon as one logit is.
    if not np.isfinite(logits.max(axis=-1)).all():
        raise EvaluateError(
            "the model's logits are not finite numbers", hint="try --numerics fp32: fp16 may overflow"
        )
