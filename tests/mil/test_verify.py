"""The verifier, by injected mistakes: those of a list that was tried on coremltools' loader, and more."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from anex.errors import InputError
from anex.mil.blob import BlobFile, BlobWriter
from anex.mil.ir import Function, Literal, Op, Program, Value
from anex.mil.text import parse
from anex.mil.types import DictType, DType, ListType, TensorType, TupleType
from anex.mil.verify import problems, verify

DATA = Path(__file__).parents[1] / "data"
SOUND = (DATA / "mil_own" / "sound.mil").read_text()


@dataclass(frozen=True)
class Described:
    dtype: DType
    nbytes: int


class Weights:
    """What the blob of the sound program holds; sizes by hand: elements times bytes."""

    records: Mapping[int, Described] = {
        64: Described(DType.FP16, 64 * 64 * 2),
        8320: Described(DType.FP16, 64 * 2),
        8512: Described(DType.FP16, 10 * 64 * 2),
        9856: Described(DType.INT8, 64 * 64),
        14016: Described(DType.FP16, 64 * 2),
    }

    def record(self, offset: int) -> Described:
        if offset not in self.records:
            raise InputError("the sentinel is missing", where="weight.bin")
        return self.records[offset]


def test_a_sound_program_has_no_problem() -> None:
    program = parse(SOUND)
    assert problems(program, Weights(), engine=True) == []
    verify(program, Weights(), engine=True)


@pytest.mark.parametrize("path", sorted((DATA / "mil").glob("*.mil")), ids=lambda path: path.stem)
def test_apples_programs_are_sound(path: Path) -> None:
    program = parse(path.read_text())
    assert problems(program) == []
    # Only the preprocessor has a shape that is not known.
    assert bool(problems(program, engine=True)) == (path.stem == "fa_parakeet_preprocessor")


# (what is replaced, by what, what the problem must say); each is the first problem.
MUTATIONS: dict[str, tuple[str, str, str]] = {
    "declared shape": ("[1, 64, 1, 4]> r =", "[1, 64, 1, 5]> r =", "'r' is declared as"),
    "declared dtype": (
        "tensor<fp16, [1, 64, 1, 4]> r =",
        "tensor<fp32, [1, 64, 1, 4]> r =",
        "'r' is declared as",
    ),
    "declared rank": ("[1, 64, 1, 4]> r =", "[64, 1, 4]> r =", "'r' is declared as"),
    "missing input": ("softmax(axis = axis1, x = r)", "softmax(axis = axis1)", "parameter 'x' is missing"),
    "unknown parameter": ("softmax(axis", "softmax(beta = axis1, axis", "unknown parameter 'beta'"),
    "unknown op": ("softmax(", "hardmax(", "not supported: op 'hardmax'"),
    "op of a later opset": ("main<ios18>", "main<ios17>", "needs opset ios18"),
    "unknown opset": ("main<ios18>", "main<ios99>", "unknown opset 'ios99'"),
    "blob offset": ("uint64(64)", "uint64(128)", "blob offset 128: the sentinel is missing"),
    "blob alignment": ("uint64(64)", "uint64(65)", "blob offset 65 is not that of a record"),
    "blob header": ("uint64(64)", "uint64(0)", "blob offset 0 is not that of a record"),
    "blob dtype": ("uint64(14016)", "uint64(9856)", "holds 4096 bytes of int8"),
    "blob size": ("uint64(8320)", "uint64(8512)", "holds 1280 bytes of fp16"),
    "blob path": (
        "@model_path/weights/weight.bin",
        "@model_path/../weight.bin",
        "does not stay inside @model_path/",
    ),
    "blob of unknown shape": (
        "val = tensor<fp16, [64]>",
        "val = tensor<fp16, [?]>",
        "cannot lie in a blob file",
    ),
    "state dtype": ("state<tensor<fp16", "state<tensor<fp32", "Core ML takes fp16 only"),
    "state shape": (
        "state<tensor<fp16, [1, 64, 1, 32]>>",
        "state<tensor<fp16, [1, 64, 1, 31]>>",
        "'old' is declared",
    ),
    "mixed dtypes": ("add(x = h, y = x)", "add(x = h, y = ids)", "add:"),
    "no broadcast": ("add(x = h, y = x)", "add(x = h, y = table)", "add:"),
    "matmul shapes": ("transpose_x = yes", "transpose_x = no", "matmul:"),
    "pad_type": ('val = string("valid")', 'val = string("valdi")', "conv:"),
    "groups": ("conv(bias = bias, groups = one", "conv(bias = bias, groups = int32(3)", "conv:"),
    "extra attribute": (
        '[name = string("r")]',
        '[name = string("r"), k = int32(1)]',
        "attribute 'k' is not allowed",
    ),
    "name is no string": ('[name = string("r")]', "[name = int32(1)]", "takes a string"),
    "softmax axis": ("axis = axis1, x = r", "axis = int32(4), x = r", "softmax:"),
    "reshape count": ("tensor<int32, [3]>([1, 64, 4])", "tensor<int32, [3]>([1, 64, 5])", "reshape:"),
    "gather index dtype": ("tensor<int32, [1, 4]> ids", "tensor<fp16, [1, 4]> ids", "gather:"),
    "write_state shape": ("write_state(data = new", "write_state(data = soft", "write_state:"),
    "read_state of a tensor": ("read_state(input = cache)", "read_state(input = x)", "takes a state"),
    "state as tensor": ("add(x = h, y = x)", "add(x = h, y = cache)", "takes a tensor, not state"),
    "weight of rank 4": ("linear(bias = bias, weight = dense", "linear(bias = bias, weight = w", "linear:"),
    "computed const parameter": (
        "reshape(shape = flat, x = cut)",
        "reshape(shape = cut, x = cut)",
        "reshape:",
    ),
    "computed axis": ("gather(axis = axis0", "gather(axis = ids", "must be a constant"),
    "list for one value": (
        "softmax(axis = axis1, x = r)",
        "softmax(axis = axis1, x = (r, h))",
        "takes one value",
    ),
    "const type": (
        "int32 one = const",
        "int8 one = const",
        "is declared as tensor<int8, []> but its value is",
    ),
    "const without val": (
        ", val = int32(1)];\n            tensor<fp16, [64, 64, 1",
        "];\n            tensor<fp16, [64, 64, 1",
        "needs the attribute 'val'",
    ),
    "const with inputs": (
        '= const()[name = string("no")',
        '= const(x = x)[name = string("no")',
        "takes no inputs",
    ),
    "slice end": (
        "end = end, x = new",
        "end = tensor<int32, [4]>([1, 64, 1, 40]), x = new",
        "slice_by_index:",
    ),
    "slice_update size": ("([1, 64, 1, 12])", "([1, 64, 1, 13])", "slice_update:"),
    "input returned": ("-> (both, out)", "-> (both, x)", "'x' is returned but is an input"),
    "constant returned": ("-> (both, out)", "-> (both, bias)", "'bias' is returned but is a constant"),
    "constexpr returned": ("-> (both, out)", "-> (both, dense)", "'dense' is returned but is a constant"),
    "returned twice": ("-> (both, out)", "-> (both, both)", "'both' is returned 2 times"),
    "returns nothing": ("-> (both, out)", "-> ()", "returns nothing"),
    "output count": ("h = conv(", "h, fp16 h2 = conv(", "has 2 outputs, computes 1"),
    "unknown dimension": ("[1, 64, 1, 4]> x)", "[1, 64, 1, ?]> x)", "an engine needs static shapes"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_found(name: str) -> None:
    old, new, message = MUTATIONS[name]
    assert old in SOUND
    found = problems(parse(SOUND.replace(old, new)), Weights(), engine=True)
    assert found
    assert message in found[0].what
    assert found[0].where.startswith("function 'main'")
    assert "\n" not in str(found[0])
    with pytest.raises(InputError, match=re.escape(found[0].what)):
        verify(parse(SOUND.replace(old, new)), Weights(), engine=True)


# --- mistakes that text cannot express -------------------------------------------

X = Value("x", TensorType(DType.FP16, (2,)))
Y = Value("y", TensorType(DType.FP16, (2,)))


def main(*ops: Op, inputs: tuple[Value, ...] = (X,), outputs: tuple[Value, ...] = (Y,)) -> Program:
    return Program({"main": Function("main", "ios18", inputs, ops, outputs)})


def const(name: str, literal: Literal, **more: Literal) -> Op:
    return Op("const", {}, (Value(name, literal.type),), {"name": Literal.of(name), "val": literal, **more})


RELU = Op("relu", {"x": X}, (Y,), {"name": Literal.of("y")})
FP16_3 = TensorType(DType.FP16, (3,))
STRING = TensorType(DType.STRING)


def with_value(literal: Literal) -> Program:
    return main(const("c", literal), RELU)


BROKEN: dict[str, tuple[Callable[[], Program], str]] = {
    "undefined name": (
        lambda: main(replace(RELU, inputs={"x": Value("z", X.type)})), "'z' is used before it is defined",
    ),
    "use before definition": (
        lambda: main(Op("relu", {"x": Y}, (Value("z", Y.type),)), RELU), "'y' is used before it is defined",
    ),
    "name defined twice": (lambda: main(RELU, RELU), "name 'y' is defined twice"),
    "input named twice": (lambda: main(RELU, inputs=(X, X)), "name 'x' is defined twice"),
    "undefined output": (lambda: main(RELU, outputs=(Value("z", Y.type),)), "'z' is used before"),
    "output of another type": (
        lambda: main(RELU, outputs=(Value("y", TensorType(DType.FP32, (2,))),)), "'y' is used as tensor<fp32",
    ),
    "operand of another type": (
        lambda: main(replace(RELU, inputs={"x": Value("x", FP16_3)})), "'x' is used as tensor<fp16, [3]>",
    ),
    "illegal name": (
        lambda: main(Op("relu", {"x": X}, (Value("y/0", Y.type),)), outputs=(Value("y/0", Y.type),)),
        "'y/0' is no legal name",
    ),
    "name that starts with a digit": (
        lambda: main(RELU, inputs=(X, Value("0", X.type))), "'0' is no legal name",
    ),
    "name outside ASCII": (lambda: main(RELU, inputs=(X, Value("é", X.type))), r"'\xe9' is no legal name"),
    "no op": (lambda: main(outputs=(X,)), "no op computes anything"),
    "only constants": (
        lambda: main(const("c", Literal.of(1)), outputs=(Value("c", TensorType(DType.INT32)),)),
        "no op computes anything",
    ),
    "no function": (lambda: Program({}), "the program has no function"),
    "unknown version": (lambda: replace(main(RELU), version="2.0"), "program version '2.0'"),
    "filed under another name": (
        lambda: Program({"other": main(RELU).functions["main"]}), "function 'main' is filed as 'other'",
    ),
    "fp16 constant of wrong length": (
        lambda: with_value(Literal(FP16_3, np.zeros(4, np.float16))), "holds values of shape [4]",
    ),
    "constant of wrong numpy dtype": (
        lambda: with_value(Literal(FP16_3, np.zeros(3, np.float32))), "a tensor<fp16, [3]> holds float32",
    ),
    "int4 out of range": (
        lambda: with_value(Literal(TensorType(DType.INT4, (1,)), np.array([8], np.int8))), "outside -8 to 7",
    ),
    "string that is none": (
        lambda: with_value(Literal(TensorType(DType.STRING, (1,)), np.array([b"x"], object))), "than strings",
    ),
    "list of wrong length": (
        lambda: with_value(Literal(ListType(STRING, 2), (Literal.of("a"),))), "holds 1 elements",
    ),
    "tuple member of wrong type": (
        lambda: with_value(Literal(TupleType((STRING,)), (Literal.of(1),))), "stands where",
    ),
    "dict value of wrong type": (
        lambda: with_value(Literal(DictType(STRING, STRING), ((Literal.of("a"), Literal.of(1)),))),
        "stands where",
    ),
    "no data": (lambda: with_value(Literal(FP16_3, None)), "holds NoneType"),
    "const with another attribute": (
        lambda: main(const("c", Literal.of(1), axis=Literal.of(0)), RELU), "attribute 'axis' is not allowed",
    ),
    "blocks where none belong": (
        lambda: main(replace(RELU, blocks=parse_blocks()[0].blocks)), "only cond and while_loop take",
    ),
}  # fmt: skip


def parse_blocks() -> tuple[Op, ...]:
    text = """program(1.3) { func main<ios18>(bool p, tensor<fp16, [2]> x) {
        tensor<fp16, [2]> c = cond(pred = p) {
            block() { tensor<fp16, [2]> a = relu(x = x); } -> (a);
            block() { } -> (x);
        };
        tensor<fp16, [2]> y = while_loop(loop_vars = (c)) {
            block(tensor<fp16, [2]> v) { bool go = const()[val = bool(false)]; } -> (go);
            block(tensor<fp16, [2]> w) { tensor<fp16, [2]> n = exp(x = w); } -> (n);
        };
    } -> (y); }"""
    program = parse(text)
    assert problems(program) == []
    return program.functions["main"].ops


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_program_is_found(name: str) -> None:
    make, message = BROKEN[name]
    whats = [error.what for error in problems(make())]
    assert any(message in what for what in whats), whats


def block_mutations() -> dict[str, tuple[Op, str]]:
    choice, loop = parse_blocks()
    yes, no = choice.blocks
    check, step = loop.blocks
    other = Value("p", TensorType(DType.BOOL))
    hidden = Op("relu", {"x": yes.outputs[0]}, (Value("n2", Y.type),))
    return {
        "undefined block output": (
            replace(choice, blocks=(replace(yes, outputs=(Value("z", Y.type),)), no)), "'z' is used before",
        ),
        "block output of another type": (
            replace(choice, blocks=(replace(yes, outputs=(other,)), no)), "a block gives (tensor<bool, []>)",
        ),
        "one block": (replace(choice, blocks=(yes,)), "takes two blocks, has 1"),
        "name of the other block": (
            replace(choice, blocks=(yes, replace(no, ops=(hidden,), outputs=(hidden.output,)))),
            "'a' is used before it is defined",
        ),
        "name defined in both blocks": (replace(choice, blocks=(yes, yes)), "name 'a' is defined twice"),
        "loop without condition": (replace(loop, blocks=(step, check)), "a block gives"),
        "loop that starts with nothing": (
            replace(loop, blocks=(replace(check, inputs=()), step)), "a block takes ()",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", block_mutations())
def test_a_broken_block_is_found(name: str) -> None:
    op, message = block_mutations()[name]
    choice, loop = parse_blocks()
    p = Value("p", TensorType(DType.BOOL))
    ops = (op, loop) if op.kind == "cond" else (choice, op)
    whats = [error.what for error in problems(main(*ops, inputs=(p, X)))]
    assert any(message in what for what in whats), whats


# --- rules of their own ------------------------------------------------------------


def test_all_problems_are_listed_in_order() -> None:
    text = SOUND.replace("softmax(", "hardmax(").replace("-> (both, out)", "-> (both, x)")
    found = problems(parse(text), engine=True)
    assert [error.where for error in found] == ["function 'main', hardmax 'soft'", "function 'main'"]


def test_unknown_ops_count_for_engines_only() -> None:
    program = main(replace(RELU, kind="frobnicate"))
    assert problems(program) == []
    (found,) = problems(program, engine=True)
    assert found.what == "not supported: op 'frobnicate'"


def test_constexpr_takes_attributes_before_ios18_and_inputs_since() -> None:
    data, scale = np.ones((2, 3), np.int8), np.float16(0.5)
    parameters = {
        "quantized_data": Literal.of(data),
        "zero_point": Literal.of(np.int8(0)),
        "scale": Literal.of(scale),
        "axis": Literal.of(0),
    }
    out = Value("w", TensorType(DType.FP16, (2, 3)))
    y = Value("y", out.type)
    relu = Op("relu", {"x": out}, (y,))
    name = {"name": Literal.of("w")}
    kind = "constexpr_affine_dequantize"

    def program(op: Op) -> Program:
        return Program({"main": Function("main", "ios16", (), (op, relu), (y,))})

    assert problems(program(Op(kind, {}, (out,), name | parameters)), engine=True) == []
    found = problems(program(Op(kind, parameters, (out,), name)))
    assert [error.what for error in found] == [
        "takes its parameters as attributes in the form of ios16, not as inputs"
    ]
    newer = SOUND.replace(
        "constexpr_blockwise_shift_scale(data = ", "constexpr_blockwise_shift_scale()[data = "
    )
    newer = newer.replace(
        'uint64(14016))))[name = string("dense")]', 'uint64(14016))), name = string("dense")]'
    )
    whats = [error.what for error in problems(parse(newer))]
    assert "attribute 'data' is not allowed" in whats


def test_unknown_dimensions_agree_with_any() -> None:
    text = "program(1.3) {{ func main<ios18>(tensor<fp16, [1, ?]> x) {{ {} y = relu(x = x); }} -> (y); }}"
    assert problems(parse(text.format("tensor<fp16, [1, ?]>"))) == []
    assert problems(parse(text.format("tensor<fp16, [1, 7]>"))) == []
    (found,) = problems(parse(text.format("tensor<fp16, [2, ?]>")))
    assert "'y' is declared as" in found.what


def test_a_real_blob_file_is_a_blob(tmp_path: Path) -> None:
    path = tmp_path / "weight.bin"
    with BlobWriter(path) as writer:
        ref = writer.add(np.ones((2, 2), np.float16), DType.FP16)
    text = (
        "program(1.3) {{ func main<ios18>(tensor<fp16, [{0}, 2]> x) {{ tensor<fp16, [{0}, 2]> y = "
        'mul(x = x, y = tensor<fp16, [{0}, 2]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), '
        "offset = uint64({1})))); }} -> (y); }}"
    )
    with BlobFile(path) as blob:
        assert problems(parse(text.format(2, ref.offset)), blob, engine=True) == []
        (wrong_size,) = problems(parse(text.format(3, ref.offset)), blob)
        assert "holds 8 bytes of fp16" in wrong_size.what
        (missing,) = problems(parse(text.format(2, ref.offset + 64)), blob)
        assert f"blob offset {ref.offset + 64}: no record" in missing.what


BOTH = (
    "program(1.3) { func main<ios18>(tensor<fp16, [2, 2]> x) { "
    "tensor<fp16, [2, 2]> u = mul(x = x, y = tensor<fp16, [2, 2]>("
    'BLOBFILE(path = string("@model_path/a.bin"), offset = uint64(64)))); '
    "tensor<fp16, [2, 2]> y = mul(x = u, y = tensor<fp16, [2, 2]>("
    'BLOBFILE(path = string("@model_path/b.bin"), offset = uint64(64)))); } -> (y); }'
)


def test_each_weight_file_is_looked_at_under_its_own_path(tmp_path: Path) -> None:
    files = {}
    for name, shape in (("a", (2, 2)), ("b", (3, 3))):
        with BlobWriter(tmp_path / name) as writer:
            writer.add(np.ones(shape, np.float16), DType.FP16)
        files[f"@model_path/{name}.bin"] = BlobFile(tmp_path / name)
    (found,) = problems(parse(BOTH), files)
    assert (found.where, "holds 18 bytes of fp16" in found.what) == ("function 'main', mul 'y'", True)
    assert problems(parse(BOTH)) == []
    for given in ({}, {"@model_path/a.bin": files["@model_path/a.bin"]}, files["@model_path/a.bin"]):
        whats = [error.what for error in problems(parse(BOTH), given)]
        assert whats[-1] == "refers to the weight file '@model_path/b.bin', but it was not given"


@pytest.mark.parametrize("kind", ["tensor<fp16, [{0}, {0}]>", "state<tensor<fp16, [{0}, {0}]>>"])
def test_a_value_has_at_most_2_to_the_40_elements(kind: str) -> None:
    body = "tensor<fp16, [1]> y = relu(x = x);"
    text = f"program(1.3) {{{{ func main<ios18>({{}} s, tensor<fp16, [1]> x) {{{{ {body} }}}} -> (y); }}}}"
    assert problems(parse(text.format(kind.format(2**20))), engine=True) == []
    (found,) = problems(parse(text.format(kind.format(2**20 + 1))), engine=True)
    assert "more than 2**40 elements" in found.what
    sizes = "[2000000000, 2000000000, 2000000000, 2000000000]"
    tile = f"tensor<fp16, {sizes}> y = tile(x = x, reps = tensor<int32, [4]>({sizes}));"
    (found, *_) = problems(
        parse(f"program(1.3) {{ func main<ios18>(tensor<fp16, [1, 1, 1, 1]> x) {{ {tile} }} -> (y); }}")
    )
    assert "more than 2**40 elements" in found.what
