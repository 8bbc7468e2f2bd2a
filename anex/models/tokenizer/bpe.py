"""Byte-level BPE, and BPE on UTF-8 as Gemma 4 has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from anex.errors import InputError
from anex.models.tokenizer import keys
from anex.models.tokenizer.facts import SPACE_MARK
from anex.models.tokenizer.vocabulary import Vocabulary

_CACHED_WORDS = 65_536


def _byte_characters() -> list[str]:
    """The 256 printable characters that GPT-2 writes bytes with."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [characters[byte] for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
_TO_CHARACTER = dict(enumerate(BYTE_CHARACTERS))
BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def byte_text(text: str) -> str:
    """The UTF-8 bytes of `text`, written in GPT-2's alphabet."""
    return text.encode().decode("latin-1").translate(_TO_CHARACTER)


def text_bytes(token: str) -> bytes:
    """The reverse of `byte_text`; a character that is none of the alphabet stands for itself."""
    if all(character in BYTE_OF_CHARACTER for character in token):
        return bytes(map(BYTE_OF_CHARACTER.__getitem__, token))
    parts = (
        bytes([BYTE_OF_CHARACTER[character]])
        if character in BYTE_OF_CHARACTER
        else character.encode("utf-8", "surrogateescape")
        for character in token
    )
    return b"".join(parts)


def encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """A function from a text without special tokens to ids.

    Raises:
        InputError: A merge needs a token that the vocabulary does not have.
    """
    split = vocabulary.pre.splitter()
    word_ids = lru_cache(_CACHED_WORDS)(_word_encoder(vocabulary))

    def encode(text: str) -> list[int]:
        if not vocabulary.pre.byte_level:
            text = text.replace(" ", SPACE_MARK)
        return [i for word in split(text) for i in word_ids(word)]

    return encode


def _word_encoder(vocabulary: Vocabulary) -> Callable[[str], tuple[int, ...]]:
    ids = vocabulary.ids
    pre = vocabulary.pre
    merge = _merger(vocabulary)

    def whole(word: str) -> bool:
        return word in ids and (pre.ignore_merges or (pre.newline_runs and not word.strip("\n")))

    def encode(word: str) -> tuple[int, ...]:
        written = byte_text(word) if pre.byte_level else word
        if whole(written):
            return (ids[written],)
        return tuple(i for run in _known_runs(written, ids) for i in merge(run))

    return encode


def _known_runs(word: str, ids: Mapping[str, int]) -> list[str]:
    """`word` cut around characters that are no token: nothing merges across them."""
    if all(character in ids for character in word):
        return [word]
    runs = [""]
    for character in word:
        if character in ids:
            runs[-1] += character
        else:
            runs += [character, ""]
    return [run for run in runs if run]


def _merger(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """A function that merges a run of characters, or spells a character that is no token in bytes."""
    from tokenizers.models import BPE

    ids = vocabulary.ids
    byte_level = vocabulary.pre.byte_level
    try:
        model = BPE(vocab=dict(ids), merges=vocabulary.merges, cache_capacity=0)
    except Exception as error:  # the library raises nothing narrower
        _check_merges(vocabulary)
        raise InputError(f"the merges do not fit the tokens: {error}", where=keys.MERGES) from error

    def merge(run: str) -> list[int]:
        if len(run) == 1 and run not in ids:
            # A byte-level vocabulary without the character has no token for its bytes either.
            names = () if byte_level else (f"<0x{byte:02X}>" for byte in run.encode())
            return [ids[name] for name in names if name in ids]
        return [token.id for token in model.tokenize(run)]

    return merge


def _check_merges(vocabulary: Vocabulary) -> None:
    for i, (left, right) in enumerate(vocabulary.merges):
        for text in (left, right, left + right):
            if text not in vocabulary.ids:
                raise InputError(
                    f"merge {i} ({left!r} + {right!r}) needs {text!r}, which is no token", where=keys.MERGES
                )
