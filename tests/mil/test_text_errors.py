"""What the parser says about malformed and hostile text, and where."""

from __future__ import annotations

import tracemalloc

import pytest

from anex.errors import InputError
from anex.mil.text import parse

HEAD = "program(1.3)\n{\n    func main<ios18>(tensor<fp16, [2]> x) {\n"
TAIL = "\n    } -> (y);\n}"


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse(text, source="model.mil")
    return caught.value


# Each op stands on line 4; ^ marks the column, and is taken out.
OPS = [
    ("tensor<fp16, [2]> y = relu(x = ^z);", "'z' is not defined"),
    ("tensor<fp16, [2]> y = relu(x = ^y);", "'y' is not defined"),
    ("tensor<fp16, [2]> ^x = relu(x = x);", "'x' is defined twice"),
    ("tensor<fp16, [2]> y, tensor<fp16, [2]> ^y = split(x = x);", "'y' is defined twice"),
    ("tensor<fp16, [2]> y = relu(x = x, ^x = x);", "'x' is given twice"),
    ('tensor<fp16, [2]> y = relu(x = x)[name = string("y"), ^name = string("y")];', "'name' is given twice"),
    ("tensor<fp16, [2]> y = relu(x = x ^x = x);", "expected ',' or ')', found 'x'"),
    ("tensor<fp16, [2]> y = relu(x ^x);", "expected '=', found 'x'"),
    ("tensor<fp16, [2]> y = ^(x = x);", "expected the name of an op, found '('"),
    ("tensor<fp16, [2]> y ^relu(x = x);", "expected '=', found 'relu'"),
    ("tensor<fp16, [2]> ^3 = relu(x = x);", "expected the name of a value, found '3'"),
    ("tensor<fp16, [2]> y = relu(x = ^true);", "'true' is not defined"),
    ("tensor<fp16, [2]> y = relu(x = ^5);", "expected the name of a value or a literal, found '5'"),
    ("tensor<fp16, [2]> y = relu(x = (^(x)));", "expected the name of a value or a literal, found '('"),
    ("^tensor<fp17, [2]> y = relu(x = x);", "expected an element type, found 'fp17'"),
    ("^-> y = relu(x = x);", "expected a type, found '->'"),
    ('fp16 y = r(x = x)[a = ^"tensor<fp16, [1]>', "expected a type, found the unterminated string"),
    ("^float16 y = relu(x = x);", "expected a type, found 'float16'"),
    ("^tensor<fp16, [2?]> y = relu(x = x);", "expected a dimension, found '2?'"),
    ("tensor<fp16, [^-2]> y = relu(x = x);", "expected a dimension, found '-2'"),
    ("list<fp16, ^z> y = relu(x = x);", "expected a dimension, found 'z'"),
    ("state<list<fp16, 2^>> y = relu(x = x);", "expected the tensor type of a state"),
    ("tensor_buffer<fp16, ^size=[2]> y = r();", "expected 'shape', 'strides' or 'interleave_factors' once"),
    ("tensor_buffer<fp16^> y = r();", "expected ', shape=[…]', found '>'"),
    ("tensor_buffer<fp16, shape=[2], strides=[?^]> y = r();", "expected numbers as strides, found '?'"),
    ("int8 y = const()[val = int8(^300)];", "expected a value from -128 to 127 for int8, found '300'"),
    ("fp16 y = const()[val = fp16(^1e6)];", "expected a value in the range of fp16, found '1e6'"),
    ("tensor<fp16, [3]> y = const()[val = tensor<fp16, [3]>(^[1, 2])];", "has 3 elements, found 2"),
    ("tensor<fp16, [2, 2]> y = c()[val = tensor<fp16, [2, 2]>([[1, 2], ^[3]])];", "has 2 elements, found 1"),
    ("tensor<fp16, [2, 2]> y = const()[val = tensor<fp16, [2, 2]>(^[[1, 2]])];", "has 2 elements, found 1"),
    ("tensor<fp16, [?, ?]> y = c()[val = tensor<fp16, [?, ?]>([[1, 2], ^[3]])];", "has 2 elements, found 1"),
    ("tensor<fp16, [2]> y = const()[val = tensor<fp16, [2]>(^1)];", "expected '[' of dimension 0"),
    ("fp16 y = c()[val = tensor<fp16, [2]>([^[1, 2]])];", "expected a number for fp16, found '['"),
    ("tensor<fp16, [1, 2]> y = const()[val = tensor<fp16, [1, 2]>([^1, 2])];", "expected '[' of dimension 1"),
    ("tensor<fp16, [2]> y = const()[val = tensor<fp16, [2]>([1 ^2])];", "expected ',' or ']', found '2'"),
    ("tensor<fp16, [2]> y = const()[val = tensor<fp16, [2]>([1, 2,^])];", "expected a value, found ']'"),
    ("fp16 y = const()[val = fp16(^[1])];", "expected a number for fp16, found '['"),
    ("list<fp16, 2> y = const()[val = list<fp16, 2>(^[1])];", "has 2 elements, found 1"),
    ("tuple<fp16, fp16> y = const()[val = tuple<fp16, fp16>((1^))];", "expected ',', found ')'"),
    ('dict<string, fp16> y = const()[val = dict<string, fp16>({{"a"^}})];', "expected ',', found '}'"),
    ("state<tensor<fp16, [2]>> y = const()[val = state<tensor<fp16, [2]>>(^x)];", "has no literal"),
    ('fp16 y = const()[val = fp16(BLOBFILE^(path = string("w")))];', "a BLOBFILE needs path"),
    ('fp16 y = const()[val = fp16(BLOBFILE^(path = string("w"), offset = int32(1)))];', "a BLOBFILE needs"),
    ('string y = const()[val = string(^"abc];', 'expected a string in double quotes, found the unterminated'),
    ("fp16 y = relu(x = ^ä);", r"expected a name, number, string or sign, found '\xe4'"),
    ("fp16 y = relu(x = ^%0);", "expected a name, number, string or sign, found '%'"),
    ("fp16 y = cond(p = x) { ^fp16 z = r(); };", "expected 'block' or '}', found 'fp16'"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "message"), OPS)
def test_errors_say_where_and_what(op: str, message: str) -> None:
    error = refused(HEAD + op.replace("^", "") + TAIL)
    assert message in error.what
    assert "\n" not in str(error)
    assert error.where == f"model.mil:4:{op.index('^') + 1}"


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (HEAD + "fp16 y = r()" + TAIL, "5:5", "expected ';', found '}'"),
        ("", "1:1", "expected 'program' at the beginning, found the end of the text"),
        ("\n\n  progam(1.0)", "3:3", "expected 'program' at the beginning, found 'progam'"),
        ("program(2.0)\n{}", "1:9", "expected version 1.0 or 1.3, found '2.0'"),
        ("program(1.3)\n{\n} x", "3:3", "expected the end of the text, found 'x'"),
        ("program(1.3)\n{\n", "3:1", "expected 'func' or '}', found the end of the text"),
        ("program(1.3) { func f<ios18>() {} -> (); func f<ios18>() {} -> (); }", "1:47", "defined twice"),
        ("program(1.3) { func f() {} -> (); }", "1:22", "expected '<', found '('"),
        ("program(1.3)\n\0{}", "2:1", "found a NUL character"),
        ("program(1.3) // \ud800", "1:17", "found a lone surrogate"),
        ("\ufeffprogram(1.3) {}", "1:1", r"found '\ufeff'"),
        ("program(1.3) { func f<ios18>(fp16 x, fp16 x) {} -> (); }", "1:43", "'x' is defined twice"),
        ("program(1.3) { func f<ios18>(fp16 x) {} -> (y); }", "1:45", "'y' is not defined"),
    ],
)
def test_errors_of_the_frame(text: str, where: str, message: str) -> None:
    error = refused(text)
    assert error.where == f"model.mil:{where}"
    assert message in error.what


def test_a_bare_boolean_has_a_hint() -> None:
    error = refused(HEAD + "fp16 y = matmul(transpose_x = false);" + TAIL)
    assert error.hint == "write bool(false)"


def attribute(text: str) -> str:
    return f"program(1.3) [a = {text}] {{}}"


HOSTILE = {
    "giant shape": attribute("tensor<fp16,[99999999999]>([1])"),
    "giant empty shape": attribute("tensor<fp16, [0, 999999999999999, 999999999999999]>([])"),
    "giant dimension": attribute(f"tensor<fp16, [{'9' * 4000}]>([])"),
    "many dimensions": attribute(f"tensor<fp16, [{'1, ' * 4000}1]>([])"),
    "spaced dimensions": attribute(f"tensor < fp16, [{'1, ' * 4000}1]>([])"),
    "nested lists": attribute("tensor<fp16, [1, 1]>(" + "[" * 30_000),
    "nested types": "program(1.3) [a = " + "list<" * 100_000,
    "nested tuples": attribute("tuple<" * 5000 + "fp16" + ">" * 5000 + "(" * 5000),
    "nested dicts": attribute("dict<string, " * 5000),
    "nested blocks": HEAD + "c() { block() { " * 5000,
    "nested operands": HEAD + "fp16 y = f(x = " + "(" * 100_000,
    "brackets": "(" * 300_000,
    "unterminated string": attribute('string("' + "a" * 300_000),
    "escaped quotes": attribute('string("' + '\\"' * 200_000),
    "many quotes": '"\\' * 200_000,
    "comment": "program(1.3) " + "// x\n" * 100_000 + "//" + "/" * 300_000,
    "trailing spaces": "program(1.3) {} x" + " " * 500_000,
    "long number": attribute(f"int32({'7' * 300_000})"),
    "long hex": attribute(f"fp64(0x{'7' * 300_000}p+1)"),
    "long exponent": attribute(f"fp64(1e{'7' * 300_000})"),
    "long name": "program(1.3) [" + "n" * 300_000 + "] {}",
    "long dims": attribute("tensor<fp16, [" + "1, " * 50_000),
    "signs": "+-" * 50_000,
    "blob": attribute('fp16(BLOBFILE(path = string("x"), offset = uint64(99999999999999999999)))'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_within_its_own_size(name: str) -> None:
    text = HOSTILE[name]
    tracemalloc.start()
    try:
        error = refused(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(error)) < 500
    # A token costs some 60 bytes as a Python string, and two characters of text at least.
    assert peak < 2_000_000 + 100 * len(text)
