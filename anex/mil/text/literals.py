"""Single words of MIL text to values and back: numbers, booleans, strings.

Floats are printed as Apple's compiler prints them, as the shortest hex float
of the value widened to a double.  A NaN other than the usual one is printed
with its bits, `nan(0x7e01)` (C's notation, our own use of it), because
programs compare bitwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import isinf
from typing import Any

import numpy as np

from anex.mil.text.lexer import is_string
from anex.mil.types import FLOATS, INTS, DType

Array = np.ndarray[Any, np.dtype[Any]]

_BOOLEANS = {"true": True, "false": False}
_INFINITIES = {"inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf")}
_NAN = re.compile(r"(?P<sign>[-+]?)nan(?:\((?P<bits>0x[0-9a-fA-F]+)\))?")
_HEX_WORD = re.compile(r"0[xX][0-9a-fA-F]{4}")
_MAX_DIGITS = 400
"""Longer numbers are refused: no type holds them, and converting them is slow."""


class WordError(ValueError):
    """A word that is no value of the wanted dtype; `index` is its place in the list."""

    def __init__(self, index: int, wanted: str) -> None:
        super().__init__(wanted)
        self.index = index
        self.wanted = wanted


def int_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    if dtype.value.startswith("u"):
        return 0, (1 << dtype.bits) - 1
    half = 1 << (dtype.bits - 1)
    return -half, half - 1


def read_words(dtype: DType, words: Sequence[str], *, listed: bool) -> Array:
    """Values of a list of words as a flat numpy array of the dtype.

    Args:
        words: Tokens without commas and brackets.
        listed: They stand in a list; only there fp16 may be given as 16-bit hex words.

    Raises:
        WordError: A word is not a value of the dtype, or out of its range.
    """
    if dtype in FLOATS:
        return _read_floats(dtype, words, listed)
    values = _each(_READERS[dtype], words)
    array: Array = np.empty(len(values), dtype.numpy)
    array[:] = values
    return array


def print_words(dtype: DType, array: Array) -> list[str]:
    """The words of a flat numpy array."""
    if dtype in FLOATS:
        return _print_floats(array)
    if dtype is DType.BOOL:
        return ["true" if value else "false" for value in array.tolist()]
    if dtype is DType.STRING:
        return [quote(value) for value in array.tolist()]
    return [str(value) for value in array.tolist()]


def _each(read: Callable[[str], Any], words: Sequence[str]) -> list[Any]:
    try:
        return [read(word) for word in words]
    except ValueError:
        for index, word in enumerate(words):
            try:
                read(word)
            except ValueError as error:
                raise WordError(index, str(error)) from None
        raise


# --- booleans and integers ----------------------------------------------------


def _read_bool(word: str) -> bool:
    value = _BOOLEANS.get(word)
    if value is None:
        raise ValueError("true or false")
    return value


def _read_int(word: str, dtype: DType, low: int, high: int) -> int:
    if len(word) > _MAX_DIGITS:
        raise ValueError(f"a number of at most {_MAX_DIGITS} digits")
    try:
        value = int(word, 16 if "x" in word or "X" in word else 10)
    except ValueError:
        raise ValueError(f"an integer for {dtype.value}") from None
    if not low <= value <= high:
        raise ValueError(f"a value from {low} to {high} for {dtype.value}")
    return value


# --- floats -------------------------------------------------------------------


def _read_float(word: str, dtype: DType) -> float:
    if word in _INFINITIES:
        return _INFINITIES[word]
    if len(word) > _MAX_DIGITS:
        raise ValueError(f"a number of at most {_MAX_DIGITS} digits")
    if word[:1].isalpha() or not word:
        raise ValueError(f"a number for {dtype.value}")
    lower = word.lower()
    is_hex = "x" in lower
    if is_hex and "p" not in lower and "." not in lower:
        raise ValueError(f"a hex float with a 'p' exponent for {dtype.value}")
    try:
        value = float.fromhex(word) if is_hex else float(word)
    except OverflowError:
        value = float("inf")
    except ValueError:
        raise ValueError(f"a number for {dtype.value}") from None
    if isinf(value):
        raise ValueError(f"a value in the range of {dtype.value}")
    return value


def _read_floats(dtype: DType, words: Sequence[str], listed: bool) -> Array:
    patterns: dict[int, int] = {}
    plain = list(words)
    for index, word in enumerate(words):
        if "nan" in word or (listed and dtype is DType.FP16 and _HEX_WORD.fullmatch(word)):
            patterns[index] = _bits_of(dtype, word, index)
            plain[index] = "0"
    wide = np.array(_each(partial(_read_float, dtype=dtype), plain), np.float64)
    with np.errstate(over="ignore"):
        array: Array = wide.astype(dtype.numpy)
    lost = np.nonzero(~np.isfinite(array) & (np.isfinite(wide) | np.isnan(array)))[0]
    if lost.size:
        raise WordError(int(lost[0]), f"a value in the range of {dtype.value}")
    bits = array.view(_bits_type(array.dtype))
    for index, pattern in patterns.items():
        bits[index] = pattern
    return array


def _bits_of(dtype: DType, word: str, index: int) -> int:
    """The bit pattern of a NaN or of a 16-bit hex word."""
    if _HEX_WORD.fullmatch(word):
        return int(word, 16)
    match = _NAN.fullmatch(word)
    if match is None:
        raise WordError(index, f"a number for {dtype.value}")
    usual = _usual_nan(dtype.numpy)
    sign = 1 << (dtype.bits - 1)
    if match["bits"] is None:
        return usual | sign if match["sign"] == "-" else usual
    pattern = int(match["bits"], 16) if len(word) <= _MAX_DIGITS else -1
    if match["sign"] or not 0 <= pattern < 2 * sign or not np.isnan(_from_bits(dtype.numpy, pattern)):
        raise WordError(index, f"the bits of a NaN of {dtype.value}")
    return pattern


def _bits_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def _from_bits(dtype: np.dtype[Any], pattern: int) -> Any:
    return np.array([pattern], _bits_type(dtype)).view(dtype)[0]


@cache
def _usual_nan(dtype: np.dtype[Any]) -> int:
    bits: Array = np.array([np.nan]).astype(dtype).view(_bits_type(dtype))
    return int(bits[0]) & ~(1 << (8 * dtype.itemsize - 1))


def _print_floats(array: Array) -> list[str]:
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        words = [hex_float(value) for value in array.astype(np.float64).tolist()]
    nans = np.nonzero(np.isnan(array))[0].tolist()
    if nans:
        bits = np.ascontiguousarray(array).view(_bits_type(array.dtype))
        usual = _usual_nan(array.dtype)
        sign = 1 << (8 * array.dtype.itemsize - 1)
        known = {usual: "nan", usual | sign: "-nan"}
        for index in nans:
            pattern = int(bits[index])
            words[index] = known.get(pattern) or f"nan({pattern:#x})"
    return words


def hex_float(value: float) -> str:
    """The shortest hex float of a double, `0x1.8p+1`; `inf` and `-inf` as words."""
    mantissa, _, exponent = value.hex().partition("p")
    if not exponent:
        return mantissa
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"


# --- strings ------------------------------------------------------------------

_ESCAPES = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<hex>[0-9a-fA-F]{1,2})|u(?P<u>[0-9a-fA-F]{4})"
    r"|U(?P<U>[0-9a-fA-F]{8})|(?P<sign>.))",
    re.DOTALL,
)
_QUOTED = {bytes_.decode(): f"\\{sign}" for sign, bytes_ in _ESCAPES.items() if sign not in "'?"}
_TO_QUOTE = re.compile(r'[\x00-\x1f"\\\x7f]')


def unquote(token: str) -> str:
    """The text of a string token; C escapes are undone, octal and hex ones as UTF-8 bytes.

    Raises:
        ValueError: The token is no complete string or an escape is not known;
            its text is what was wanted.
    """
    if "\\" not in token and len(token) > 1 and token[0] == token[-1] == '"':
        return token[1:-1]
    if not is_string(token):
        raise ValueError("a string in double quotes")
    raw, end = bytearray(), 1
    for match in _ESCAPE.finditer(token, 1, len(token) - 1):
        raw += token[end : match.start()].encode() + _unescape(match)
        end = match.end()
    raw += token[end:-1].encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ValueError("a string whose escapes are valid UTF-8") from None


def _unescape(match: re.Match[str]) -> bytes:
    if match["octal"] or match["hex"]:
        byte = int(match["octal"], 8) if match["octal"] else int(match["hex"], 16)
        if byte > 255:
            raise ValueError("an octal escape of one byte")
        return bytes([byte])
    if match["u"] or match["U"]:
        code = int(match["u"] or match["U"], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise ValueError("an escape of a Unicode character")
        return chr(code).encode()
    known = _ESCAPES.get(match["sign"])
    if known is None:
        raise ValueError("a string with C escapes only")
    return known


def quote(text: str) -> str:
    """Text as a C string; what has no short escape gets three octal digits."""
    if text.isalnum():
        return f'"{text}"'
    return '"' + _TO_QUOTE.sub(lambda m: _QUOTED.get(m[0]) or f"\\{ord(m[0]):03o}", text) + '"'


_READERS: dict[DType, Callable[[str], Any]] = {
    DType.BOOL: _read_bool,
    DType.STRING: unquote,
    **{
        dtype: partial(_read_int, dtype=dtype, low=int_range(dtype)[0], high=int_range(dtype)[1])
        for dtype in INTS
    },
}
