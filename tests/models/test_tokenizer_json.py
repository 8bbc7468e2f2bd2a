"""tokenizer.json: against the `tokenizers` library used directly, against llama.cpp, and bad files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from test_tokenizer import CORPUS, golden, vocabulary
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from anex.errors import AnexError, InputError, UnsupportedError
from anex.models.tokenizer import Tokenizer
from anex.models.tokenizer.json_files import LIMITS, model_files

Library = tokenizers.Tokenizer
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "unk_token": "<unk>"}
BERT_CONFIG = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "model_max_length": 512}


def trained(model: Library, trainer: Any) -> Library:
    texts = [text for text in CORPUS if not any(token in text for token in SPECIAL)]
    model.train_from_iterator(texts * 2, trainer)
    return model


def byte_level() -> Library:
    """As GPT-2 and its successors have it."""
    model = Library(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    model = trained(model, trainer)
    model.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("    ", normalized=False)])
    return model


def byte_fallback() -> Library:
    """As Llama 2 and Gemma have it: SentencePiece's BPE, bytes for characters that are no token."""
    model = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model.decoder = decoders.Sequence(steps)
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL + names, limit_alphabet=100, show_progress=False
    )
    state = json.loads(trained(model, trainer).to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIAL]
    model = Library.from_str(json.dumps(state))
    template = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    model.post_processor = template
    return model


def unigram() -> Library:
    """As T5 and XLM-RoBERTa have it."""
    model = Library(models.Unigram())
    model.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    model = trained(model, trainer)
    model.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return model


def word_piece() -> Library:
    """As BERT and MiniLM have it, with the truncation and padding that MiniLM's file asks for."""
    model = Library(models.WordPiece(unk_token="[UNK]"))
    model.normalizer = normalizers.BertNormalizer()
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model.decoder = decoders.WordPiece(cleanup=False)
    model = trained(
        model, trainers.WordPieceTrainer(vocab_size=900, special_tokens=BERT_SPECIAL, show_progress=False)
    )
    special = [("[CLS]", 2), ("[SEP]", 3)]
    model.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=special)
    model.enable_truncation(8)
    model.enable_padding(length=8)
    return model


MAKERS: Mapping[str, tuple[Callable[[], Library], Mapping[str, Any]]] = {
    "byte_level": (byte_level, CONFIG),
    "byte_fallback": (byte_fallback, CONFIG | {"add_bos_token": True, "add_eos_token": False}),
    "unigram": (unigram, {"eos_token": "</s>", "unk_token": "<unk>"}),
    "word_piece": (word_piece, BERT_CONFIG),
}


@cache
def state(name: str) -> str:
    """A tokenizer.json; training twice does not give the same."""
    return MAKERS[name][0]().to_str()


@cache
def library(name: str) -> Library:
    """The library's own tokenizer; texts are neither cut nor filled up."""
    made = Library.from_str(state(name))
    made.no_truncation()
    made.no_padding()
    return made


def written(folder: Path, tokenizer: str | bytes | Mapping[str, Any], **others: Any) -> Path:
    """A model folder; the other files are named without their ending."""
    for name, value in {"tokenizer": tokenizer, **others}.items():
        data = value if isinstance(value, (str, bytes)) else json.dumps(value)
        (folder / f"{name}.json").write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """Our tokenizers of `MAKERS`."""
    return {
        name: Tokenizer.from_json(
            written(tmp_path_factory.mktemp(name), state(name), tokenizer_config=MAKERS[name][1])
        )
        for name in MAKERS
    }


# The library's answers


@pytest.mark.parametrize("name", MAKERS)
def test_ids_are_the_librarys(name: str, opened: Mapping[str, Tokenizer]) -> None:
    for text in CORPUS:
        assert opened[name].encode(text) == library(name).encode(text).ids, text
        plain = library(name).encode(text, add_special_tokens=False).ids
        assert opened[name].encode(text, add_special=False) == plain, text


@pytest.mark.parametrize("name", MAKERS)
def test_control_tokens_in_plain_text_stay_text(name: str, opened: Mapping[str, Tokenizer]) -> None:
    split = Library.from_str(library(name).to_str())
    split.encode_special_tokens = True
    special = [t for t in split.get_added_tokens_decoder().values() if t.special]
    ids_of_special = {split.token_to_id(token.content) for token in special}
    for text in CORPUS:
        ids = opened[name].encode(text, add_special=False, parse_special=False)
        # What the vocabulary cannot write is unknown, and that token is special.
        assert not ids_of_special.difference({opened[name].unk}).intersection(ids)
        # The library itself still finds them where they are pieces of the model.
        if not any(token.content in text for token in special):
            assert ids == split.encode(text, add_special_tokens=False).ids, text


def test_even_the_unknown_token_stays_text(opened: Mapping[str, Tokenizer]) -> None:
    subject = opened["unigram"]
    text = "un <unk> </s> known"
    assert {0, 2}.issubset(subject.encode(text, add_special=False))
    ids = subject.encode(text, add_special=False, parse_special=False)
    assert subject.decode(ids) == text


@pytest.mark.parametrize("name", MAKERS)
def test_decoding_is_the_librarys(name: str, opened: Mapping[str, Tokenizer]) -> None:
    subject = opened[name]
    for text in CORPUS:
        ids = subject.encode(text)
        expected = library(name).decode(ids, skip_special_tokens=True)
        assert subject.decode(ids, skip_special=True) == expected, text


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
def test_a_stream_gives_what_decode_gives(
    name: str, data: st.DataObject, opened: Mapping[str, Tokenizer]
) -> None:
    subject = opened[name]
    ids = data.draw(st.lists(st.integers(0, subject.vocab_size - 1)))
    stream = subject.stream(continued=False)
    assert "".join(map(stream.push, ids)) + stream.flush() == subject.decode(ids)


@given(st.text())
def test_byte_level_gives_the_text_back(opened: Mapping[str, Tokenizer], text: str) -> None:
    subject = opened["byte_level"]
    assert subject.decode(subject.encode(text, add_special=False, parse_special=False)) == text


def test_roles(opened: Mapping[str, Tokenizer]) -> None:
    facts = {name: (t.bos, t.eos, t.unk, t.add_bos, t.add_eos, t.encode("")) for name, t in opened.items()}
    assert facts == {
        "byte_level": (1, 2, 0, False, False, []),
        "byte_fallback": (1, 2, 0, True, False, [1]),
        "unigram": (None, 2, 0, False, True, [2]),
        "word_piece": (2, 3, 1, True, True, [2, 3]),
    }
    # <|im_end|> ends a turn wherever it is, as in a GGUF file of the same model.
    assert opened["byte_level"].eog == {2, 4}
    assert opened["byte_level"].eot == opened["byte_level"].id_of("<|im_end|>") == 4
    assert [opened["byte_level"].is_control(i) for i in (0, 1, 4, 5)] == [True, True, True, False]
    assert not opened["byte_level"].is_control(opened["byte_level"].id_of("<tool>") or 0)


# llama.cpp's answers

# Where all agree on what a word and a character is.
ENGLISH = [text for text in CORPUS if text.isascii() and text.isprintable() and "<" not in text]


@pytest.mark.parametrize("name", ["wpm", "unigram_plain"])
def test_json_and_gguf_of_a_vocabulary_agree(name: str, tmp_path: Path) -> None:
    metadata = vocabulary(golden(name)["vocabulary"]) | golden(name)["changes"]
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    special = [text for text, kind in zip(tokens, kinds, strict=True) if kind in (2, 3, 4)]
    if name == "wpm":
        pieces = [t if t in special else t[1:] if t[0] == "▁" else f"##{t}" for t in tokens]
        model = Library(
            models.WordPiece(
                {t: i for i, t in enumerate(pieces)}, unk_token="[UNK]", max_input_chars_per_word=999
            )
        )
        model.normalizer = normalizers.BertNormalizer()
        model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        scores = metadata["tokenizer.ggml.scores"].tolist()
        model = Library(models.Unigram(list(zip(tokens, scores, strict=True)), tokens.index("<unk>")))
        model.normalizer = normalizers.Replace(" ", "▁")
    model.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    subject = Tokenizer.from_json(written(tmp_path, model.to_str()))
    same = Tokenizer.from_gguf(metadata)
    for text in ENGLISH:
        assert subject.encode(text, add_special=False) == same.encode(text, add_special=False), text


def test_smollm2_has_llama_cpps_ids(tmp_path: Path) -> None:
    metadata = vocabulary("smollm2")
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    model = Library(
        models.BPE({text: i for i, text in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges])
    )
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    model.add_special_tokens(
        [AddedToken(t, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
    )
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    folder = written(tmp_path, model.to_str(), tokenizer_config=config, config={"vocab_size": len(tokens)})
    subject, same = Tokenizer.from_json(folder), Tokenizer.from_gguf(metadata)
    assert (subject.bos, subject.eos, subject.eot, subject.eog) == (same.bos, same.eos, same.eot, same.eog)
    # llama.cpp and the library read the marks of some scripts, and digits beyond ASCII, in their own ways.
    agree = sum(
        subject.encode(text) == ids for text, ids in zip(CORPUS, golden("smollm2")["special"], strict=True)
    )
    assert agree >= 0.9 * len(CORPUS)
    for text, ids in zip(CORPUS, golden("smollm2")["special"], strict=True):
        assert subject.encode(text) == ids or not text.isascii(), text
        assert subject.decode(ids) == same.decode(ids)
    assert all(subject.token(i) == same.token(i) for i in range(0, len(tokens), 61))


# The files beside tokenizer.json


def beside(folder: Path, name: str = "byte_level", **others: Any) -> Tokenizer:
    return Tokenizer.from_json(written(folder, state(name), **others))


def test_flags_of_the_config_decide(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"add_bos_token": False, "add_eos_token": True}
    assert beside(tmp_path, "byte_fallback", tokenizer_config=CONFIG | flags).encode("") == [2]
    assert beside(tmp_path, tokenizer_config=CONFIG | {"add_bos_token": True}).encode("") == [1]
    assert beside(tmp_path, "byte_fallback", tokenizer_config=CONFIG | {"add_bos_token": None}).add_bos


def test_ends_of_the_generation_config(tmp_path: Path) -> None:
    subject = beside(
        tmp_path,
        generation_config={"eos_token_id": [7, 9], "bos_token_id": 1, "suppress_tokens": [11]},
        config={"eos_token_id": 8, "vocab_size": 1000},
    )
    assert (subject.bos, subject.eos, subject.eog, subject.suppressed) == (1, 7, {2, 4, 7, 9}, {11})
    (tmp_path / "generation_config.json").unlink()
    assert beside(tmp_path, config={"text_config": {"eos_token_id": 8}}).eog == {2, 4, 8}
    mapped = beside(tmp_path, special_tokens_map=CONFIG, config={})
    assert (mapped.bos, mapped.eos) == (1, 2)


def test_the_model_has_more_tokens(tmp_path: Path) -> None:
    subject = beside(tmp_path, config={"vocab_size": 1024})
    count = library("byte_level").get_vocab_size()
    assert subject.vocab_size == 1024 > count
    assert (subject.token(count), subject.is_control(1023), subject.decode([5, 1023])) == (
        b"",
        False,
        subject.decode([5]),
    )
    given_size = Tokenizer.from_json(tmp_path, vocab_size=700)
    assert given_size.vocab_size == 700


def test_tokens_for_which_the_model_has_no_weights(tmp_path: Path) -> None:
    base = len(library("byte_level").get_vocab(with_added_tokens=False))
    subject = beside(tmp_path, config={"vocab_size": base})
    assert subject.encode("Hello") == library("byte_level").encode("Hello").ids
    with pytest.raises(InputError, match=r"'<tool>'.*has no weights"):
        subject.encode("a <tool>")
    with pytest.raises(InputError, match=f"token {base - 1}, the model only {base - 1} tokens"):
        Tokenizer.from_json(tmp_path, vocab_size=base - 1)


def test_tokens_that_only_the_config_has(tmp_path: Path) -> None:
    count = library("byte_level").get_vocab_size()
    added = {
        "1": {"content": "<s>", "special": True},
        str(count): {"content": "<|new|>", "special": True},
        str(count + 1): {"content": "<word>", "special": False},
    }
    config = {**CONFIG, "added_tokens_decoder": added, "additional_special_tokens": ["Ġthe"]}
    subject = beside(tmp_path, tokenizer_config=config)
    assert subject.encode("<|new|><word>") == [count, count + 1]
    assert [subject.is_control(count), subject.is_control(count + 1)] == [True, False]
    assert subject.is_control(subject.id_of("Ġthe") or 0)


def test_sources(tmp_path: Path) -> None:
    folder = written(tmp_path, state("byte_level"), tokenizer_config=CONFIG)
    alone = Tokenizer.from_json([folder / "tokenizer.json"])
    assert (alone.bos, Tokenizer.from_json(folder / "tokenizer.json").bos) == (None, 1)
    both = Tokenizer.from_json([str(folder / "tokenizer.json"), folder / "tokenizer_config.json"])
    assert both.bos == Tokenizer.from_json(str(folder)).bos == 1


def test_dropout_is_off(tmp_path: Path) -> None:
    changed = json.loads(state("byte_level"))
    changed["model"]["dropout"] = 0.9
    subject = Tokenizer.from_json(written(tmp_path, changed))
    for text in CORPUS[:40]:
        assert subject.encode(text) == library("byte_level").encode(text).ids


# Decoders

PIECES: dict[str, tuple[Any, list[bytes], str]] = {
    "none": (None, [b" ab", b" ##c", b" <0x41>"], "ab ##c <0x41>"),
    "WordPiece": (decoders.WordPiece(cleanup=False), [b" ab", b"c", b" <0x41>"], "abc <0x41>"),
    "ByteFallback": (decoders.ByteFallback(), [b"ab", b"##c", b"A"], "ab##cA"),
    "Metaspace never": (
        decoders.Metaspace(prepend_scheme="never"),
        [b"ab", b"##c", b"<0x41>"],
        "ab##c<0x41>",
    ),
    "Fuse": (decoders.Fuse(), [b"ab", b"##c", b"<0x41>"], "ab##c<0x41>"),
    "Replace": (decoders.Replace("#", "%"), [b"ab", b"%%c", b"<0x41>"], "ab%%c<0x41>"),
}


def of_words(*words: str, decoder: Any = None) -> Library:
    model = Library(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if decoder is not None:
        model.decoder = decoder
    return model


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_each_decoder(name: str, tmp_path: Path) -> None:
    decoder, pieces, text = PIECES[name]
    model = of_words("?", "ab", "##c", "<0x41>", decoder=decoder)
    subject = Tokenizer.from_json(written(tmp_path, model.to_str()))
    assert [subject.token(i) for i in (1, 2, 3)] == pieces
    assert subject.decode([1, 2, 3]) == text == model.decode([1, 2, 3])


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Replace("ab", "x"),
        decoders.Strip(" ", 2, 0),
        decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("a"), "b")]),
    ],
)
def test_decoders_that_need_more_than_a_token_are_refused(decoder: Any, tmp_path: Path) -> None:
    subject = Tokenizer.from_json(written(tmp_path, of_words("?", "ab", decoder=decoder).to_str()))
    assert subject.encode("ab") == [1]
    with pytest.raises(UnsupportedError, match="decoder"):
        subject.decode([1])


# Files that are not as they should be


def edited(**changes: Any) -> dict[str, Any]:
    return json.loads(of_words("?", "a").to_str()) | changes


def added(index: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, "special": True, **flags}


WORDS = {"type": "WordLevel", "vocab": {"?": 0, "a": 4_000_000_000}, "unk_token": "?"}
GROWING = {"type": "Sequence", "normalizers": [
    {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40}  # fmt: skip
EMPTY_MATCHES = {"type": "Sequence", "normalizers": [
    {"type": "Replace", "pattern": {"Regex": ""}, "content": "a"}] * 40}  # fmt: skip
UNIGRAM = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}
BAD: dict[str, tuple[str | Mapping[str, Any], Mapping[str, Any], str]] = {
    "nothing": ("", {}, "library refuses"),
    "no JSON": ("{", {}, "library refuses"),
    "a list": ("[]", {}, "library refuses"),
    "no model": ("{}", {}, "Model missing"),
    "depth": ("[" * 100_000, {}, "library refuses"),
    "no UTF-8": ("\ud800", {}, "library refuses"),
    "unknown model": (edited(model={"type": "Rwkv", "vocab": {}}), {}, "library refuses"),
    "unknown normalizer": (edited(normalizer={"type": "Shout"}), {}, "library refuses"),
    "merge of no tokens": (
        edited(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}), {}, "out of vocabulary"),
    "unknown token is none": (edited(model=UNIGRAM | {"unk_id": 7}), {}, "library refuses"),
    "empty vocabulary": (edited(model=WORDS | {"vocab": {}}), {}, "vocabulary is empty"),
    "a far token": (edited(model=WORDS), {}, "token 4000000000"),
    "an added token elsewhere": (edited(added_tokens=[added(9, "<s>")]), {}, "has the id 9, but the library"),
    "a config that disagrees": (
        edited(), {"tokenizer_config": {"added_tokens_decoder": {"7": added(7, "a")}}}, "is 1 here and 7"),
    "added tokens that are none": (
        edited(), {"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "no token at 'x'"),
    "BOS that is no token": (
        edited(), {"tokenizer_config": {"bos_token": "<s>"}}, "'<s>', which is no token"),
    "BOS that is a number": (edited(), {"tokenizer_config": {"bos_token": 1}}, "'bos_token' is int"),
    "BOS without a text": (
        edited(), {"tokenizer_config": {"bos_token": {"content": 1}}}, "'bos_token' names no token"),
    "BOS to add, but none named": (
        edited(), {"tokenizer_config": {"add_bos_token": True}}, "BOS token is to be added"),
    "flag that is a text": (
        edited(), {"tokenizer_config": {"add_bos_token": "yes"}}, "'add_bos_token' is str, not bool"),
    "config is a list": (edited(), {"config": []}, "not an object"),
    "config is no JSON": (edited(), {"config": "{"}, "not JSON"),
    "config is deep": (edited(), {"tokenizer_config": "[" * 100_000}, "not JSON"),
    "end that is a text": (edited(), {"config": {"eos_token_id": "2"}}, "'eos_token_id' is str"),
    "end out of range": (
        edited(), {"generation_config": {"eos_token_id": [2]}}, "token 2 of a vocabulary of 2"),
    "end that is a flag": (edited(), {"generation_config": {"eos_token_id": [True]}}, "token True"),
    "vocabulary without end": (edited(), {"config": {"vocab_size": 1 << 60}}, "'vocab_size' is"),
    "vocabulary of another model": (edited(), {"config": {"vocab_size": 1}}, "belongs to another model"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name: str, tmp_path: Path) -> None:
    tokenizer, others, message = BAD[name]
    data = tokenizer.encode("utf-8", "surrogatepass") if isinstance(tokenizer, str) else tokenizer
    with pytest.raises(InputError, match=message) as refusal:
        Tokenizer.from_json(written(tmp_path, data, **others))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("normalizer", [GROWING, EMPTY_MATCHES], ids=["doubling", "matching nothing"])
def test_normalizers_that_blow_a_text_up_are_refused(normalizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="normalizer that may make more than 4096"):
        Tokenizer.from_json(written(tmp_path, edited(normalizer=normalizer)))


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"without tokenizer\.json"):
        Tokenizer.from_json(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        Tokenizer.from_json(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no file of a tokenizer"):
        Tokenizer.from_json([written(tmp_path, edited()) / "tokenizer.json", tmp_path / "vocab.txt"])
    with pytest.raises(InputError, match="no such file"):
        Tokenizer.from_json([tmp_path / "x" / "tokenizer.json"])


def test_files_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path, edited(), generation_config={})
    with (folder / "generation_config.json").open("r+b") as file:
        file.truncate(LIMITS["generation_config.json"] + 1)  # a hole, no bytes on the disk
    with pytest.raises(InputError, match="no such file needs more than 1,048,576"):
        model_files(folder)
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(LIMITS["tokenizer.json"] + 1)
    with pytest.raises(InputError, match="134,217,729 bytes"):
        Tokenizer.from_json([folder / "tokenizer.json"])


def test_texts_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    subject = Tokenizer.from_json(written(tmp_path, edited(model=UNIGRAM)))
    assert subject.encode("aa") == [0, 0]
    with pytest.raises(InputError, match="library refuses"):
        subject.encode("b")
    with pytest.raises(InputError, match="not valid Unicode at character 1"):
        subject.encode("a\ud800")
    with pytest.raises(InputError, match="token 1 of a vocabulary of 1"):
        subject.decode([1])


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """Bytes of a good file cut, doubled and changed at random: an error of ours, or a tokenizer."""
    good = state("unigram").encode()
    rng = random.Random(1)
    for _ in range(60):
        cut = sorted(rng.randrange(len(good)) for _ in range(4))
        parts = [good[a:b] for a, b in pairwise([0, *cut, len(good)])]
        kind = rng.randrange(3)
        if kind == 0:
            parts.pop(rng.randrange(len(parts)))
        elif kind == 1:
            parts.insert(rng.randrange(len(parts)), rng.choice(parts)[:200])
        else:
            parts[2] = bytes(rng.choice(b'0123456789"{}[],:-.eatrufls\\') for _ in range(3)) + parts[2][3:]
        try:
            subject = Tokenizer.from_json(written(tmp_path, b"".join(parts)))
            subject.decode(subject.encode("Hello <s> world"))
        except AnexError as error:
            assert str(tmp_path) in str(error) or "tokenizer" in str(error)  # noqa: PT017
