"""Turns of a conversation: what is reused of earlier ones, what is kept, dropped, saved and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_text
from hypothesis import given
from hypothesis import strategies as st

from anex.errors import InputError, UnsupportedError
from anex.models.chat import prompt_ids
from anex.runtime import Conversation, Model, Session, StopReason, load_decoder
from anex.runtime.session import common_prefix

TEMPLATE = (
    "{%- for m in messages -%}<|user|>{{ m.role[0] }}:{{ m.content }}<|endoftext|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|user|>a:{%- endif -%}"
)
KEYS = tiny_text.metadata() | {"tokenizer.chat_template": TEMPLATE}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text.write(tmp_path_factory.mktemp("chat") / "chat.gguf", KEYS)


@pytest.fixture(scope="module")
def model(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with load_decoder(path, numerics="fp32", cache_dir=tmp_path_factory.mktemp("cache")) as model:
        yield model


@pytest.fixture
def talk(model: Model) -> Iterator[Conversation]:
    model.session.reset()
    with model.chat(temperature=0.0, n_predict=4) as talk:
        yield talk


def nmse(found: Any, right: Any) -> float:
    found, right = np.float64(found), np.float64(right)
    return float(np.sum((found - right) ** 2) / np.sum(right**2))


# --- the session --------------------------------------------------------------

IDS = np.random.default_rng(3).integers(0, tiny_text.VOCABULARY, 290).tolist()
OTHER = [(token + 1) % tiny_text.VOCABULARY for token in IDS]


@pytest.mark.parametrize(
    ("held", "ids", "kept"),
    [
        (IDS[:40], IDS[:60], 40),
        (IDS[:60], [*IDS[:25], *OTHER[25:50]], 25),
        (IDS[:60], IDS[:60], 59),
        (IDS[:60], IDS[:20], 19),
        (IDS[:60], OTHER[:30], 0),
        ([], IDS[:10], 0),
        (IDS[:280], [*IDS[:70], *OTHER[70:90]], 70),  # back over a rung
        (IDS[:250], IDS[:270], 250),  # forward over one
        (IDS[:270], [*IDS[:256], *OTHER[256:290]], 256),  # to its very border
    ],
)
def test_what_is_held_gives_the_logits_from_scratch(
    model: Model, held: list[int], ids: list[int], kept: int
) -> None:
    right = model.logits(ids)[kept:]
    session = Session(model.functions)
    if held:
        session.begin(held)
        # As a conversation does: a prompt, then token by token.
        session.prefill(held[: len(held) // 2])
        session.take(held[len(held) // 2 : -3])
        for token in held[-3:]:
            session.decode(token)
    assert session.ids == tuple(held)
    session.begin(ids)
    assert (session.past, session.ids) == (kept, tuple(ids[:kept]))
    assert nmse(session.logits(ids[kept:]), right) < 1e-9
    assert session.ids == tuple(ids)
    assert nmse(session.decode(ids[0]), model.logits([*ids, ids[0]])[-1]) < 1e-9


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_a_turn_without_tokens_forgets_all(model: Model) -> None:
    session = Session(model.functions)
    session.prefill([1, 2, 3])
    session.begin()
    assert (session.past, session.ids) == (0, ())


def test_generate_reuses_when_asked_only(model: Model) -> None:
    model.generate(IDS[:30], n_predict=3, temperature=0.0).text()
    again = model.generate([*IDS[:20], 5, 6], n_predict=3, temperature=0.0, reuse=True)
    text = again.text()
    assert again.stats.reused_tokens == 20
    fresh = model.generate([*IDS[:20], 5, 6], n_predict=3, temperature=0.0)
    assert (fresh.text(), fresh.stats.reused_tokens) == (text, 0)


def test_cancelling(model: Model) -> None:
    completion = model.generate("the rain", n_predict=50, temperature=0.0)
    first = next(completion)
    completion.cancel()
    assert completion.text() == ""
    assert completion.stop_reason is StopReason.INTERRUPTED
    assert completion.said == first
    never = model.generate("the rain", n_predict=50)
    never.cancel()
    assert (never.text(), never.ids, never.stop_reason) == ("", [], StopReason.INTERRUPTED)


# --- turns --------------------------------------------------------------------


def rendered(model: Model, messages: Sequence[tuple[str, str]]) -> list[int]:
    text = "".join(f"<|user|>{role}:{content}<|endoftext|>" for role, content in messages) + "<|user|>a:"
    return model.tokenizer.encode(text)


def test_answers_are_those_of_the_whole_prompt(model: Model, talk: Conversation) -> None:
    talk.system = "be brief"
    first = talk.send("the rain")
    answer = first.text()
    second = talk.send("in a")
    text = second.text()
    so_far = [("s", "be brief"), ("u", "the rain")]
    assert first.stats.prompt_tokens == len(rendered(model, so_far))
    prompt = rendered(model, [*so_far, ("a", answer), ("u", "in a")])
    assert second.stats.prompt_tokens == len(prompt)
    assert second.stats.reused_tokens >= first.stats.prompt_tokens
    assert model.generate(prompt, temperature=0.0, n_predict=4).text() == text
    assert [(m["role"], m["content"]) for m in talk.messages] == [
        ("system", "be brief"), ("user", "the rain"), ("assistant", answer),
        ("user", "in a"), ("assistant", text),
    ]  # fmt: skip


def test_an_answer_ends_with_the_next_message(talk: Conversation) -> None:
    left = talk.send("the rain")
    said = next(left)
    talk.send("in a").text()
    assert talk.messages[1] == {"role": "assistant", "content": said}
    assert list(left) == []
    assert left.stop_reason is StopReason.INTERRUPTED


def test_a_message_without_a_word_of_an_answer_was_not_sent(talk: Conversation) -> None:
    talk.send("the rain")
    assert talk.messages == []
    with pytest.raises(InputError, match="no message to take back"):
        talk.undo()
    talk.send("in a").text()
    assert [m["content"] for m in talk.messages if m["role"] == "user"] == ["in a"]


def test_regenerate_and_undo(model: Model) -> None:
    with model.chat(n_predict=6, temperature=3.0, seed=4) as talk:
        with pytest.raises(InputError, match="no message to answer"):
            talk.regenerate()
        first, second = talk.send("the rain"), None
        one = first.text()
        talk.regenerate()  # not a word was said: the old answer stays
        assert talk.messages[-1]["content"] == one
        second = talk.regenerate()
        two = second.text()
        assert (first.seed, second.seed) == (4, 6)
        assert [m["content"] for m in talk.messages] == ["the rain", two]
        assert talk.undo() == "the rain"
        assert talk.messages == []
        talk.send("a").text()
        talk.reset()
        assert talk.messages == []


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_messages(talk: Conversation, text: str) -> None:
    with pytest.raises(InputError, match="the message is empty"):
        talk.send(text)


def test_a_full_context_drops_the_oldest_turns(talk: Conversation) -> None:
    talk.system = "be brief"
    seen = []
    for turn in range(8):
        answer = talk.send(f"{turn}" * 60)
        answer.text()
        seen.append((talk.forgotten, answer.stats.prompt_tokens))
        assert len(talk.messages) == 1 + 2 * (turn + 1)  # nothing is lost of the record
    forgotten = [count for count, _ in seen]
    # About 70 tokens a turn: the fifth does not fit 300, and then half of the context is made free.
    assert forgotten[:3] == [0, 0, 0]
    assert forgotten == sorted(forgotten)
    assert forgotten[-1] > 0
    assert all(count % 2 == 0 for count in forgotten)
    for before, (count, tokens) in zip(forgotten, seen[1:], strict=False):
        assert tokens <= 300 if count == before else tokens <= 150


def test_a_full_context_stops_where_asked(model: Model) -> None:
    with model.chat(n_predict=2, temperature=0.0, context_full="stop") as talk:
        talk.send("a" * 150).text()
        before = talk.messages
        with pytest.raises(InputError, match=r"the conversation has 3\d\d tokens .*, the context 300"):
            talk.send("b" * 150)
        assert talk.messages == before
        talk.send("c").text()


def test_a_message_longer_than_the_context(talk: Conversation) -> None:
    talk.send("a").text()
    with pytest.raises(InputError, match="the context 300"):
        talk.send("b" * 400)
    assert (len(talk.messages), talk.forgotten) == (2, 0)


def test_options_that_cannot_be(model: Model) -> None:
    with pytest.raises(InputError, match="context_full is 'grow'"):
        model.chat(context_full="grow")  # type: ignore[arg-type]
    with model.chat(temperature=-1.0) as talk, pytest.raises(InputError, match="temperature"):
        talk.send("a")
    assert talk.messages == []


# --- templates ----------------------------------------------------------------


def test_templates_by_name_and_file(model: Model, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!")
    with model.chat(template=str(tmp_path / "mine.jinja"), n_predict=1) as talk:
        assert talk.send("the rain").stats.prompt_tokens == len(model.tokenizer.encode("the rain!"))
    with model.chat(template="chatml", n_predict=1) as talk:
        text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
        assert talk.send("a").stats.prompt_tokens == len(prompt_ids(model.tokenizer, text))
    with pytest.raises(InputError, match=r"no chat template 'nothing'.*chatml"):
        model.chat(template="nothing")
    with pytest.raises(InputError, match="no such file"):
        model.chat(template=str(tmp_path / "none.jinja"))


def test_a_model_without_a_template(tiny_gguf: Path, tmp_path: Path) -> None:
    with load_decoder(tiny_gguf, cache_dir=tmp_path) as plain:
        with pytest.raises(UnsupportedError, match="no chat template"):
            plain.chat()
        plain.chat(template="zephyr").close()


# --- files --------------------------------------------------------------------


def test_saving_and_resuming(model: Model, talk: Conversation, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk.system = "be brief, é"
    talk.send("the rain").text()
    talk.save(file)
    last = talk.send("in a")
    text = last.text()
    with model.chat(temperature=0.0, n_predict=4) as other:
        other.resume(file)
        assert (other.system, other.messages) == ("be brief, é", talk.messages[:3])
        assert other.send("in a").text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]
    with pytest.raises(InputError, match="folder does not exist"):
        talk.save(tmp_path / "none" / "talk.json")


def test_a_conversation_of_another_model(model: Model, talk: Conversation, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk.send("the rain").text()
    talk.save(file)
    other = tiny_text.write(tmp_path / "other.gguf", {**KEYS, "general.name": "other"})
    with load_decoder(other, cache_dir=tmp_path / "cache") as second, second.chat() as there:
        with pytest.raises(InputError, match=r"held with another model, chat.gguf.*--force"):
            there.resume(file)
        assert there.messages == []
        there.resume(file, force=True)
        assert there.messages == talk.messages


def edited(**changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    model = {"name": "", "file": "", "fingerprint": ""}
    good = {"schema": "anex.conversation/1", "model": model, "system": None, "messages": messages}
    return {**good, "forgotten": 0, **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ({}, "schema is not"),
        (edited(schema="anex.chat/1"), "schema is not"),
        (edited(model="x"), "no saved conversation"),
        (edited(model={"name": "", "file": ""}), "no saved conversation"),
        (edited(model={"name": "", "file": "", "fingerprint": 3}), "'fingerprint' is no text"),
        (edited(model={"name": "", "file": "", "fingerprint": "", "x": ""}), "no saved conversation"),
        (edited(system=3), "'system' is no text"),
        (edited(messages=3), "no saved conversation"),
        (edited(messages=[3, 3]), "no saved conversation"),
        (edited(messages=[{"role": "user", "content": "a"}]), "has no answer"),
        (edited(messages=[{"role": "assistant", "content": "a"}] * 2), "message 0 is not the user's"),
        (edited(messages=[{"role": "user", "content": ["a"]}] * 2), "'content' is no text"),
        (edited(forgotten=4), "'forgotten' is 4"),
        (edited(forgotten=-2), "'forgotten' is -2"),
        (edited(forgotten=True), "'forgotten' is True"),
    ],
)
def test_files_that_are_no_conversation(
    talk: Conversation, tmp_path: Path, content: Any, message: str
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=message):
        talk.resume(file, force=True)
    assert talk.messages == []


def test_the_smallest_file_is_one(talk: Conversation, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(edited(forgotten=2)))
    talk.resume(tmp_path / "talk.json", force=True)
    assert (talk.forgotten, [m["content"] for m in talk.messages]) == (2, ["a", "b"])
