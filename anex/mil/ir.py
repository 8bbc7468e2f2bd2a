"""The MIL program as data: programs, functions, ops, values and literals.

Everything here is immutable and compares by structure: names, order,
attributes and the difference between a named constant and a literal count;
floats compare bitwise (NaN equals itself, -0 is not 0); the text dialect of a
program does not count.

Types, values and literals can be keys of a dict; ops, blocks, functions and
programs cannot: they hold mappings, and are too large to be hashed by content.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from anex.errors import InputError
from anex.mil.types import DType, TensorType, Type

MODEL_PATH = "@model_path/"
"""Stands for the folder of the program."""

BLOB_PATH = f"{MODEL_PATH}weights/weight.bin"
"""Where Apple's tools look for the one weight file of a program."""


def stays_inside(path: str) -> bool:
    """Whether a blob path names a file below the program's folder: nothing in it leads up or elsewhere."""
    below = path.removeprefix(MODEL_PATH)
    odd = any(c in below for c in "\\:\0")
    return below != path and not odd and not {"", ".", ".."} & set(below.split("/"))


OPSETS = ("ios15", "ios16", "ios17", "ios18")
"""Op sets in the order in which they appeared; each contains the ones before."""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Data that lies in a blob file: `offset` is the byte offset of its 64-byte record."""

    path: str
    offset: int


class Literal:
    """A typed constant.

    `data` is, by type: for tensors (strings and scalars included) a numpy
    array of the type's numpy dtype and shape, or a `BlobRef`; for lists and
    tuples a tuple of literals; for dicts a tuple of (key, value) literals.
    """

    __slots__ = ("data", "type")

    def __init__(self, type: Type, data: Any) -> None:
        self.type = type
        self.data = data

    @staticmethod
    def of(value: Any, dtype: DType | None = None) -> Literal:
        """A tensor literal from a Python scalar, string, sequence or numpy array.

        Python ints become int32 and floats fp32 unless `dtype` says otherwise.

        Raises:
            InputError: The value is no tensor, or does not fit the type.
        """
        try:
            if dtype is None:
                dtype = _natural_dtype(value)
            array = np.asarray(value, dtype=dtype.numpy)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            wanted = "a constant" if dtype is None else f"a constant of {dtype.value}"
            raise InputError(f"{wanted} cannot hold {_shown(value)}", hint=str(error)) from error
        return Literal(TensorType(dtype, array.shape), array)

    @property
    def is_blob(self) -> bool:
        return isinstance(self.data, BlobRef)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The data of an immediate tensor literal.

        Raises:
            TypeError: The data lies in a blob file, or this is no tensor.
        """
        if not isinstance(self.data, np.ndarray):
            raise TypeError(f"a literal of type {self.type} holds no immediate tensor")
        return self.data

    def item(self) -> Any:
        """The Python value of a literal with one element."""
        return self.array.item()

    def _key(self) -> Any:
        data = self.data
        if isinstance(data, np.ndarray):
            plain = tuple(data.ravel().tolist()) if data.dtype == object else data.tobytes()
            return (self.type, data.shape, plain)
        return (self.type, data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Literal({self.type}, {self.data!r})"


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def _natural_dtype(value: Any) -> DType:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        if value.dtype.kind == "U":
            return DType.STRING
        return DType.of(value.dtype)
    flat = value
    while isinstance(flat, (list, tuple)) and flat:
        flat = flat[0]
    if isinstance(flat, bool):
        return DType.BOOL
    if isinstance(flat, str):
        return DType.STRING
    return DType.FP32 if isinstance(flat, float) else DType.INT32


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value; its name is unique inside a function."""

    name: str
    type: Type

    @property
    def tensor(self) -> TensorType:
        """The type of a value that is a tensor.

        Raises:
            TypeError: It is a list, a state or another kind.
        """
        if not isinstance(self.type, TensorType):
            raise TypeError(f"{self.name} is a {self.type}, not a tensor")
        return self.type


Operand = Value | Literal
Binding = Operand | tuple[Operand, ...]
"""What an op parameter is bound to; a tuple is the text's `values = (a, b)`."""

_Image = TypeVar("_Image")


def map_binding(change: Callable[[Operand], _Image], binding: Binding) -> _Image | tuple[_Image, ...]:
    """`change` of the operand, or of each operand of a tuple."""
    return tuple(map(change, binding)) if isinstance(binding, tuple) else change(binding)


Attributes = Mapping[str, Literal]
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; `inputs` and `attributes` keep the order of the text."""

    kind: str
    inputs: Mapping[str, Binding]
    outputs: tuple[Value, ...]
    attributes: Attributes = field(default_factory=lambda: _EMPTY)
    blocks: tuple[Block, ...] = ()

    __hash__ = None  # type: ignore[assignment]

    @property
    def output(self) -> Value:
        """The only output.

        Raises:
            ValueError: The op has none or several.
        """
        (value,) = self.outputs
        return value

    @property
    def name(self) -> str:
        """A name for messages: that of the first output, else the kind."""
        return self.outputs[0].name if self.outputs else self.kind

    def operands(self) -> Iterator[Operand]:
        """Every operand in parameter order, tuples flattened."""
        for binding in self.inputs.values():
            if isinstance(binding, tuple):
                yield from binding
            else:
                yield binding

    def reads(self) -> Iterator[Operand]:
        """`operands`, and those that nested blocks use or return."""
        yield from self.operands()
        for block in self.blocks:
            for op in block.ops:
                yield from op.reads()
            yield from block.outputs

    def map_operands(self, change: Callable[[Operand], Operand]) -> Op:
        """The op with another operand in place of each of `reads`; itself where none changes.

        `change` is called once for each of them, in their order, and must give
        a value for a value that a nested block returns.
        """
        inputs = {name: map_binding(change, binding) for name, binding in self.inputs.items()}
        blocks = tuple(block.map_operands(change) for block in self.blocks)
        mapped = replace(self, inputs=inputs, blocks=blocks)
        return self if all(map(operator.is_, mapped.reads(), self.reads())) else mapped

    @property
    def literal(self) -> Literal | None:
        """The value of a `const` op, else None."""
        return self.attributes.get("val") if self.kind == "const" else None


@dataclass(frozen=True, slots=True)
class Block:
    """A nested region of `cond` and `while_loop`."""

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]

    __hash__ = None  # type: ignore[assignment]

    def map_operands(self, change: Callable[[Operand], Operand]) -> Block:
        """See `Op.map_operands`; what the block returns counts too."""
        ops = tuple(op.map_operands(change) for op in self.ops)
        return Block(self.inputs, ops, tuple(cast(Value, change(value)) for value in self.outputs))


@dataclass(frozen=True, slots=True)
class Function:
    """One callable of a program: parameters, ops in order, results."""

    name: str
    opset: str
    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    attributes: Attributes = field(default_factory=lambda: _EMPTY)

    __hash__ = None  # type: ignore[assignment]

    @property
    def constants(self) -> dict[str, Literal]:
        """The literal of every `const` op at the top level, by output name."""
        return {op.output.name: cast(Literal, op.literal) for op in self.ops if op.kind == "const"}


@dataclass(frozen=True, slots=True)
class Program:
    """Functions that share one blob file; `version` is the text dialect, 1.0 or 1.3."""

    functions: Mapping[str, Function]
    attributes: Attributes = field(default_factory=lambda: _EMPTY)
    version: str = field(default="1.3", compare=False)

    __hash__ = None  # type: ignore[assignment]

    def blob_paths(self) -> tuple[str, ...]:
        """The weight files that constants lie in, in the order of the text."""
        found: dict[str, None] = {}
        for function in self.functions.values():
            for op in function.ops:
                found.update((ref.path, None) for ref in _blob_refs(op))
        return tuple(found)


def _blob_refs(op: Op) -> Iterator[BlobRef]:
    for operand in (*op.operands(), *op.attributes.values()):
        if isinstance(operand, Literal) and isinstance(operand.data, BlobRef):
            yield operand.data
    for block in op.blocks:
        for inner in block.ops:
            yield from _blob_refs(inner)
