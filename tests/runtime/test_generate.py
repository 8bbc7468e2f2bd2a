"""The generation loop on a model that is a script, and on a tiny real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_text
from hypothesis import given
from hypothesis import strategies as st

from anex.errors import InputError
from anex.runtime import Completion, Model, Sampling, StopReason, StopStrings, load, make_sampler

LETTERS = st.text("abc", max_size=20)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """What remains of a text, character by character: the first end of a stop string, the longest there."""
    for end in range(1, len(text) + 1):
        if ends := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, ends))], True
    return text, False


@given(LETTERS, STOPS, st.data())
def test_stop_strings_whatever_the_pieces(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    finder, said = StopStrings(stops), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        said += finder.push(text[start:end])
        if finder.found:
            break
    assert (said + finder.flush(), finder.found) == cut(text, stops)


@given(LETTERS, STOPS)
def test_only_the_beginning_of_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopStrings(stops)
    said = finder.push(text)
    held = finder.flush()
    assert finder.found or said + held == text
    assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_an_empty_stop_string() -> None:
    with pytest.raises(InputError, match="empty"):
        StopStrings(["a", ""])


def test_a_stop_string_that_no_model_can_say() -> None:
    with pytest.raises(InputError, match=r"ud800.*no Unicode"):
        StopStrings(["a", "b\ud800"])


class Script:
    """A session whose model says given tokens one after the other, and says what it was asked."""

    compile_seconds = 0.0

    def __init__(self, tokens: Sequence[int], limit: int = 100) -> None:
        self.tokens, self.limit, self.past, self.taken = list(tokens), limit, 0, []

    def begin(self, ids: Sequence[int]) -> int:
        return 1

    def check(self, turn: int) -> None:
        assert turn == 1

    def compile(self, tokens: int, *, decode: bool) -> None:
        self.compiled = (tokens, decode)

    def prefill(self, ids: Sequence[int]) -> Any:
        self.past += len(ids)
        return self.next()

    def decode(self, token: int) -> Any:
        assert self.past < self.limit
        self.past += 1
        self.taken.append(token)
        return self.next()

    def next(self) -> Any:
        logits = np.zeros(tiny_text.VOCABULARY, np.float32)
        logits[self.tokens.pop(0)] = 9
        return logits


@pytest.fixture(scope="module")
def model(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with load(tiny_gguf, cache_dir=tmp_path_factory.mktemp("cache")) as model:
        yield model


def complete(model: Model, script: Script, prompt: str = "ab", **options: Any) -> Completion:
    ids = model.tokenizer.encode(prompt)
    greedy = make_sampler(Sampling(temperature=0.0))
    session: Any = script
    return Completion(session, model.tokenizer, ids, greedy, **options)


def script(model: Model, text: str, *, end: bool = False, **options: Any) -> Script:
    return Script([*model.tokenizer.encode(text), *[tiny_text.END] * end], **options)


def test_ends_at_the_end_token(model: Model) -> None:
    run = script(model, "the cat", end=True)
    completion = complete(model, run)
    assert "".join(completion) == "the cat"
    assert completion.stop_reason is StopReason.END
    assert completion.ids == model.tokenizer.encode("the cat")
    assert run.taken == completion.ids
    assert completion.stats.generated_tokens == completion.stats.decode_calls == len(completion.ids)
    assert completion.stats.prompt_tokens == 2


def test_ends_at_the_token_limit_without_one_call_too_many(model: Model) -> None:
    run = script(model, "xyz")
    completion = complete(model, run, limit=3)
    assert completion.text() == "xyz"
    assert completion.stop_reason is StopReason.LENGTH
    assert len(run.taken) == 2
    assert complete(model, script(model, ""), limit=0).text() == ""


def test_ends_when_the_context_is_full(model: Model) -> None:
    run = script(model, "xyzw", limit=5)
    completion = complete(model, run)
    # Two tokens of prompt and three more fit; what the last one is followed by is still known.
    assert completion.text() == "xyzw"
    assert completion.stop_reason is StopReason.CONTEXT
    assert run.past == 5


def test_stop_strings_span_tokens_and_characters_span_tokens(model: Model) -> None:
    completion = complete(model, script(model, "é: one\nUser: two"), stop=["\nUser:"])
    assert list(completion) == ["é", *": one"]
    assert completion.stop_reason is StopReason.STOP
    held = complete(model, script(model, "a\nUs", end=True), stop=["\nUser:"])
    assert list(held) == ["a", "\nUs"]
    assert held.stop_reason is StopReason.END


def test_a_character_cut_off_at_the_end(model: Model) -> None:
    first = model.tokenizer.encode("é")[0]
    assert complete(model, Script([first]), limit=1).text() == "\ufffd"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ("x" * 301, {}, "prompt has 301 tokens, the context 300"),
        ("x", {"n_predict": -2}, "n_predict"),
        ("x", {"temperature": -1.0}, "temperature"),
        ("x", {"stop": [""]}, "stop string is empty"),
        ("\ud800", {}, "not valid Unicode"),
    ],
)
def test_requests_that_cannot_be_met(model: Model, prompt: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model.generate(prompt, **options)


def test_tokens_that_are_none(model: Model) -> None:
    with pytest.raises(InputError, match="token ids must lie in"):
        next(model.generate([tiny_text.VOCABULARY]))
    with pytest.raises(InputError, match="no tokens"):
        model.logits([])


def test_greedy_generation_is_the_argmax_of_the_logits(model: Model) -> None:
    prompt = model.tokenizer.encode("the rain")
    completion = model.generate("the rain", n_predict=12, temperature=0.0)
    text = completion.text()
    logits = model.logits(prompt + completion.ids)
    assert logits.shape == (len(prompt) + len(completion.ids), tiny_text.VOCABULARY)
    for row, token in zip(logits[len(prompt) - 1 :], completion.ids, strict=False):
        # Decode and prefill round differently, so that a near tie may go either way.
        assert row[token] >= row.max() - 0.02
    assert text == model.tokenizer.decode(completion.ids, skip_special=True, continued=True)


def test_a_seed_repeats_a_text(model: Model) -> None:
    def run() -> tuple[str, list[int]]:
        completion = model.generate("the rain", n_predict=8, temperature=2.0, seed=5)
        return completion.text(), completion.ids

    assert run() == run()


def test_two_generations_do_not_mix(model: Model) -> None:
    first = model.generate("the rain", n_predict=5, temperature=0.0)
    next(first)
    next(model.generate("in a", n_predict=5, temperature=0.0))
    with pytest.raises(InputError, match="another generation"):
        first.text()


def test_a_context_longer_than_the_models(tiny_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"context of 301 tokens.*1 … 300"):
        load(tiny_gguf, context=301, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
