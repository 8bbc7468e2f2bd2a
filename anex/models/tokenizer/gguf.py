"""The tokenizer that the metadata of a GGUF file describes; its ids are llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from anex.models.tokenizer import bpe, spm, unigram, vocabulary, wpm
from anex.models.tokenizer.facts import HIDDEN, SPACE_MARK, SPECIAL, Kind
from anex.models.tokenizer.vocabulary import Vocabulary

_ENCODERS = {"bpe": bpe.encoder, "spm": spm.encoder, "wpm": wpm.encoder, "unigram": unigram.encoder}

# What C's isspace() means: the white space that a token with a strip rule swallows.
_C_SPACE = " \t\n\v\f\r"


class GGUFCore:
    """See `Tokenizer.from_gguf`."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary.read(metadata)
        self._encode_plain = _ENCODERS[self._vocabulary.family.algorithm](self._vocabulary)

    @property
    def facts(self) -> Vocabulary:
        return self._vocabulary

    def encode(self, text: str, parse_special: bool) -> list[int]:
        prefixed = self._vocabulary.family.algorithm == "spm" and self._vocabulary.add_space_prefix
        ids: list[int] = []
        after_special = True
        for fragment in self._fragments(text, parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += self._encode_plain(" " + fragment if prefixed and after_special else fragment)
            after_special = isinstance(fragment, int)
        return ids

    def piece(self, token: int) -> bytes:
        text, kind = self._vocabulary.tokens[token], self._vocabulary.kinds[token]
        if kind & SPECIAL:
            return text.encode("utf-8", "surrogateescape")
        if (
            kind & Kind.NORMAL
            and self._vocabulary.family.algorithm == "bpe"
            and self._vocabulary.pre.byte_level
        ):
            return bpe.text_bytes(text)
        if kind & Kind.NORMAL:
            return text.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")
        if kind & Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        return b""

    @cached_property
    def _special(self) -> list[int]:
        """The tokens that are cut out of a text first, the longest (in bytes) first."""
        special = [i for i, kind in enumerate(self._vocabulary.kinds) if kind & SPECIAL]
        tokens = self._vocabulary.tokens
        return sorted(special, key=lambda i: -len(tokens[i].encode("utf-8", "surrogateescape")))

    def _fragments(self, text: str, parse_special: bool) -> list[str | int]:
        """`text` cut into special tokens and the texts between them; no text is empty."""
        tokens, kinds = self._vocabulary.tokens, self._vocabulary.kinds
        fragments: list[str | int] = [text] if text else []
        for i in self._special:
            if tokens[i] in text and (parse_special or not kinds[i] & HIDDEN):
                fragments = list(_cut_out(fragments, i, tokens[i], kinds[i]))
        return fragments


def _cut_out(fragments: list[str | int], token: int, mark: str, kind: int) -> Iterator[str | int]:
    """`fragments` with every `mark` in the texts replaced by `token`; what remains empty is dropped."""
    for fragment in fragments:
        rest = fragment
        while isinstance(rest, str) and mark in rest:
            left, _, rest = rest.partition(mark)
            if kind & Kind.STRIP_LEFT:
                left = left.rstrip(_C_SPACE)
            if kind & Kind.STRIP_RIGHT:
                # Before the search goes on: a mark may itself be white space.
                rest = rest.lstrip(_C_SPACE)
            if left:
                yield left
            yield token
        if rest != "":
            yield rest
