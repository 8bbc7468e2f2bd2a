"""WordPiece as llama.cpp does it for BERT: words are spelled with the longest tokens, from the left.

Source: llm_tokenizer_wpm_session in llama.cpp's src/llama-vocab.cpp (MIT licence).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache

from anex.models.tokenizer.facts import SPACE_MARK
from anex.models.tokenizer.prefixes import lengths_by_first
from anex.models.tokenizer.unicode_classes import class_of
from anex.models.tokenizer.vocabulary import Vocabulary

_CACHED_WORDS = 65_536

# Every character of these ranges is a word of its own. 2B920 is 2B820 in Unicode; the library that BERT's
# own tokenizer runs on has the slip, so the models were trained with it.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """A function from a text without special tokens to ids."""
    ids = vocabulary.ids
    unknown = (vocabulary.roles["unk"],)
    lengths = {first: found[::-1] for first, found in lengths_by_first(ids).items()}
    table = _Written(vocabulary.lowercase, vocabulary.strip_accents)

    @lru_cache(_CACHED_WORDS)
    def spelled(word: str) -> tuple[int, ...]:
        found = []
        at = 0
        while at < len(word):
            length = next((n for n in lengths.get(word[at], ()) if word[at : at + n] in ids), 0)
            if not length:
                return unknown
            found.append(ids[word[at : at + length]])
            at += length
        return tuple(found)

    def encode(text: str) -> list[int]:
        return [i for word in text.translate(table).split(" ") if word for i in spelled(SPACE_MARK + word)]

    return encode


class _Written(dict[int, str]):
    """A table for `str.translate` that makes words of a text, with spaces between them."""

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase = lowercase
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        self[code] = text = self._written(chr(code))
        return text

    def _written(self, character: str) -> str:
        if self._strip_accents:
            # Without what follows the base character, which for Hangul and others is more than accents:
            # llama.cpp's table has one code point for each.
            character = unicodedata.normalize("NFD", character)[0]
        kind = _class(character)
        if kind == "W":
            return " "
        if kind == "C" or character == "\ufffd" or (kind == "M" and self._strip_accents):
            return ""
        text = character.lower()[0] if self._lowercase else character
        alone = kind == "P" or (kind == "S" and character.isascii()) or _is_ideograph(ord(character))
        return f" {text} " if alone else text


def _class(character: str) -> str:
    if not character.isascii():
        return class_of(ord(character))
    return "W" if character in " \t\n\v\f\r" else unicodedata.category(character)[0]


def _is_ideograph(code: int) -> bool:
    return any(first <= code <= last for first, last in _IDEOGRAPHS)
