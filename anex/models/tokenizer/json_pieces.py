"""The bytes of single tokens, from the decoder that a tokenizer.json describes.

The library decodes whole lists; what its decoders do to one token is the same wherever the token stands,
but for the first one's space, so text can be streamed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from anex.errors import UnsupportedError
from anex.models.tokenizer.bpe import text_bytes
from anex.models.tokenizer.facts import SPACE_MARK

Rewrite = Callable[[str], str]

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class PieceRule:
    """What a decoder does to one token.

    Attributes:
        strips_space: Whether it takes the first space of a text away.
        words: Whether tokens are words, with spaces between them that the tokens do not have.
    """

    def __init__(self, state: Mapping[str, Any] | None) -> None:
        self.strips_space = False
        self.words = False
        self._rewrites: list[Rewrite] = []
        self._to_bytes: Callable[[str], bytes] = str.encode
        self._lacking = ""
        for step in [{"type": "Words"}] if state is None else _steps(state):
            kind = str(step["type"])
            _RULES.get(kind, _unknown)(self, step)

    def __call__(self, token: str) -> bytes:
        """The bytes of a token.

        Raises:
            UnsupportedError: The decoder has a step whose result depends on more than one token.
        """
        if self._lacking:
            raise UnsupportedError(f"decoder {self._lacking} of tokenizer.json", hint="only encoding works")
        for rewrite in self._rewrites:
            token = rewrite(token)
        return self._to_bytes(token)

    def _byte_level(self, step: Mapping[str, Any]) -> None:
        self._to_bytes = text_bytes

    def _byte_fallback(self, step: Mapping[str, Any]) -> None:
        self._to_bytes = _fallback_bytes

    def _fuse(self, step: Mapping[str, Any]) -> None:
        """Joins tokens; a piece is one token."""

    def _replace(self, step: Mapping[str, Any]) -> None:
        pattern, content = step["pattern"].get("String"), str(step["content"])
        if pattern is None or len(pattern) != 1:
            self._lacking = "Replace"
            return
        self._rewrites.append(lambda token: token.replace(pattern, content))

    def _strip(self, step: Mapping[str, Any]) -> None:
        if (step["content"], step["start"], step["stop"]) != (" ", 1, 0):
            self._lacking = "Strip"
        self.strips_space = True

    def _metaspace(self, step: Mapping[str, Any]) -> None:
        mark = str(step.get("replacement", SPACE_MARK))
        self._rewrites.append(lambda token: token.replace(mark, " "))
        self.strips_space = step.get("prepend_scheme", "always") != "never"

    def _word_piece(self, step: Mapping[str, Any]) -> None:
        mark = str(step["prefix"])
        self._rewrites.append(
            lambda token: token.removeprefix(mark) if mark and token.startswith(mark) else f" {token}"
        )
        self.strips_space = self.words = True

    def _words(self, step: Mapping[str, Any]) -> None:
        self._rewrites.append(lambda token: f" {token}")
        self.strips_space = self.words = True


_RULES: Mapping[str, Callable[[PieceRule, Mapping[str, Any]], None]] = {
    "ByteLevel": PieceRule._byte_level,
    "ByteFallback": PieceRule._byte_fallback,
    "Fuse": PieceRule._fuse,
    "Replace": PieceRule._replace,
    "Strip": PieceRule._strip,
    "Metaspace": PieceRule._metaspace,
    "WordPiece": PieceRule._word_piece,
    "Words": PieceRule._words,
}


def _unknown(rule: PieceRule, step: Mapping[str, Any]) -> None:
    rule._lacking = str(step["type"])


def _steps(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [inner for step in state["decoders"] for inner in _steps(step)]


def _fallback_bytes(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.encode()
