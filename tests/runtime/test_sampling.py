"""Samplers against their formulas, written out token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anex.errors import EvaluateError, InputError
from anex.runtime import Sampling, make_sampler
from anex.runtime.sampling import Candidates, candidates, draw, min_p, penalise, top_k, top_p

# Quarters are exact in float32, and ties are frequent.
LOGITS = st.lists(st.integers(-40, 40).map(lambda i: i / 4), min_size=1, max_size=30)
OPTIONS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.25, 0.8, 1.0, 3.0]),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.5]),
    repeat_last_n=st.integers(-1, 4),
)


def softmax(logits: dict[int, float]) -> dict[int, float]:
    top = max(logits.values())
    total = math.fsum(math.exp(x - top) for x in logits.values())
    return {i: math.exp(x - top) / total for i, x in logits.items()}


def by_hand(logits: list[float], history: list[int], options: Sampling) -> dict[int, float]:
    """Token → probability by llama.cpp's default chain, in plain Python."""
    recent = history if options.repeat_last_n < 0 else history[max(0, len(history) - options.repeat_last_n) :]
    left = dict(enumerate(logits))
    for i in set(recent):
        left[i] = left[i] * options.repeat_penalty if left[i] <= 0 else left[i] / options.repeat_penalty
    ranked = sorted(left, key=lambda i: (-left[i], i))
    if options.temperature == 0.0:
        return {ranked[0]: 1.0}
    if options.top_k:
        ranked = ranked[: options.top_k]
    if options.top_p < 1.0:
        share, total = softmax({i: left[i] for i in ranked}), 0.0
        for count, i in enumerate(ranked, 1):
            total += share[i]
            if total >= options.top_p:
                ranked = ranked[:count]
                break
    if options.min_p > 0.0:
        least = left[ranked[0]] + math.log(options.min_p)
        ranked = [i for i in ranked if left[i] >= least]
    return softmax({i: left[i] / options.temperature for i in ranked})


@given(LOGITS, OPTIONS, st.data())
def test_the_chain(logits: list[float], options: Sampling, data: st.DataObject) -> None:
    history = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=6))
    got = candidates(np.array(logits, np.float32), history, options)
    assert dict(zip(got.ids.tolist(), got.probabilities.tolist(), strict=True)) == pytest.approx(
        by_hand(logits, history, options), rel=1e-12
    )


def of(logits: list[float]) -> Candidates:
    return Candidates(np.arange(len(logits)), np.array(logits, np.float64))


def test_steps() -> None:
    logits = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
    assert top_k(2)(of(logits)).ids.tolist() == [1, 3]
    assert top_k(9)(of(logits)).ids.tolist() == [0, 1, 2, 3]
    assert top_k(2)(of([1.0, 1.0, 1.0])).ids.tolist() == [0, 1]
    assert top_p(0.65)(of(logits)).ids.tolist() == [1, 3]
    assert top_p(0.75)(of(logits)).ids.tolist() == [1, 2, 3]
    assert top_p(0.0)(of(logits)).ids.tolist() == [1]
    assert min_p(0.49)(of(logits)).ids.tolist() == [1, 2, 3]
    assert min_p(0.51)(of(logits)).ids.tolist() == [1, 3]


def test_penalty_counts_a_token_once() -> None:
    logits = np.array([2.0, -2.0, 3.0, 0.0], np.float32)
    assert penalise(logits, [0, 1, 0, 3], 2.0).tolist() == [1.0, -4.0, 3.0, 0.0]
    assert logits.tolist() == [2.0, -2.0, 3.0, 0.0]


def test_draw_is_the_inverse_of_the_distribution() -> None:
    held = Candidates(np.array([3, 5, 8]), np.log([0.25, 0.5, 0.25]))
    places = [0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1.0 - 2**-53]
    assert [draw(held, u) for u in places] == [3, 3, 5, 5, 8, 8]


def test_frequencies_follow_the_probabilities() -> None:
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    sampler = make_sampler(Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1))
    logits = np.log(shares).astype(np.float32)
    counts = np.bincount([sampler(logits, []) for _ in range(4000)], minlength=4)
    assert np.abs(counts / 4000 - shares).max() < 4 * math.sqrt(0.25 / 4000)


def test_seed_decides() -> None:
    logits = np.zeros(1000, np.float32)

    def run(seed: int | None) -> list[int]:
        sampler = make_sampler(Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed))
        return [sampler(logits, []) for _ in range(8)]

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert run(None) != run(None)


def test_greedy_takes_the_first_of_equals() -> None:
    assert make_sampler(Sampling(temperature=0.0))(np.array([1, 5, 5, 0], np.float32), []) == 1


def test_forbidden_tokens() -> None:
    logits = np.array([9, 1, 2], np.float32)
    assert make_sampler(Sampling(temperature=0.0), forbidden=[0])(logits, []) == 2
    assert logits[0] == 9


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers(bad: float) -> None:
    with pytest.raises(EvaluateError, match="not finite"):
        make_sampler()(np.array([0, bad, 1], np.float32), [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 1.5},
        {"min_p": -0.5},
        {"repeat_penalty": 0.0},
        {"repeat_last_n": -2},
        {"seed": -1},
    ],
)
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_a_tiny_temperature_is_greedy_and_makes_no_nan():
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    for t in (1e-320, 1e-30, 1e-6):
        assert make_sampler(Sampling(temperature=t, top_k=0, top_p=1.0, min_p=0.0, seed=1))(logits, []) == 1
