"""Numbers and strings of MIL text against bit patterns, ranges and C's rules."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest

from anex.errors import InputError
from anex.mil.ir import Literal
from anex.mil.text import parse, print_program
from anex.mil.text.literals import hex_float
from anex.mil.types import FLOATS, DType, TensorType


def literal(text: str) -> Literal:
    """A literal, read as the value of an attribute."""
    return parse(f"program(1.3) [a = {text}] {{}}").attributes["a"]


def printed(value: Literal) -> str:
    program = parse("program(1.3) {}")
    text = print_program(type(program)({}, {"a": value}))
    return text.split("[a = ", 1)[1].rsplit("]\n{", 1)[0]


def bits(value: Literal) -> bytes:
    return value.array.tobytes()


# coreml.md §7.1: shortest hex float of the value as a double, subnormals normalised.
HEX = [
    (10000.0, "0x1.388p+13"), (0.0, "0x0p+0"), (-0.0, "-0x0p+0"), (2.0**-24, "0x1p-24"), (1.0, "0x1p+0"),
    (-1.5, "-0x1.8p+0"), (65504.0, "0x1.ffcp+15"), (0.1, "0x1.999999999999ap-4"), (math.inf, "inf"),
    (-math.inf, "-inf"), (16.0, "0x1p+4"), (5e-324, "0x0.0000000000001p-1022"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "word"), HEX)
def test_hex_floats(value: float, word: str) -> None:
    assert hex_float(value) == word
    found = literal(f"fp64({word})").item()
    assert struct.pack("<d", found) == struct.pack("<d", value)


def test_every_fp16_round_trips_and_is_exact() -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    values = patterns.view(np.float16)
    text = printed(Literal(TensorType(DType.FP16, (65536,)), values))
    assert bits(literal(text)) == patterns.tobytes()
    words = text[text.index("([") + 2 : -2].split(", ")
    for word, value in zip(words, values.tolist(), strict=True):
        assert math.isnan(value) or float.fromhex(word) == value


@pytest.mark.parametrize("dtype", [d for d in DType if d in FLOATS], ids=lambda d: d.value)
def test_floats_of_every_type_round_trip_bitwise(dtype: DType) -> None:
    raw = np.random.default_rng(7).bytes(64 * dtype.bits)
    values = np.frombuffer(raw, dtype.numpy)
    value = Literal(TensorType(dtype, values.shape), values)
    assert literal(printed(value)) == value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fp16(0.125)", np.float16(0.125)),
        ("fp16(-1)", np.float16(-1)),
        ("fp16(1e-3)", np.float16(0.001)),
        ("fp16(.5)", np.float16(0.5)),
        ("fp16(5.)", np.float16(5)),
        ("fp16(+0X1.8P1)", np.float16(3)),
        ("fp16(0x1.8)", np.float16(1.5)),
        ("fp16(65519)", np.float16(65504)),  # below the midpoint to 65536
        ("fp16(1e-30)", np.float16(0)),
        ("fp16(-inf)", np.float16(-math.inf)),
        ("fp32(0x1.fffffep+127)", np.float32(3.4028234663852886e38)),
        ("bf16(0x1.8p+0)", ml_dtypes.bfloat16(1.5)),
        ("fp8e4m3fn(448)", ml_dtypes.float8_e4m3fn(448)),
        ("fp8e5m2(inf)", ml_dtypes.float8_e5m2(math.inf)),
        ("fp64(1e308)", np.float64(1e308)),
        ("int32(-2147483648)", np.int32(-(2**31))),
        ("uint64(18446744073709551615)", np.uint64(2**64 - 1)),
        ("uint8(0xff)", np.uint8(255)),
        ("int4(-8)", np.int8(-8)),
        ("bool(true)", np.bool_(True)),
        ("fp16(nan)", np.uint16(0x7E00).view(np.float16)),
        ("fp16(-nan)", np.uint16(0xFE00).view(np.float16)),
        ("fp32(nan(0x7f800001))", np.uint32(0x7F800001).view(np.float32)),
    ],
)
def test_values(text: str, wanted: np.generic) -> None:
    found = literal(text)
    assert found.array.shape == ()
    assert found.array.dtype == wanted.dtype
    assert bits(found) == wanted.tobytes()


def test_fp16_lists_may_be_hex_words() -> None:
    found = literal("tensor<fp16, [4]>([0x3c00, 0xBC00, 0x0001, 0x7e01])")
    assert found.array.view(np.uint16).tolist() == [0x3C00, 0xBC00, 0x0001, 0x7E01]
    mixed = literal("tensor<fp16, [2]>([0x3c00, 0x1p+1])")
    assert mixed.array.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_int], ids=lambda d: d.value)
def test_integers_hold_their_range_and_no_more(dtype: DType) -> None:
    signed = not dtype.value.startswith("u")
    width = int(dtype.value.lstrip("uint"))
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    assert literal(f"tensor<{dtype.value}, [2]>([{low}, {high}])").array.tolist() == [low, high]
    for value in (low - 1, high + 1):
        with pytest.raises(InputError, match=f"expected a value from {low} to {high} for {dtype.value}"):
            literal(f"tensor<{dtype.value}, [2]>([0, {value}])")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fp16(65520)", "a value in the range of fp16"),
        ("tensor<fp16, [2]>([1, -1e9])", "a value in the range of fp16"),
        ("fp32(1e39)", "a value in the range of fp32"),
        ("fp64(1e400)", "a value in the range of fp64"),
        ("fp64(0x1p+99999999999999999999)", "a value in the range of fp64"),
        ("fp8e4m3fn(inf)", "a value in the range of fp8e4m3fn"),
        ("fp8e4m3fn(1e6)", "a value in the range of fp8e4m3fn"),
        ("bf16(1e39)", "a value in the range of bf16"),
        ("fp16(0x3c00)", "a hex float with a 'p' exponent for fp16"),
        ("fp32(0x10)", "a hex float with a 'p' exponent for fp32"),
        ("fp16(infinity)", "a number for fp16"),
        ("fp16(banana)", "a number for fp16"),
        ("fp16(true)", "a number for fp16"),
        ('fp16("1")', "a number for fp16"),
        ("fp16(nan(0x3c00))", "the bits of a NaN of fp16"),
        ("fp16(nan(0x17e00))", "the bits of a NaN of fp16"),
        ("int32(1.0)", "an integer for int32"),
        ("int32(true)", "an integer for int32"),
        ("int32(x)", "an integer for int32"),
        ("bool(1)", "true or false"),
        ("bool(True)", "true or false"),
        ("string(abc)", "a string in double quotes"),
        (r'string("\q")', "a string with C escapes only"),
        (r'string("\400")', "an octal escape of one byte"),
        (r'string("\xff")', "a string whose escapes are valid UTF-8"),
        (r'string("\ud800")', "an escape of a Unicode character"),
        (r'string("\U00110000")', "an escape of a Unicode character"),
        (f"int32({'9' * 5000})", "a number of at most 400 digits"),
        (f"fp32({'9' * 5000})", "a number of at most 400 digits"),
    ],
)
def test_refused_words(text: str, wanted: str) -> None:
    with pytest.raises(InputError) as caught:
        literal(text)
    assert caught.value.what.startswith(f"expected {wanted}, found ")


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("plain", '"plain"'),
        ("", '""'),
        ('a "b" \\ c', r'"a \"b\" \\ c"'),
        ("\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        ("\0\x011\x7f", r'"\000\0011\177"'),
        ("größe 漢字 🙂", '"größe 漢字 🙂"'),
        ("// no comment; ](", '"// no comment; ]("'),
        ("tensor<fp16, [1]>", '"tensor<fp16, [1]>"'),
    ],
)
def test_strings_are_c_strings(text: str, token: str) -> None:
    assert printed(Literal.of(text)) == f"string({token})"
    assert literal(f"string({token})").item() == text


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (r'"\'\?\x41\101\60"', "'?AA0"),
        (r'"\303\251 \xC3\xa9 \u00e9 \U0001F642"', "é é é 🙂"),
        (r'"\1234"', "S4"),
        ('"tab\tinside"', "tab\tinside"),
    ],
)
def test_other_escapes_are_read(token: str, text: str) -> None:
    assert literal(f"string({token})").item() == text


def test_a_lone_surrogate_is_not_printed() -> None:
    with pytest.raises(InputError, match="lone surrogate"):
        printed(Literal.of("\ud800"))
