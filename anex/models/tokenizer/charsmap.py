"""SentencePiece's compiled table of replacements, which normalises a text before it is tokenised.

The table is a blob: 4 bytes with the length of what follows, a double array of 32-bit units in which a
prefix of the text is looked up byte by byte, and the replacements, each ended by a zero byte. A unit has
the byte that leads to it in bits 0-7, whether a replacement ends here in bit 8, and in bits 9-30 where its
children are; the unit at the child 0 holds the offset of the replacement.

Source: llm_tokenizer_ugm_session in llama.cpp's src/llama-vocab.cpp (MIT licence).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from anex.errors import InputError
from anex.models.tokenizer import keys

LONGEST_REPLACEMENT = 1024
"""Bytes; real tables have a few dozen. A longer one makes gigabytes of a short text."""

_NOT_A_CHILD = 1 << 31


def normalizer(blob: bytes) -> Callable[[str], str]:
    """A function that replaces the longest prefixes that the table knows, from left to right.

    Args:
        blob: The table; empty for none.

    Raises:
        InputError: The table is shorter than it says. The function raises it for a table that leads
            out of itself.
    """
    if not blob:
        return lambda text: text
    if len(blob) < 4 or (size := struct.unpack_from("<I", blob)[0]) + 4 >= len(blob):
        raise InputError("the table of replacements is truncated", where=keys.CHARSMAP)
    if longest_replacement(blob) > LONGEST_REPLACEMENT:
        raise InputError(
            f"the table has a replacement of more than {LONGEST_REPLACEMENT} bytes", where=keys.CHARSMAP
        )
    table = _Table(struct.unpack_from(f"<{size // 4}I", blob, 4), blob[4 + size :])
    return table.normalized


def longest_replacement(blob: bytes) -> int:
    """Bytes of the longest replacement of a table; 0 for one that is too short to have any."""
    if len(blob) < 4:
        return 0
    (size,) = struct.unpack_from("<I", blob)
    return max(map(len, blob[4 + size :].split(b"\0")))


class _Table:
    def __init__(self, units: tuple[int, ...], replacements: bytes) -> None:
        self._units = units
        self._replacements = replacements

    def normalized(self, text: str) -> str:
        data = text.encode()
        parts = []
        at = 0
        while at < len(data):
            length, offset = self._longest(data, at)
            if length:
                parts.append(self._replacement(offset))
            else:
                length = _character_length(data[at])
                parts.append(data[at : at + length])
            at += length
        return b"".join(parts).decode("utf-8", "replace")

    def _longest(self, data: bytes, at: int) -> tuple[int, int]:
        """Length of the longest prefix of data[at:] in the table, 0 for none, and its replacement."""
        length = offset = 0
        node = _children(self._unit(0))
        for end in range(at, len(data)):
            byte = data[end]
            node ^= byte
            if byte == 0 or (unit := self._unit(node)) & (_NOT_A_CHILD | 0xFF) != byte:
                break
            node ^= _children(unit)
            if unit >> 8 & 1:
                length = end + 1 - at
                offset = self._unit(node) & (_NOT_A_CHILD - 1)
        return length, offset

    def _unit(self, index: int) -> int:
        try:
            return self._units[index]
        except IndexError:
            raise InputError("the table of replacements leads out of itself", where=keys.CHARSMAP) from None

    def _replacement(self, offset: int) -> bytes:
        end = self._replacements.find(0, offset)
        if end < 0:
            raise InputError("the table of replacements leads out of itself", where=keys.CHARSMAP)
        return self._replacements[offset:end]


def _children(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _character_length(first: int) -> int:
    """Bytes of the UTF-8 character that begins with `first`."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
