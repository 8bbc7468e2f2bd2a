"""Regenerates anex/models/tokenizer/unicode_classes.toml from llama.cpp's src/unicode-data.cpp.

    python tools/unicode_classes.py path/to/llama.cpp/src/unicode-data.cpp

Splitting text must not depend on the Unicode version of the Python that runs it, and must agree with
llama.cpp on the code points that a later Unicode version assigns; so llama.cpp's own table is the source.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).parent.parent / "anex/models/tokenizer/unicode_classes.toml"
CLASS_OF_FLAG = {0x02: "N", 0x04: "L", 0x10: "M", 0x20: "P", 0x40: "S", 0x80: "C"}
MAX_CODE_POINT = 0x110000
HEADER = """\
# Classes of the code points from U+0080 on, as llama.cpp's src/unicode-data.cpp (MIT licence) has them.
# Written by tools/unicode_classes.py; not edited by hand.
#
# Runs of "hexadecimal length, class": L letter, N number, M mark, P punctuation, S symbol,
# W white space, C controls, O everything else (unassigned, separators that are no white space).
"""


def section(source: str, name: str) -> str:
    """The text between the braces of the table `name`."""
    start = source.index(f"{name} = {{")
    return source[start : source.index("};", start)]


def runs(source: str) -> Iterator[tuple[int, str]]:
    """Pairs (length, class) that cover U+0080 up to U+10FFFF."""
    pairs = re.findall(r"\{(0x[0-9A-F]+), (0x[0-9A-F]+)\}", section(source, "unicode_ranges_flags"))
    starts = [(int(start, 16), int(flags, 16)) for start, flags in pairs]
    white = {int(text, 16) for text in re.findall(r"0x[0-9A-F]+", section(source, "unicode_set_whitespace"))}
    classes = ["O"] * MAX_CODE_POINT
    for (start, flags), (end, _) in zip(starts, [*starts[1:], (MAX_CODE_POINT, 0)], strict=True):
        classes[start:end] = [CLASS_OF_FLAG.get(flags, "O")] * (end - start)
    for code in white:
        classes[code] = "W"
    begin = 0x80
    for code in range(begin + 1, MAX_CODE_POINT + 1):
        if code == MAX_CODE_POINT or classes[code] != classes[begin]:
            yield code - begin, classes[begin]
            begin = code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    text = "".join(f"{length:x}{kind}" for length, kind in runs(parser.parse_args().source.read_text()))
    lines = [text[at : at + 108] for at in range(0, len(text), 108)]
    TARGET.write_text(HEADER + 'runs = """\n' + "\\\n".join(lines) + '"""\n')


if __name__ == "__main__":
    main()
