"""The tokenizer against llama.cpp (tools/goldens/tokenizer.py), against itself, and against bad files."""

from __future__ import annotations

import json
import lzma
import struct
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anex.errors import AnexError, InputError, UnsupportedError
from anex.formats.gguf import GGUFFile
from anex.models.tokenizer import CONSUMED, NEUTRAL, Tokenizer, neutral_reason
from anex.models.tokenizer.bpe import byte_text
from anex.models.tokenizer.pre_tokenizers import table
from anex.models.tokenizer.unicode_classes import class_of

DATA = Path(__file__).parent.parent / "data/tokenizer"
SOURCE = tomllib.loads((DATA / "corpus.toml").read_text(encoding="utf-8"))
CORPUS: list[str] = [text for group in SOURCE["texts"].values() for text in group]
GGML = "tokenizer.ggml."
BPE_SETS = ("bpe", "bpe_bos_only", "utf8", "gemma4", "smollm2")
SPM_SETS = ("spm", "spm_no_prefix", "spm_strip")
WPM_SETS = ("wpm", "wpm_cased", "wpm_accents")
UNIGRAM_SETS = ("unigram", "unigram_spaces", "unigram_plain")
SETS = (*BPE_SETS, *SPM_SETS, *WPM_SETS, *UNIGRAM_SETS)

Metadata = dict[str, Any]


@cache
def golden(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


@cache
def vocabulary(name: str) -> Metadata:
    """The metadata of one of the committed vocabularies."""
    with TemporaryDirectory() as folder:
        path = DATA / f"{name}.gguf"
        if not path.exists():
            path = Path(folder) / path.name
            path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
        file = GGUFFile(path)
        metadata = {
            key: value.copy() if isinstance(value, np.ndarray) else value
            for key, value in file.metadata.items()
        }
        file.close()
    return metadata


@cache
def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of one of `SETS`."""
    changes: Metadata = golden(name)["changes"]
    return Tokenizer.from_gguf(vocabulary(golden(name)["vocabulary"]) | changes)


# llama.cpp's answers


@pytest.mark.parametrize("name", SETS)
def test_ids_are_llama_cpps(name: str) -> None:
    for text, special, plain in zip(CORPUS, golden(name)["special"], golden(name)["plain"], strict=True):
        assert tokenizer(name).encode(text) == special, text
        assert tokenizer(name).encode(text, add_special=False, parse_special=False) == plain, text


@pytest.mark.parametrize("name", SETS)
def test_tokens_are_llama_cpps(name: str) -> None:
    subject = tokenizer(name)
    for token, piece in golden(name)["pieces"].items():
        assert subject.token(int(token)) == bytes.fromhex(piece)
    assert subject.eog == set(golden(name)["eog"])
    # Tokens without any text are hidden, too, but nobody can see it.
    hidden = {i for i in range(subject.vocab_size) if subject.is_control(i) and subject.token(i)}
    assert hidden == set(golden(name)["hidden"])


@pytest.mark.parametrize("name", golden("pre")["names"])
def test_every_pre_tokenizer_splits_like_llama_cpp(name: str) -> None:
    metadata = {key: value for key, value in vocabulary("bpe").items() if "add_" not in key}
    subject = Tokenizer.from_gguf(metadata | {f"{GGML}pre": name})
    for text, lists, index in zip(CORPUS, golden("pre")["ids"], golden("pre")["names"][name], strict=True):
        assert subject.encode(text) == lists[index], text


def test_every_pre_tokenizer_has_goldens() -> None:
    assert set(golden("pre")["names"]) == {name for name, pre in table().items() if pre.byte_level}


@pytest.mark.parametrize("case", golden("ends"), ids=lambda case: case["added"][0])
def test_ends_of_generation_are_llama_cpps(case: Mapping[str, list[str]]) -> None:
    base = vocabulary("bpe")
    added = case["added"]
    tokens = [*base[f"{GGML}tokens"], *added]
    types = [*base[f"{GGML}token_type"].tolist(), *[1] * len(added)]
    subject = Tokenizer.from_gguf(base | {f"{GGML}tokens": tokens, f"{GGML}token_type": types})
    assert [text for text in added if subject.id_of(text) in subject.eog] == case["ends"]
    hidden = [text for text in added if subject.is_control(tokens.index(text))]
    assert hidden == case["hidden"]


def test_roles_of_smollm2() -> None:
    # From its tokenizer_config.json: <|im_start|>, <|im_end|>, and <|endoftext|> for what is unknown.
    subject = tokenizer("smollm2")
    assert (subject.bos, subject.eos, subject.unk, subject.eot) == (1, 2, 0, 2)
    assert not subject.add_bos
    assert not subject.add_eos
    assert subject.encode("Hello world") == [19556, 905]


# There and back


def round_trip(name: str, text: str) -> str:
    subject = tokenizer(name)
    return subject.decode(subject.encode(text, add_special=False, parse_special=False))


@given(st.text())
def test_byte_level_gives_the_text_back(text: str) -> None:
    assert round_trip("bpe", text) == text
    # SmolLM2 has no tokens for a few bytes; llama.cpp leaves them out, and so does anex.
    assume(all(tokenizer("smollm2").id_of(character) is not None for character in byte_text(text)))
    assert round_trip("smollm2", text) == text


@given(st.text())
def test_sentencepiece_gives_the_text_back(text: str) -> None:
    # ▁ is a space to these vocabularies, and behind a user-defined token a space is added.
    assume("▁" not in text and "<tool>" not in text and "    " not in text)
    for name in ("utf8", "gemma4", "spm", "spm_no_prefix"):
        assert round_trip(name, text) == text


@given(st.sampled_from(SETS), st.data(), st.booleans(), st.booleans())
def test_a_stream_gives_what_decode_gives(
    name: str, data: st.DataObject, skip: bool, continued: bool
) -> None:
    subject = tokenizer(name)
    ids = data.draw(st.lists(st.integers(0, subject.vocab_size - 1)))
    stream = subject.stream(skip_special=skip, continued=continued)
    text = "".join(stream.push(i) for i in ids) + stream.flush()
    assert text == subject.decode(ids, skip_special=skip, continued=continued)
    if continued:
        pieces = [subject.token(i) for i in ids if not (skip and subject.is_control(i))]
        assert text == b"".join(pieces).decode("utf-8", "replace")


@pytest.mark.parametrize("name", ["bpe", "utf8", "spm"])
def test_decode_joins_llama_cpps_pieces(name: str) -> None:
    pieces = golden(name)["pieces"]
    for ids in golden(name)["special"]:
        whole = b"".join(bytes.fromhex(pieces[str(i)]) for i in ids).decode("utf-8", "replace")
        assert tokenizer(name).decode(ids, continued=True) == whole


def test_a_stream_holds_incomplete_characters_back() -> None:
    subject = tokenizer("bpe")
    stream = subject.stream()
    ids = [subject.id_of(character) for character in "ðŁĺĢ"]  # U+1F600, a byte each
    assert [stream.push(i) for i in ids if i is not None] == ["", "", "", "\U0001f600"]
    assert stream.flush() == ""
    assert stream.push(ids[0] or 0) == ""
    assert stream.flush() == "\ufffd"


def test_the_added_space_is_taken_away_once() -> None:
    subject = tokenizer("spm")
    ids = subject.encode("  Hello")
    assert subject.decode(ids) == "<s>  Hello"
    assert subject.decode(ids, skip_special=True) == "  Hello"
    assert subject.decode(ids, skip_special=True, continued=True) == "   Hello"


def test_control_tokens_in_plain_text_stay_text() -> None:
    for name in ("bpe", "spm", "smollm2"):
        subject = tokenizer(name)
        end = subject.id_of("<|im_end|>")
        assert end in subject.encode("a<|im_end|>")
        ids = subject.encode("a<|im_end|>", parse_special=False)
        assert end not in ids
        assert subject.decode(ids, skip_special=True) == "a<|im_end|>"


# The parts


@given(st.text(), st.sampled_from(sorted(table())))
def test_splitting_loses_nothing(text: str, name: str) -> None:
    words = table()[name].splitter()(text)
    assert "".join(words) == text
    assert all(words)


def test_classes_are_unicodes() -> None:
    # Python's own tables, where the old and the new one agree, hold in every version of Unicode.
    old = unicodedata.ucd_3_2_0
    for code in range(0x80, 0x30000):
        category = unicodedata.category(chr(code))
        if category == "Cn" or category != old.category(chr(code)):
            continue
        expected = "W" if category[0] == "Z" or code == 0x85 else category[0]
        assert class_of(code) == (expected if expected in "NLPMSWC" else "O"), hex(code)


def merged_naively(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's BPE from its description: merge the best pair, the leftmost of equals, until none."""
    pieces = list(text)
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@given(
    st.dictionaries(st.text("abc▁", min_size=2, max_size=5), st.integers(-3, 3).map(float), max_size=30),
    st.text("abc ", max_size=30),
)
def test_sentencepiece_merges_the_best_pair_first(scores: dict[str, float], text: str) -> None:
    scores = dict.fromkeys("abc▁", 0.0) | scores
    metadata: Metadata = {
        f"{GGML}model": "llama",
        f"{GGML}tokens": list(scores),
        f"{GGML}scores": list(scores.values()),
        f"{GGML}add_bos_token": False,
        f"{GGML}add_space_prefix": False,
    }
    ids = Tokenizer.from_gguf(metadata).encode(text, parse_special=False)
    assert [list(scores)[i] for i in ids] == merged_naively(text.replace(" ", "▁"), scores)


@given(
    st.dictionaries(st.text("ab▁", min_size=1, max_size=4), st.integers(-9, -1).map(float), max_size=12),
    st.text("abc", max_size=7),
)
def test_unigram_finds_the_best_sum(scores: dict[str, float], text: str) -> None:
    metadata: Metadata = {
        f"{GGML}model": "t5",
        f"{GGML}tokens": ["<pad>", "</s>", "<unk>", "~", *scores],
        f"{GGML}token_type": [3, 3, 2, 1, *[1] * len(scores)],
        f"{GGML}scores": [0.0, 0.0, 0.0, -9.0, *scores.values()],
        f"{GGML}add_eos_token": False,
    }
    subject = Tokenizer.from_gguf(metadata)
    ids = subject.encode(text, parse_special=False)

    def best(rest: str) -> float:
        """The best sum of all ways to spell `rest`; an unknown character costs 10 more than any token."""
        if not rest:
            return 0.0
        ways = [scores[t] + best(rest[len(t) :]) for t in scores if rest.startswith(t)]
        return max([*ways, -19.0 + best(rest[1:])] if rest[0] not in scores else ways)

    # Unknown characters in a row are one token; how many there are follows from the text that is left.
    known = [i for i in ids if i != 2]
    unknown = len(text) - sum(len(subject.token(i).decode()) for i in known)
    assert sum(scores[list(scores)[i - 4]] for i in known) - 19.0 * unknown == best(text)


# Files that are not as they should be


def changed(name: str, **changes: Any) -> Metadata:
    """A vocabulary with keys changed, or without those that are None."""
    metadata = vocabulary(name) | {GGML + key: value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def tiny_bert(**changes: Any) -> Metadata:
    """A vocabulary too small for BERT's own ids, so that nothing is there by default."""
    ids = {f"{name}_token_id": i for i, name in enumerate(("bos", "cls", "padding", "unknown", "seperator"))}
    tokens = [*ids, "▁a"]
    keys = {"tokens": tokens, "token_type": [3] * len(ids) + [1], "mask_token_id": None, **ids, **changes}
    return changed("wpm", **keys)


def charsmap_of(*units: int, replacements: bytes = b"x\0") -> list[int]:
    """A table of replacements with these units."""
    return list(struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + replacements)


def tokens_with(name: str, index: int, text: str) -> list[str]:
    tokens = list(vocabulary(name)[f"{GGML}tokens"])
    tokens[index] = text
    return tokens


BAD: dict[str, tuple[Callable[[], Metadata], str]] = {
    "no tokenizer at all": (dict, "tokenizer.ggml.model"),
    "model of wrong type": (lambda: changed("bpe", model=3), "expected str, found int"),
    "no tokens": (lambda: changed("bpe", tokens=None), "tokenizer.ggml.tokens"),
    "empty tokens": (lambda: changed("bpe", tokens=[]), "the array is empty"),
    "tokens are numbers": (lambda: changed("bpe", tokens=[1, 2]), "expected an array of str, found int"),
    "tokens are a string": (lambda: changed("bpe", tokens="abc"), "expected an array, found str"),
    "a token twice": (lambda: changed("bpe", tokens=tokens_with("bpe", 20, "<s>")), "tokens 1 and 20"),
    "no pre-tokenizer": (lambda: changed("bpe", pre=None), "convert the model again"),
    "no merges": (lambda: changed("bpe", merges=None), "tokenizer.ggml.merges"),
    "merge without a border": (lambda: changed("bpe", merges=["a b", "ab"]), "merge 1 is 'ab'"),
    "merge of nothing": (lambda: changed("bpe", merges=["a "]), "merge 0 is 'a '"),
    "merge of unknown tokens": (lambda: changed("bpe", merges=["a b", "qqq a"]), "'qqq', which is no token"),
    "merge to unknown token": (lambda: changed("bpe", merges=["Q Q"]), "'QQ', which is no token"),
    "merges are bytes": (lambda: changed("bpe", merges=b"a b"), "expected an array, found bytes"),
    "types too short": (lambda: changed("bpe", token_type=[1, 2]), "2 elements for"),
    "types of wrong type": (lambda: changed("bpe", token_type=["a"]), "expected an array of int"),
    "unknown type": (
        lambda: changed("bpe", token_type=[7] * len(vocabulary("bpe")[f"{GGML}tokens"])),
        "unknown token type 7",
    ),
    "odd byte token": (lambda: changed("spm", tokens=tokens_with("spm", 20, "<0xQQ>")), "byte token 20"),
    "scores too short": (lambda: changed("spm", scores=[0.0]), "1 elements for"),
    "scores of wrong type": (lambda: changed("spm", scores=["a"]), "tokenizer.ggml.scores"),
    "score that is none": (
        lambda: changed("spm", scores=[float("nan")] * len(vocabulary("spm")[f"{GGML}tokens"])),
        "not a number",
    ),
    "token id out of range": (lambda: changed("bpe", eos_token_id=99_999), "token 99999 of a vocabulary"),
    "token id negative": (lambda: changed("bpe", eot_token_id=-1), "token -1 of a vocabulary"),
    "token id that is a flag": (lambda: changed("bpe", eos_token_id=True), "expected int, found bool"),
    "flag that is a number": (lambda: changed("bpe", add_bos_token=1), "expected bool, found int"),
    "BOS to add, but none named": (lambda: changed("bpe", bos_token_id=None), "bos_token_id is missing"),
    "wpm without its unknown token": (lambda: tiny_bert(unknown_token_id=None), "needs a UNK token"),
    "wpm without its separator": (lambda: tiny_bert(seperator_token_id=None), "needs a SEP token"),
    "table of replacements cut off": (lambda: changed("unigram", precompiled_charsmap=[1, 2]), "truncated"),
    "table of replacements that lies": (
        lambda: changed("unigram", precompiled_charsmap=[200, 0, 0, 0, 1, 2, 3, 4, 5]),
        "truncated",
    ),
    "table of no bytes": (lambda: changed("unigram", precompiled_charsmap=[1, 999]), "are no bytes"),
    "replacement of a thousand": (
        lambda: changed("unigram", precompiled_charsmap=charsmap_of(0, replacements=b"x" * 2000 + b"\0")),
        "replacement of more than 1024 bytes",
    ),
    "EOS to add, but none named": (lambda: changed("bpe", eos_token_id=None), "eos_token_id is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(InputError) as refusal:
        Tokenizer.from_gguf(make())
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "hybriddna", "whitespace", "none", "no_vocab"])
def test_other_tokenizers_are_refused_by_name(model: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        Tokenizer.from_gguf(changed("bpe", model=model))
    assert repr(model) in refusal.value.feature


def test_an_unknown_pre_tokenizer_is_told_in_one_short_line() -> None:
    with pytest.raises(
        UnsupportedError, match=r"'lama-bpe'.*near it: .*llama-bpe.*; \d+ are known"
    ) as refusal:
        Tokenizer.from_gguf(changed("bpe", pre="lama-bpe"))
    assert len(str(refusal.value)) < 250
    with pytest.raises(UnsupportedError, match=r"\d+ are known") as refusal:
        Tokenizer.from_gguf(changed("bpe", pre="\u00e9\n" * 10**6))
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("pre", ["kimi-k2", "whitespace", "", "llama-bpe "])
def test_other_pre_tokenizers_are_refused_by_name(pre: str) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        Tokenizer.from_gguf(changed("bpe", pre=pre))
    assert repr(pre) in refusal.value.feature


@given(
    st.sampled_from(["bpe", "spm"]),
    st.sampled_from(sorted(CONSUMED)),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text()),
)
def test_any_value_of_any_key_is_read_or_refused(name: str, key: str, value: Any) -> None:
    try:
        subject = Tokenizer.from_gguf(vocabulary(name) | {key: value})
        subject.decode(subject.encode("Hello <s> world"))
    except AnexError as error:
        assert key in str(error) or "token" in str(error)  # noqa: PT017


def test_every_key_is_accounted_for() -> None:
    assert not CONSUMED & NEUTRAL.keys()
    neutral = {
        "tokenizer.chat_template": "x",
        "tokenizer.chat_template.rag": "x",
        f"{GGML}padding_token_id": 3,
    }
    subject = Tokenizer.from_gguf(vocabulary("bpe") | neutral)
    assert (
        subject.keys_used
        == {key for key in vocabulary("bpe") if key.startswith("tokenizer.")} | neutral.keys()
    )
    assert all(key in CONSUMED or neutral_reason(key) for key in subject.keys_used)


@pytest.mark.parametrize("key", ["ggml.precompiled_charmap", "ggml.normalizer.nfkc", "rwkv.world", "new"])
def test_unknown_keys_are_refused_by_name(key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        Tokenizer.from_gguf(vocabulary("bpe") | {f"tokenizer.{key}": True})


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InputError, match="at character 1"):
        tokenizer("bpe").encode("a\ud800")


@pytest.mark.parametrize("token", [-1, 100_000])
def test_tokens_out_of_range_are_refused(token: int) -> None:
    with pytest.raises(InputError, match=f"token {token} of a vocabulary"):
        tokenizer("bpe").decode([token])


def test_a_character_that_cannot_be_written_is_refused() -> None:
    metadata: Metadata = {f"{GGML}model": "llama", f"{GGML}tokens": ["<unk>", "<s>", "</s>", "▁", "a"]}
    subject = Tokenizer.from_gguf(metadata)
    assert subject.encode("a a") == [1, 3, 4, 3, 4]
    with pytest.raises(InputError, match="no token for 'é'"):
        subject.encode("é")


@pytest.mark.parametrize(
    "units",
    [
        (0x3FFFFF << 10,),  # the root's children are outside
        (1 << 10, *[0] * 95, 0x1FFFFF << 10 | 1 << 8 | ord("a")),  # a's value is outside
        (1 << 10, *[0] * 95, 1 << 10 | 1 << 8 | ord("a"), 1 << 31 | 99),  # a's replacement is outside
    ],
)
def test_tables_that_lead_out_of_themselves_are_refused(units: tuple[int, ...]) -> None:
    subject = Tokenizer.from_gguf(changed("unigram", precompiled_charsmap=charsmap_of(*units)))
    with pytest.raises(InputError, match="leads out of itself"):
        subject.encode("a")


@given(st.binary(min_size=5, max_size=600), st.text(max_size=20))
def test_any_table_of_replacements_is_read_or_refused(blob: bytes, text: str) -> None:
    table = struct.pack("<I", (len(blob) - 1) // 4 * 4) + blob
    try:
        Tokenizer.from_gguf(changed("unigram", precompiled_charsmap=list(table))).encode(text)
    except InputError as error:
        assert "the table" in str(error)  # noqa: PT017


def test_berts_names_for_its_tokens() -> None:
    # Files of an old converter name no BOS token.
    subject = Tokenizer.from_gguf(changed("wpm", bos_token_id=None))
    assert [subject.id_of("[CLS]"), subject.id_of("[SEP]")] == subject.encode("")
    assert subject.encode("", add_special=False) == []
    ids = subject.encode("THE  d\u00e0ys", add_special=False)
    assert (
        subject.decode(subject.encode("THE  d\u00e0ys"), skip_special=True)
        == subject.decode(ids)
        == "the days"
    )
    assert Tokenizer.from_gguf(tiny_bert()).encode("a b") == [0, 5, 3, 4]


@pytest.mark.parametrize("key", ["precompiled_charsmap", "normalizer.lowercase", "normalizer.strip_accents"])
def test_normalizing_keys_of_other_tokenizers_are_refused(key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        Tokenizer.from_gguf(changed("bpe", **{key: [1, 2] if "chars" in key else True}))
    assert Tokenizer.from_gguf(changed("bpe", **{"normalizer.lowercase": False})).vocab_size


def test_suppressed_tokens_are_kept_for_the_sampler() -> None:
    subject = Tokenizer.from_gguf(changed("bpe", suppress_tokens=np.array([3, 4, -1, 99_999], np.int32)))
    assert subject.suppressed == {3, 4}
