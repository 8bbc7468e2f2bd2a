"""Code points reduced to the classes that splitting looks at."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from functools import cache
from importlib.resources import files

# llama.cpp matches its patterns against text in which every character beyond ASCII is one of these. A
# vertical tab stands for white space, so that \s means the ASCII spaces alone. The values are llama.cpp's.
STAND_IN = {
    "N": "\u00d1",
    "L": "\u00d2",
    "P": "\u00d3",
    "M": "\u00d4",
    "S": "\u00d5",
    "C": "\u00d0",
    "O": "\u00d0",
    "W": "\v",
}


@cache
def _runs() -> tuple[list[int], list[str]]:
    """The first code points of the runs of equal class, and their classes."""
    text = files(__package__).joinpath("unicode_classes.toml").read_text(encoding="ascii")
    starts, classes = [], []
    start = 0x80
    for length, kind in re.findall("([0-9a-f]+)([A-Z])", tomllib.loads(text)["runs"]):
        starts.append(start)
        classes.append(kind)
        start += int(length, 16)
    return starts, classes


def class_of(code: int) -> str:
    """The class of a code point from U+0080 on: a letter of `STAND_IN`."""
    starts, classes = _runs()
    return classes[bisect_right(starts, code) - 1]


class _Collapsed(dict[int, int]):
    """A table for `str.translate` that fills itself with the characters that occur."""

    def __missing__(self, code: int) -> int:
        self[code] = code if code < 0x80 else ord(STAND_IN[class_of(code)])
        return self[code]


class _AsciiSpaced(dict[int, int]):
    """A table for `str.translate` that leaves all but white space beyond ASCII alone."""

    def __missing__(self, code: int) -> int:
        self[code] = ord("\v") if code >= 0x80 and class_of(code) == "W" else code
        return self[code]


_COLLAPSED = _Collapsed()
_ASCII_SPACED = _AsciiSpaced()


def collapsed(text: str) -> str:
    """`text`, as long as before, with every character beyond ASCII replaced by its stand-in."""
    return text if text.isascii() else text.translate(_COLLAPSED)


def ascii_spaced(text: str) -> str:
    """`text`, as long as before, with white space beyond ASCII replaced by a vertical tab."""
    return text if text.isascii() else text.translate(_ASCII_SPACED)
