"""Programs as data: what can be a key, and changing operands wherever they stand."""

from __future__ import annotations

import pytest

from anex.errors import InputError
from anex.mil.ir import BlobRef, Block, Function, Literal, Op, Operand, Program, Value, stays_inside
from anex.mil.types import DType, TensorType

BOOL, KIND = TensorType(DType.BOOL), TensorType(DType.FP16, (2,))
P, X, Y, Z = Value("p", BOOL), Value("x", KIND), Value("y", KIND), Value("z", KIND)


def choice() -> Op:
    """`cond`: `exp` of `x` in a block, or the outer `y` itself."""
    inner = Value("inner", KIND)
    exp = Block((), (Op("exp", {"x": X}, (inner,)),), (inner,))
    return Op("cond", {"pred": P}, (Z,), blocks=(exp, Block((), (), (Y,))))


def test_what_holds_mappings_has_no_hash() -> None:
    op = Op("exp", {"x": X}, (Y,))
    function = Function("main", "ios18", (X,), (op,), (Y,))
    for thing in (op, Block((), (op,), (Y,)), function, Program({"main": function})):
        with pytest.raises(TypeError, match="unhashable"):
            hash(thing)
        assert thing == thing
    assert len({X, Value("x", KIND), Literal.of(1.0), Literal.of(1.0)}) == 2


def test_operands_change_in_tuples_and_nested_blocks() -> None:
    names = {X: Value("a", KIND), Y: Value("b", KIND)}
    seen: list[Operand] = []

    def change(operand: Operand) -> Operand:
        seen.append(operand)
        return names.get(operand, operand) if isinstance(operand, Value) else operand

    joined = Op("concat", {"values": (X, Y, X), "axis": Literal.of(0)}, (Z,))
    assert joined.map_operands(change).inputs == {
        "values": (names[X], names[Y], names[X]),
        "axis": Literal.of(0),
    }
    assert seen == [X, Y, X, Literal.of(0)]
    first, second = choice().map_operands(change).blocks
    assert first.ops[0].inputs == {"x": names[X]}
    assert second.outputs == (names[Y],)
    assert list(choice().reads()) == [P, X, choice().blocks[0].outputs[0], Y]


def test_an_op_without_a_change_stays_itself() -> None:
    op = choice()
    assert op.map_operands(lambda operand: operand) is op


def test_a_literal_that_fits_no_type_is_refused() -> None:
    for value in ([[1], [1, 2]], 2**40, object(), 1j):
        with pytest.raises(InputError, match="cannot hold"):
            Literal.of(value)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("@model_path/weights/weight.bin", True),
        ("@model_path/w.bin", True),
        ("@model_path/a/b/0-weight.bin", True),
        ("@model_path/../w.bin", False),
        ("@model_path/a/../../w.bin", False),
        ("@model_path//etc/passwd", False),
        ("@model_path/", False),
        ("@model_path/./w.bin", False),
        ("@model_path/..\\w.bin", False),
        ("@model_path/C:w.bin", False),
        ("@model_path/w\0.bin", False),
        ("/etc/passwd", False),
        ("weights/weight.bin", False),
        ("", False),
    ],
)
def test_a_blob_path_stays_inside_the_programs_folder(path: str, inside: bool) -> None:
    assert stays_inside(path) is inside


def test_the_weight_files_of_a_program() -> None:
    def weight(path: str) -> Literal:
        return Literal(KIND, BlobRef(path, 64))

    add = Op("add", {"x": X, "y": weight("@model_path/b.bin")}, (Y,))
    const = Op("const", {}, (Value("w", KIND),), {"val": weight("@model_path/a.bin")})
    inner = Op("cond", {"pred": P}, (Z,), blocks=(Block((), (const,), ()), Block((), (add,), ())))
    program = Program({"main": Function("main", "ios18", (P, X), (add, inner), (Z,))})
    assert program.blob_paths() == ("@model_path/b.bin", "@model_path/a.bin")
