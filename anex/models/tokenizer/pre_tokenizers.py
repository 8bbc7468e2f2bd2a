"""Splitting text into the words inside which byte-level BPE merges.

The rules are data, `pre_tokenizers.toml`; this module reads and applies them the way llama.cpp's
`unicode_regex_split` does, so that the words, and with them the token ids, are the same.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from anex.errors import UnsupportedError
from anex.formats.gguf import quoted
from anex.models.tokenizer.unicode_classes import STAND_IN, ascii_spaced, collapsed

_LONGEST = 80
"""Characters of a name that are compared with known ones."""

# The ASCII members of the Unicode categories, as the inside of a character class.
_ASCII_MEMBERS = {
    "N": "0-9",
    "L": "A-Za-z",
    "P": r"!-#%-*,-/:-;?-@\[-\]_\{\}",
    "M": "",
    "S": r"\$\+<->^`\|~",
}

_PROPERTY = re.compile(r"\\p\{([NLPMS])[a-z]?\}")
_CLASS_OR_PROPERTY = re.compile(r"(\[(?:\\.|[^\]\\])*\])|\\p\{[NLPMS][a-z]?\}")


@dataclass(frozen=True)
class PreTokenizer:
    """One entry of the table; `pre_tokenizers.toml` says what the fields mean."""

    steps: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    force_bos: bool = False
    byte_level: bool = True
    newline_runs: bool = False

    def splitter(self) -> Callable[[str], list[str]]:
        """A function that splits text into words; joined they are the text again."""
        steps = [_step(pattern) for pattern in self.steps]
        return lambda text: _split(steps, text)


@cache
def table() -> dict[str, PreTokenizer]:
    """All pre-tokenizers by the name that `tokenizer.ggml.pre` gives them."""
    data: dict[str, Any] = tomllib.loads(
        files(__package__).joinpath("pre_tokenizers.toml").read_text(encoding="ascii")
    )
    entries = {}
    for split in data["split"]:
        steps = tuple(data["patterns"][name] for name in split.pop("steps"))
        entries.update(dict.fromkeys(split.pop("names"), PreTokenizer(steps, **split)))
    return entries


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer called `name`.

    Raises:
        UnsupportedError: There is none of that name.
    """
    try:
        return table()[name]
    except KeyError:
        near = difflib.get_close_matches(name[:_LONGEST], table(), n=5)
        hint = (
            f"near it: {', '.join(near)}; {len(table())} are known" if near else f"{len(table())} are known"
        )
        raise UnsupportedError(
            f"pre-tokenizer {quoted(name)}", where="tokenizer.ggml.pre", hint=hint
        ) from None


@dataclass(frozen=True)
class _Step:
    pattern: re.Pattern[str]
    by_category: bool


@cache
def _step(pattern: str) -> _Step:
    # re.ASCII: \s, \d and \b mean ASCII in llama.cpp, whose subject has no other white space left.
    expanded = _CLASS_OR_PROPERTY.sub(_expand, pattern)
    return _Step(re.compile(expanded, re.ASCII), by_category=expanded != pattern)


def _members(match: re.Match[str]) -> str:
    return STAND_IN[match[1]] + _ASCII_MEMBERS[match[1]]


def _expand(match: re.Match[str]) -> str:
    """A character class with its properties written out, or a property outside of one as a class."""
    inside = match[1]
    return _PROPERTY.sub(_members, inside) if inside else "[" + _PROPERTY.sub(_members, match[0]) + "]"


def _split(steps: list[_Step], text: str) -> list[str]:
    ends = [len(text)]
    for step in steps:
        subject = collapsed(text) if step.by_category else ascii_spaced(text)
        ends = _cuts(step.pattern, subject, ends)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def _cuts(pattern: re.Pattern[str], subject: str, ends: list[int]) -> list[int]:
    """Where the pieces of `subject` end after `pattern` has split those that end at `ends`.

    A piece is all that the pattern sees: its end is the end of the text for a lookahead.
    """
    cuts = [0]
    start = 0
    for end in ends:
        for match in pattern.finditer(subject, start, end):
            cuts += match.span()
        cuts.append(end)
        start = end
    return cuts
