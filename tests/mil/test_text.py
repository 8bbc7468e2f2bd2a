"""MIL text: Apple's own texts, both dialects, hand-written style, containers, blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anex.errors import InputError
from anex.mil.ir import BlobRef, Literal, Op, Program, Value
from anex.mil.text import parse, print_program
from anex.mil.types import (
    BufferType,
    DictType,
    DType,
    ListType,
    StateType,
    TensorType,
    TupleType,
)

DATA = Path(__file__).parents[1] / "data" / "mil"
SAMPLES = sorted(DATA.glob("*.mil"), key=lambda path: path.name)
STRING = TensorType(DType.STRING)


def own(name: str) -> str:
    """A text that was written for these tests, without a final newline unless people would write one."""
    return (DATA.parent / "mil_own" / f"{name}.mil").read_text()


def body(ops: str, *, inputs: str = "fp16 x", outputs: str = "", version: str = "1.3") -> str:
    """A program of one function around some ops."""
    return f"program({version})\n{{\n    func main<ios18>({inputs}) {{\n{ops}\n        }} -> ({outputs});\n}}"


def literal(text: str) -> Literal:
    """A literal, read as the value of an attribute."""
    found = parse(f"program(1.3) [a = {text}] {{}}").attributes["a"]
    assert isinstance(found, Literal)
    return found


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_apples_text_is_printed_byte_for_byte(path: Path) -> None:
    text = path.read_text().removesuffix("\n")
    program = parse(text, source=path.name)
    assert print_program(program) == text
    newer = print_program(program, dialect="1.3")
    assert newer.startswith("program(1.3)\n")
    assert "tensor<string, []>" not in newer
    assert parse(newer) == program
    assert print_program(parse(newer), dialect="1.0") == text


def test_text_holds_what_the_protobuf_holds() -> None:
    """Oracle: coremltools' protobuf classes on the model that Apple compiled to this text."""
    model_pb2 = pytest.importorskip("coremltools.proto.Model_pb2")
    model = model_pb2.Model.FromString((DATA / "unified_int8.mlmodel").read_bytes())
    spec = model.mlProgram.functions["main"]
    wanted = list(spec.block_specializations[spec.opset].operations)
    ops = parse((DATA / "unified_int8.mil").read_text()).functions["main"].ops
    assert [op.kind for op in ops] == [op.type for op in wanted]
    for op, spec_op in zip(ops, wanted, strict=True):
        assert [value.name for value in op.outputs] == [out.name for out in spec_op.outputs]
        assert (
            op.attributes["name"].item() == spec_op.attributes["name"].immediateValue.tensor.strings.values[0]
        )
        for value, out in zip(op.outputs, spec_op.outputs, strict=True):
            dims = tuple(d.constant.size for d in out.type.tensorType.dimensions)
            assert value.tensor.shape == dims
        bound = {name: [b.name for b in argument.arguments] for name, argument in spec_op.inputs.items()}
        assert {name: [_name(operand)] for name, operand in op.inputs.items()} == bound
        if op.kind == "const":
            assert _same_value(op.attributes["val"], spec_op.attributes["val"])


def _name(operand: Any) -> str:
    assert isinstance(operand, Value)
    return operand.name


def _same_value(found: Literal, wanted: Any) -> bool:
    if wanted.HasField("blobFileValue"):
        return bool(found.data == BlobRef(wanted.blobFileValue.fileName, wanted.blobFileValue.offset))
    tensor = wanted.immediateValue.tensor
    kind = tensor.WhichOneof("value")
    if kind == "bytes":
        return bool(found.array.tobytes() == tensor.bytes.values)
    return bool(found.array.ravel().tolist() == list(getattr(tensor, kind).values))


CANONICAL = own("canonical")

FREE_STYLE = own("free_style")


def test_hand_written_text_becomes_canonical() -> None:
    assert print_program(parse(FREE_STYLE)) == CANONICAL
    assert print_program(parse(CANONICAL)) == CANONICAL


def test_the_older_dialect_writes_scalars_as_tensors() -> None:
    older = print_program(parse(CANONICAL), dialect="1.0")
    assert '[buildInfo = dict<tensor<string, []>, tensor<string, []>>({{"coremlc' in older
    assert (
        'BLOBFILE(path = tensor<string, []>("@model_path/weights/weight.bin"), '
        "offset = tensor<uint64, []>(64))" in older
    )
    assert 'tensor<string, []> kind = const()[name = tensor<string, []>("kind"),' in older
    assert "y = tensor<fp16, []>(0x1p-3)" in older
    assert parse(older) == parse(CANONICAL)


BLOCKS = own("blocks")


def test_nested_blocks_round_trip() -> None:
    program = parse(BLOCKS)
    assert print_program(program) == BLOCKS
    choice, loop = program.functions["main"].ops
    assert [len(op.blocks) for op in (choice, loop)] == [2, 2]
    assert loop.blocks[0].inputs == (Value("v", TensorType(DType.FP32, (2,))),)
    assert loop.inputs == {"loop_vars": (choice.output,)}
    assert choice.blocks[1].ops[0].blocks[1].outputs[0].name == "x"


def test_names_of_a_block_end_with_it() -> None:
    text = BLOCKS.replace("loop_vars = (y)", "loop_vars = (a)")
    with pytest.raises(InputError, match="'a' is not defined"):
        parse(text)


E5 = own("e5")


def test_e5_dumps_are_read() -> None:
    program = parse(E5)
    (x,) = program.functions["main"].inputs
    assert x.type == BufferType(DType.FP16, (1, 1, None, 100), (384, 384, 128, 1), (1, 1, 1, 1))
    first, second = program.functions["main"].ops
    assert (first.kind, second.kind) == ("tensor_buffer_to_tensor", "tensor_to_tensor_buffer")
    runtime = first.attributes["EstimatedRuntime"]
    assert runtime == Literal(
        DictType(STRING, TensorType(DType.FP64)), ((Literal.of("ane"), Literal.of(0.25, DType.FP64)),)
    )
    assert first.attributes["ValidationMessage"].data == (Literal.of(""), Literal.of("no"))
    assert second.output.type == BufferType(DType.FP16, (1, 1, 3, 100))
    assert parse(print_program(program)) == program


def test_flexible_shape_attribute() -> None:
    text = (DATA / "fa_parakeet_preprocessor.mil").read_text()
    found = parse(text).functions["main"].attributes["FlexibleShapeInformation"]
    pair = TensorType(DType.INT32, (2,))
    assert found.type == TupleType(
        (
            TupleType((STRING, DictType(STRING, TensorType(DType.INT32, (None,))))),
            TupleType((STRING, DictType(STRING, ListType(pair, None)))),
        )
    )
    ranges = found.data[1].data[1].data[0][1]
    assert [item.array.tolist() for item in ranges.data] == [[1, 1], [1, 32000]]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tensor<int32, [?]>([1, 1])", Literal(TensorType(DType.INT32, (None,)), np.array([1, 1], np.int32))),
        ("list<int32, 0>([])", Literal(ListType(TensorType(DType.INT32), 0), ())),
        ("list<list<bool, ?>, 1>([[true]])", None),
        ("tuple<>(())", Literal(TupleType(()), ())),
        ("dict<string, string>({})", Literal(DictType(STRING, STRING), ())),
        (
            'dict<string, bool>({"one", true})',
            Literal(DictType(STRING, TensorType(DType.BOOL)), ((Literal.of("one"), Literal.of(True)),)),
        ),
        ("tensor<fp16, [0]>([])", Literal(TensorType(DType.FP16, (0,)), np.empty(0, np.float16))),
        ("tensor<fp16, [2, 0]>([[], []])", Literal.of(np.empty((2, 0), np.float16))),
        ("tensor<int8, [0, 7]>([])", Literal.of(np.empty((0, 7), np.int8))),
        ("tensor<int8, [2, 1, 1]>([[[1]], [[-4]]])", Literal.of(np.array([[[1]], [[-4]]], np.int8))),
        ('tensor<string, [2]>(["a", "b,]"])', Literal.of(["a", "b,]"])),
    ],
)  # fmt: skip
def test_containers_and_shapes(text: str, wanted: Literal | None) -> None:
    found = literal(text)
    if wanted is not None:
        assert found == wanted
        if isinstance(wanted.data, np.ndarray):
            assert found.array.dtype == wanted.array.dtype
    for dialect in ("1.0", "1.3"):
        program = parse(f"program(1.3) [a = {text}] {{}}")
        assert parse(print_program(program, dialect=dialect)) == program


def test_unknown_ops_and_state_types_parse() -> None:
    program = parse(body("fp16 y = frobnicate(x = x, k = list<int8, 1>([7]));", outputs="y"))
    (op,) = program.functions["main"].ops
    assert op == Op(
        "frobnicate",
        {"x": Value("x", TensorType(DType.FP16)), "k": literal("list<int8, 1>([7])")},
        (Value("y", TensorType(DType.FP16)),),
    )
    state = parse(body("", inputs="state<tensor<fp16, [?, 2]>> s")).functions["main"].inputs[0].type
    assert state == StateType(TensorType(DType.FP16, (None, 2)))


def test_names_may_look_like_types_and_numbers() -> None:
    text = body(
        "            fp16 string = mul(x = inf, y = nan);", inputs="fp16 inf, fp16 nan", outputs="string"
    )
    assert print_program(parse(text)) == text


def test_equal_types_are_one_object() -> None:
    program = parse((DATA / "mob_silero_fp16_a.mil").read_text())
    strings = {id(op.attributes["name"].type) for op in program.functions["main"].ops}
    assert len(strings) == 1


@pytest.mark.parametrize("name", ["", "re lu", "0x", "é", "relu(x = x); fp16 z = relu"])
def test_the_printer_refuses_illegal_names(name: str) -> None:
    function = parse(body("fp16 y = relu(x = x);", outputs="y")).functions["main"]
    op = replace(function.ops[0], kind=name)
    with pytest.raises(InputError, match="is no legal MIL name"):
        print_program(Program({"main": replace(function, ops=(op,))}))


def test_the_printer_refuses_unknown_dialects() -> None:
    with pytest.raises(InputError, match=r"unknown text dialect '2\.0'"):
        print_program(parse("program(1.0) {}"), dialect="2.0")
