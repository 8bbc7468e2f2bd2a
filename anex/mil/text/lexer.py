"""MIL text as a list of tokens, and where a token stands.

One regular expression does the work, so that a megabyte of text costs tens of
milliseconds.  Tokens are plain strings without a position: a position is only
wanted for the one error that ends the parsing, and is then found by lexing
again up to that token.  Every alternative is possessive or consumes what it
scanned, so that no text takes more than linear time.
"""

from __future__ import annotations

import re

from anex.errors import InputError

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A legal name of a value, op, function, parameter or attribute."""

_NUMBER = (
    r"[-+]?+(?:0[xX][0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?+(?:[pP][-+]?+[0-9]++)?+"
    r"|(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?+[0-9]++)?+"
    r"|nan\(0x[0-9a-fA-F]++\))"
)
_STRING_BODY = r'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+'

_TOKEN = re.compile(
    r"(?:[ \t\r\n\f\v]++|//[^\n]*+)*+"
    r"("
    # The commonest type is one token; other spacings are read piece by piece.
    r"tensor<[a-z0-9]++, ?\[(?:[0-9?]++(?:, ?[0-9?]++)*+)?+\]>"
    rf"|{_NUMBER}"
    rf"|{IDENTIFIER.pattern}"
    rf'|{_STRING_BODY}"'
    # An unterminated string must consume its text, else lexing is quadratic.
    rf"|{_STRING_BODY}"
    r"|[-+](?:inf|nan)"
    r"|->"
    r"|(?s:.)"
    r"|\Z"
    r")"
)
_STRING = re.compile(rf'{_STRING_BODY}"')
_PUNCTUATION = frozenset("()[]{}<>,;=?")


class Lexer:
    """The tokens of one text.

    Attributes:
        tokens: Every token in order, then at least two empty strings for the end,
            so that one token may be looked at ahead.

    Raises:
        InputError: The text holds a character that no token starts with.
    """

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._check_encoding()
        self.tokens: list[str] = _TOKEN.findall(text)
        self.tokens.append("")
        self._check_characters()

    def error(self, index: int, what: str, hint: str = "") -> InputError:
        """An error at token `index`, with source, line and column."""
        offset = len(self._text)
        for count, match in enumerate(_TOKEN.finditer(self._text)):
            if count == index:
                offset = match.start(1)
                break
        return self._error_at(offset, what, hint)

    def expected(self, index: int, wanted: str, hint: str = "") -> InputError:
        """An error that says what was wanted at token `index` instead of what stands there."""
        return self.error(index, f"expected {wanted}, found {self.show(index)}", hint)

    def show(self, index: int) -> str:
        """Token `index` as it is quoted in a message."""
        token = self.tokens[index]
        if not token:
            return "the end of the text"
        if token[0] == '"' and not is_string(token):
            return f"the unterminated string {shorten(token)}"
        return shorten(token) if token[0] == '"' else f"'{shorten(token)}'"

    def _error_at(self, offset: int, what: str, hint: str = "") -> InputError:
        line = self._text.count("\n", 0, offset) + 1
        column = offset - self._text.rfind("\n", 0, offset)
        return InputError(what, where=f"{self._source or 'text'}:{line}:{column}", hint=hint)

    def _check_encoding(self) -> None:
        zero = self._text.find("\0")
        if zero >= 0:
            raise self._error_at(zero, "expected text, found a NUL character")
        if self._text.isascii():
            return
        try:
            self._text.encode()
        except UnicodeEncodeError as error:
            raise self._error_at(error.start, "expected Unicode text, found a lone surrogate") from None

    def _check_characters(self) -> None:
        bad = {
            token
            for token in set(self.tokens)
            if len(token) == 1
            and token not in _PUNCTUATION
            and token != '"'
            and not (token.isascii() and (token.isalnum() or token == "_"))
        }
        if bad:
            index = next(i for i, token in enumerate(self.tokens) if token in bad)
            wanted = "a name, number, string or sign"
            raise self.error(index, f"expected {wanted}, found {self.tokens[index]!a}")


def is_string(token: str) -> bool:
    """Whether a token is a complete string, with both quotes."""
    return _STRING.fullmatch(token) is not None


def shorten(text: str, limit: int = 60) -> str:
    """Text for a message: one line, no longer than `limit`."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
