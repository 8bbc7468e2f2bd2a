"""What is known about the tokens of a model, whatever kind of file said it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Protocol

SPACE_MARK = "\u2581"
"""What stands for a space in SentencePiece's tokens."""


class Kind(IntFlag):
    """What a token is; llama.cpp's token attributes. 0 is a token of no kind, which has no text."""

    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32
    STRIP_LEFT = 64
    STRIP_RIGHT = 128


HIDDEN = int(Kind.UNKNOWN | Kind.CONTROL)
"""Kinds whose tokens are not text: neither read from plain text nor shown to a person."""
SPECIAL = HIDDEN | int(Kind.USER_DEFINED)
"""Kinds whose tokens are cut out of a text before it is tokenised."""


@dataclass(frozen=True)
class Facts:
    """Tokens and their roles, checked.

    Attributes:
        ids: Text of a token, as the file writes it -> id.
        kinds: `Kind` of each token; as many as the model has tokens.
        roles: Role (bos, eos, eot, eom, unk, sep, fim_*) -> id, as far as there is one.
        ends: Ids that end generation.
        suppressed: Ids that must never be generated.
        prefix: Ids that go before a text.
        suffix: Ids that go after it.
        strips_space: Tokenising puts a space before the first word, and decoding takes it away again.
        keys_used: The `tokenizer.*` keys of a GGUF file.
    """

    ids: Mapping[str, int]
    kinds: list[int]
    roles: Mapping[str, int]
    ends: frozenset[int]
    suppressed: frozenset[int]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    strips_space: bool
    keys_used: frozenset[str]


class Core(Protocol):
    """The part of a tokenizer that depends on the kind of file."""

    @property
    def facts(self) -> Facts: ...

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """The ids of a valid text, without prefix and suffix."""
        ...

    def piece(self, token: int) -> bytes:
        """The text of a token of the vocabulary."""
        ...
