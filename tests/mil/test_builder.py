"""The builder: names, constants, order of parameters, and what it refuses."""

import numpy as np
import pytest

from anex.errors import InputError
from anex.mil.builder import Builder
from anex.mil.ir import Block, Literal, Op, Program, Value
from anex.mil.types import BufferType, DType, ListType, TensorType
from anex.mil.verify import verify

F16 = DType.FP16


def test_parameters_are_sorted_by_name_as_the_engine_binds_them():
    b = Builder("main")
    z, a = b.input("z", F16, (1, 1, 1, 32)), b.input("a", F16, (1, 1, 1, 32))
    function = b.finish({"out": b.op("sub", x=z, y=a)})
    assert [v.name for v in function.inputs] == ["a", "z"]


def test_a_python_number_takes_the_dtype_of_the_other_operand():
    b = Builder("main")
    x = b.input("x", F16, (2, 32))
    b.op("mul", x=x, y=3)
    (literal,) = [op.literal for op in b.finish({"r": b.op("mul", x=x, y=0.5)}).ops if op.literal][1:]
    assert literal == Literal(TensorType(F16), np.array(0.5, np.float16))


def test_equal_constants_share_one_name_and_unequal_zeros_do_not():
    b = Builder("main")
    assert b.const(0.0) is b.const(0.0)
    assert b.const(0.0) != b.const(-0.0)
    assert b.const(np.float16(np.nan)) is b.const(np.float16(np.nan))


@pytest.mark.parametrize("taken", ["y", "mul"])
def test_a_result_may_have_the_name_of_a_constant_or_of_an_op(taken):
    b = Builder("main")
    x = b.input("x", F16, (1, 32))
    first = b.op("mul", x=x, y=2.0)
    function = b.finish({taken: b.op("add", x=first, y=x)})
    verify(Program({"main": function}))
    assert function.outputs[0].name == taken
    assert function.ops[-1].kind == "add"


def test_swapped_result_names():
    b = Builder("main")
    x = b.input("x", F16, (1, 32))
    p, q = b.op("exp", name="p", x=x), b.op("sqrt", name="q", x=x)
    function = b.finish({"q": p, "p": q})
    verify(Program({"main": function}))
    assert {op.kind: op.output.name for op in function.ops} == {"exp": "q", "sqrt": "p"}


def test_results_that_no_op_computes_are_refused():
    b = Builder("main")
    x = b.input("x", F16, (1, 32))
    with pytest.raises(InputError, match="not computed by an op"):
        b.finish({"out": x})
    with pytest.raises(InputError, match="not computed by an op"):
        b.finish({"out": b.const(1.0)})
    with pytest.raises(InputError, match="parameter"):
        b.finish({"x": b.op("exp", x=x)})


def test_a_result_that_is_renamed_is_renamed_where_nested_blocks_use_it():
    kind, name = TensorType(F16, (1, 32)), "out"
    b = Builder("main")
    x = b.input("x", F16, (1, 32))
    y = b.op("exp", x=x)
    z = Value("z", kind)
    # The builder makes no blocks itself; a program that was read can be continued by it.
    b._ops.append(
        Op("cond", {"pred": b.const(True)}, (z,), blocks=(Block((), (), (y,)), Block((), (), (x,))))
    )
    function = b.finish({name: y, "z": z})
    verify(Program({"main": function}))
    assert function.ops[-1].blocks[0].outputs == (Value(name, kind),)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "a", np.float32(1), (1,)])
def test_what_is_no_dimension_is_refused(bad):
    for make in (
        lambda: Builder("main").input("x", F16, (1, bad)),
        lambda: TensorType(F16, (bad,)),
        lambda: BufferType(F16, (1, bad)),
        lambda: ListType(TensorType(F16), bad),
    ):
        with pytest.raises(InputError, match="is no dimension"):
            make()
    with pytest.raises(InputError, match="is no shape"):
        Builder("main").input("x", F16, 5)
    assert TensorType(F16, (0, np.int64(3), None)).rank == 3
