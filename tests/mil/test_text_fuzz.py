"""Random programs through text and back, and a short run of the fuzzer on real texts."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anex.errors import InputError
from anex.mil.ir import BlobRef, Block, Function, Literal, Op, Operand, Program, Value
from anex.mil.text import parse, print_program
from anex.mil.types import (
    BufferType,
    DictType,
    DType,
    ListType,
    StateType,
    TensorType,
    TupleType,
    Type,
)

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
dtypes = st.sampled_from(list(DType))
dims = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Any bit pattern that the dtype has."""
    if dtype is DType.STRING:
        out = np.empty(shape, object)
        out[...] = np.array([draw(texts) for _ in range(out.size)], object).reshape(shape)
        return out
    if dtype is DType.BOOL:
        return draw(hnp.arrays(np.bool_, shape))
    raw = draw(hnp.arrays(f"u{dtype.numpy.itemsize}", shape))
    if dtype.is_sub_byte:
        unsigned = raw & ((1 << dtype.bits) - 1)
        signed = (unsigned.astype(np.int8) ^ 8) - 8
        return np.asarray(signed if dtype is DType.INT4 else unsigned)
    return raw.view(dtype.numpy)


tensor_types = st.builds(TensorType, dtypes, st.lists(st.integers(0, 4) | st.none(), max_size=4).map(tuple))
element_types = st.recursive(
    tensor_types,
    lambda inner: (
        st.builds(ListType, inner, st.none() | st.integers(0, 3))
        | st.builds(TupleType, st.lists(inner, max_size=3).map(tuple))
        | st.builds(DictType, st.just(TensorType(DType.STRING)), inner)
    ),
    max_leaves=4,
)
buffer_types = st.integers(1, 3).flatmap(
    lambda rank: st.builds(
        BufferType,
        dtypes,
        st.tuples(*[st.none() | st.integers(1, 9)] * rank),
        st.none() | st.tuples(*[st.integers(1, 99)] * rank),
        st.none() | st.tuples(*[st.integers(1, 9)] * rank),
    )
)
value_types = element_types | buffer_types | st.builds(StateType, tensor_types)


@st.composite
def literals(draw: st.DrawFn, type: Type | None = None) -> Literal:
    kind = draw(element_types) if type is None else type
    if isinstance(kind, TensorType):
        if draw(st.booleans()) and type is None:
            return Literal(kind, BlobRef(draw(texts), draw(st.integers(0, 2**64 - 1))))
        return Literal(kind, draw(arrays(kind.dtype, _sizes(draw, kind.shape))))
    if isinstance(kind, ListType):
        count = draw(st.integers(0, 3)) if kind.length is None else kind.length
        return Literal(kind, tuple(draw(literals(kind.element)) for _ in range(count)))
    if isinstance(kind, TupleType):
        return Literal(kind, tuple(draw(literals(element)) for element in kind.elements))
    assert isinstance(kind, DictType)
    pairs = draw(st.integers(0, 2))
    return Literal(kind, tuple((draw(literals(kind.key)), draw(literals(kind.value))) for _ in range(pairs)))


def _sizes(draw: st.DrawFn, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """Sizes for unknown dimensions; what stands behind an empty one cannot be seen in the text, so 0."""
    sizes: list[int] = []
    for dim in shape:
        unseen = 0 in sizes
        sizes.append(dim if dim is not None else 0 if unseen else draw(st.integers(0, 3)))
    return tuple(sizes)


class Maker:
    """Draws the parts of one function: names are unique, operands are in scope."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.taken: set[str] = set()

    def value(self) -> Value:
        name = self.draw(names.filter(lambda n: n not in self.taken))
        self.taken.add(name)
        return Value(name, self.draw(value_types))

    def values(self, most: int) -> tuple[Value, ...]:
        return tuple(self.value() for _ in range(self.draw(st.integers(0, most))))

    def some(self, scope: list[Value]) -> tuple[Value, ...]:
        if not scope:
            return ()
        chosen: list[Value] = self.draw(st.lists(st.sampled_from(scope), max_size=3))
        return tuple(chosen)

    def operand(self, scope: list[Value]) -> Operand:
        if scope and self.draw(st.integers(0, 3)) > 0:
            return self.draw(st.sampled_from(scope))
        return self.draw(literals())

    def ops(self, scope: list[Value], depth: int) -> tuple[Op, ...]:
        """Ops that see `scope`, which grows by what they define."""
        return tuple(self.op(scope, depth) for _ in range(self.draw(st.integers(0, 3))))

    def op(self, scope: list[Value], depth: int) -> Op:
        inputs: dict[str, Any] = {}
        for name in self.draw(st.lists(names, max_size=3, unique=True)):
            many = self.draw(st.integers(0, 3)) == 0
            count = self.draw(st.integers(0, 3))
            inputs[name] = tuple(self.operand(scope) for _ in range(count)) if many else self.operand(scope)
        attributes = self.draw(st.dictionaries(names, literals(), max_size=2))
        blocks = tuple(self.block(scope, depth + 1) for _ in range(self.draw(st.integers(0, 2 - depth))))
        outputs = self.values(2)
        scope += outputs
        return Op(self.draw(names), inputs, outputs, attributes, blocks)

    def block(self, scope: list[Value], depth: int) -> Block:
        inputs = self.values(1)
        inner = [*scope, *inputs]
        ops = self.ops(inner, depth)
        return Block(inputs, ops, self.some(inner))


@st.composite
def functions(draw: st.DrawFn, name: str) -> Function:
    maker = Maker(draw)
    inputs = maker.values(3)
    scope = list(inputs)
    ops = maker.ops(scope, 0)
    attributes = draw(st.dictionaries(names, literals(), max_size=1))
    return Function(name, draw(names), inputs, ops, maker.some(scope), attributes)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    labels = draw(st.lists(names, max_size=2, unique=True))
    attributes = draw(st.dictionaries(names, literals(), max_size=2))
    return Program({name: draw(functions(name)) for name in labels}, attributes)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(program=programs())
def test_printed_programs_parse_to_themselves(program: Program) -> None:
    for dialect in ("1.0", "1.3"):
        text = print_program(program, dialect=dialect)
        again = parse(text)
        assert again == program
        assert again.version == dialect
        assert print_program(again) == text


@settings(max_examples=150, deadline=None)
@given(dtype=dtypes, shape=dims, data=st.data())
def test_literals_of_every_dtype_round_trip(
    dtype: DType, shape: tuple[int, ...], data: st.DataObject
) -> None:
    literal = Literal(TensorType(dtype, shape), data.draw(arrays(dtype, shape)))
    found = parse(print_program(Program({}, {"a": literal}))).attributes["a"]
    assert found == literal
    assert found.array.dtype == dtype.numpy


def refusal(text: str) -> InputError | None:
    try:
        parse(text)
    except InputError as error:
        return error
    return None


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet=st.sampled_from('program(1.3){}<>[],;="/\\ntesorf16?x-> \n\0é') | st.characters())
)
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"program(1.3) [a = {text}] {{}}", f"program(1.3) {{ func f<ios18>() {{ {text}"):
        error = refusal(whole)
        assert error is None or error.where.startswith("text:")
        assert "\n" not in str(error)


@pytest.fixture(scope="module")
def fuzzer() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["mil", "blob", "gguf"])
def test_mutated_inputs_bring_our_own_errors_only(fuzzer: ModuleType, name: str, tmp_path: Path) -> None:
    target = fuzzer.TARGETS[name]
    seeds: list[bytes] = target.seeds()
    mutate: Callable[..., bytes] = fuzzer.mutate
    for number in range(600):
        data = mutate(seeds, target.words, random.Random(f"test:{number}"))
        _, finding = fuzzer.run_one(target, data, tmp_path / "input")
        assert not finding, f"number {number}: {finding}"
