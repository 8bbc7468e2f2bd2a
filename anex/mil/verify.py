"""Whether a program is sound: every rule that can be checked without an engine.

`problems` lists everything that is wrong, `verify` raises the first.  The
rules are those of coremltools' loader, and those that it misses and that fail
later, on the device (facts: coreml.md §2.3): one short function for each kind
of thing, below.

Constexpr ops take their parameters as attributes in the forms of iOS16 and as
inputs in those of iOS18; both count as constants for parameters that must be
known at compile time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.mil.ir import (
    BLOB_PATH,
    MODEL_PATH,
    OPSETS,
    Binding,
    BlobRef,
    Block,
    Function,
    Literal,
    Op,
    Operand,
    Program,
    Value,
    stays_inside,
)
from anex.mil.ops import Call, OpDecl, infer, lookup
from anex.mil.text.lexer import IDENTIFIER, shorten
from anex.mil.text.literals import int_range
from anex.mil.text.parser import VERSIONS
from anex.mil.types import BufferType, DictType, DType, ListType, StateType, TensorType, TupleType, Type


class Described(Protocol):
    """What a blob says about one record."""

    @property
    def dtype(self) -> DType: ...

    @property
    def nbytes(self) -> int: ...


class Blob(Protocol):
    """The weight file of a program, as far as the verifier needs it (`anex.mil.blob.BlobFile` is one)."""

    def record(self, offset: int) -> Described:
        """The record at a byte offset.

        Raises:
            InputError: There is none.
        """
        ...


MAX_ELEMENTS = 1 << 40
"""Most elements of one value: 2 TiB of fp16, more than any machine with an engine holds, and few enough
that sizes in bytes, and sums of some thousands of them, stay within the 64 bits that engines count in."""

Files = Blob | Mapping[str, Blob] | None
"""One weight file stands for `BLOB_PATH`; several are named by the paths in the program."""


def verify(program: Program, blob: Files = None, *, engine: bool = False) -> None:
    """Refuse a program that is not sound; see `problems`.

    Raises:
        InputError: The first problem.
    """
    found = problems(program, blob, engine=engine)
    if found:
        raise found[0]


def problems(program: Program, blob: Files = None, *, engine: bool = False) -> list[InputError]:
    """Everything that is wrong with a program, in the order of its text.

    Args:
        program: Any program.
        blob: Its weight file, or several by path (none: `{}`); without it, only
            paths and offsets of blob references are checked.
        engine: It is meant for an engine: shapes must be static, every op known
            to the op table, and each function must return something.
    """
    found = [InputError(what) for what in _program_rules(program)]
    files = blob if blob is None or isinstance(blob, Mapping) else {BLOB_PATH: blob}
    for function in program.functions.values():
        check = _FunctionCheck(function, files, engine)
        check.run()
        found += check.found
    return found


def _program_rules(program: Program) -> Iterator[str]:
    if program.version not in VERSIONS:
        yield f"program version '{program.version}' is not one of {', '.join(VERSIONS)}"
    if not program.functions:
        yield "the program has no function"
    for key, function in program.functions.items():
        if key != function.name:
            yield f"function '{function.name}' is filed as '{key}'"
    for name, literal in program.attributes.items():
        yield from _name_rules(name)
        yield from (f"attribute '{name}': {what}" for what in _literal_rules(literal))


@dataclass
class _FunctionCheck:
    """One function: values in scope, constants known so far, problems found.

    Attributes:
        scope: Values that are visible where the check stands.
        defined: Every name of the function; nested blocks share them.
        constants: Literal behind each constant value; one without data for constexpr ops.
        computed: Names of values that ops compute at the top level.
    """

    function: Function
    files: Mapping[str, Blob] | None
    engine: bool
    found: list[InputError] = field(default_factory=list)
    scope: dict[str, Value] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    constants: dict[str, Literal] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)

    def run(self) -> None:
        function = self.function
        if function.opset not in OPSETS:
            self._report(f"unknown opset '{function.opset}' (known: {', '.join(OPSETS)})")
        self._report_all(_name_rules(function.name))
        for name, literal in function.attributes.items():
            self._report_all(_name_rules(name))
            self._report_all(self._literal(literal))
        self._define_all(function.inputs)
        for op in function.ops:
            self._op(op)
        self.computed = {value.name for op in function.ops if not _is_constant(op) for value in op.outputs}
        self._outputs()

    # --- reporting ------------------------------------------------------------

    def _report(self, what: str, op: Op | None = None) -> None:
        where = f"function '{shorten(self.function.name)}'"
        if op is not None:
            where += f", {shorten(op.kind)} '{shorten(op.name)}'" if op.outputs else f", {shorten(op.kind)}"
        self.found.append(InputError(what, where=where))

    def _report_all(self, whats: Iterable[str], op: Op | None = None) -> bool:
        before = len(self.found)
        for what in whats:
            self._report(what, op)
        return len(self.found) > before

    # --- names ----------------------------------------------------------------

    def _define_all(self, values: Iterable[Value], op: Op | None = None) -> None:
        for value in values:
            self._report_all(_name_rules(value.name), op)
            if value.name in self.defined:
                self._report(f"name '{shorten(value.name)}' is defined twice", op)
            self.defined.add(value.name)
            self.scope[value.name] = value
            self._report_all(self._type_rules(value), op)

    def _type_rules(self, value: Value) -> Iterator[str]:
        if isinstance(value.type, StateType) and value.type.wrapped.dtype is not DType.FP16:
            yield f"state '{value.name}' holds {value.type.wrapped.dtype.value}, Core ML takes fp16 only"
        if _elements(value.type) > MAX_ELEMENTS:
            limit = f"2**{MAX_ELEMENTS.bit_length() - 1} elements"
            yield f"'{shorten(value.name)}' is {value.type}, more than {limit}"
        if self.engine and not _is_static(value.type):
            yield f"'{shorten(value.name)}' is {value.type}, an engine needs static shapes"

    def _use(self, value: Value) -> Iterator[str]:
        known = self.scope.get(value.name)
        if known is None:
            yield f"'{shorten(value.name)}' is used before it is defined"
        elif known.type != value.type:
            yield f"'{shorten(value.name)}' is used as {value.type} but defined as {known.type}"

    # --- ops ------------------------------------------------------------------

    def _op(self, op: Op) -> None:
        broken = self._report_all(self._operands(op), op)
        broken |= self._report_all(_name_rules(op.kind), op)
        for literal in op.attributes.values():
            broken |= self._report_all(self._literal(literal), op)
        decl = self._declaration(op)
        self._report_all(_attribute_rules(op, decl), op)
        for block in op.blocks:
            self._block(block, op)
        if op.kind == "const":
            self._report_all(_const_rules(op), op)
        elif decl is not None and not broken:
            self._report_all(self._types(op, decl), op)
        self._report_all(_block_rules(op), op)
        self._define_all(op.outputs, op)
        if op.kind == "const" and op.literal is not None:
            self.constants.update((value.name, op.literal) for value in op.outputs)
        elif _is_constant(op):
            self.constants.update((value.name, Literal(value.type, None)) for value in op.outputs)

    def _operands(self, op: Op) -> Iterator[str]:
        for operand in op.operands():
            yield from self._use(operand) if isinstance(operand, Value) else self._literal(operand)

    def _declaration(self, op: Op) -> OpDecl | None:
        if self.function.opset not in OPSETS:
            return None
        try:
            return lookup(op.kind, self.function.opset)
        except UnsupportedError as error:
            if self.engine:
                self._report(error.what, op)
        except InputError as error:
            self._report(error.what, op)
        return None

    def _types(self, op: Op, decl: OpDecl) -> Iterator[str]:
        bindings: dict[str, Binding] = dict(op.inputs)
        if decl.in_attributes:
            bindings |= {name: literal for name, literal in op.attributes.items() if name != "name"}
        try:
            types = infer(Call(decl, bindings, self._constant, len(op.outputs)))
        except InputError as error:
            yield error.what
            return
        except UnsupportedError as error:
            if self.engine:
                yield error.what
            return
        if len(types) != len(op.outputs):
            yield f"has {len(op.outputs)} outputs, computes {len(types)}"
            return
        for value, type in zip(op.outputs, types, strict=True):
            if not _agree(value.type, type):
                yield f"'{shorten(value.name)}' is declared as {value.type} but is computed as {type}"

    def _constant(self, operand: Operand) -> Literal | None:
        return operand if isinstance(operand, Literal) else self.constants.get(operand.name)

    def _block(self, block: Block, op: Op) -> None:
        outside = len(self.scope)
        self._define_all(block.inputs, op)
        for inner in block.ops:
            self._op(inner)
        for value in block.outputs:
            self._report_all(self._use(value), op)
        while len(self.scope) > outside:  # names of a block are not seen after it
            self.scope.popitem()

    # --- results --------------------------------------------------------------

    def _outputs(self) -> None:
        function = self.function
        if not self.computed and not any(not op.outputs for op in function.ops):
            self._report("no op computes anything")
        if self.engine and not function.outputs:
            self._report("returns nothing")
        for name, count in Counter(value.name for value in function.outputs).items():
            if count > 1:
                self._report(f"'{shorten(name)}' is returned {count} times")
        inputs = {value.name for value in function.inputs}
        for value in function.outputs:
            broken = self._report_all(self._use(value))
            if not broken and value.name not in self.computed:
                kind = "an input" if value.name in inputs else "a constant"
                self._report(f"'{shorten(value.name)}' is returned but is {kind}, not computed by an op")

    # --- literals -------------------------------------------------------------

    def _literal(self, literal: Literal) -> Iterator[str]:
        if isinstance(literal.data, BlobRef):
            yield from self._blob_rules(literal.type, literal.data)
        else:
            yield from _literal_rules(literal)

    def _blob_rules(self, type: Type, ref: BlobRef) -> Iterator[str]:
        if not isinstance(type, TensorType) or not type.is_static:
            yield f"a {type} cannot lie in a blob file"
            return
        if not stays_inside(ref.path):
            yield f"blob path {shorten(ascii(ref.path))} does not stay inside {MODEL_PATH}"
            return
        if ref.offset < 64 or ref.offset % 64 or ref.offset >= 1 << 64:
            yield f"blob offset {ref.offset} is not that of a record"
            return
        if self.files is None:
            return
        file = self.files.get(ref.path)
        if file is None:
            yield f"refers to the weight file {shorten(ascii(ref.path))}, but it was not given"
            return
        try:
            record = file.record(ref.offset)
        except InputError as error:
            yield f"blob offset {ref.offset}: {error.what}"
            return
        if (record.dtype, record.nbytes) != (type.dtype, type.nbytes):
            yield (
                f"the record at {ref.offset} holds {record.nbytes} bytes of {record.dtype.value}, "
                f"{type} needs {type.nbytes} of {type.dtype.value}"
            )


# --- rules of single things -----------------------------------------------------


def _name_rules(name: str) -> Iterator[str]:
    if IDENTIFIER.fullmatch(name) is None:
        yield f"{shorten(ascii(name))} is no legal name: letters, digits and _ only, no digit first"


def _is_constant(op: Op) -> bool:
    return op.kind == "const" or op.kind.startswith("constexpr_")


def _attribute_rules(op: Op, decl: OpDecl | None) -> Iterator[str]:
    """Only `name`, const's `val`, and the parameters of early constexpr ops."""
    allowed = {"name"}
    if op.kind == "const":
        allowed.add("val")
    elif decl is not None and decl.in_attributes:
        allowed |= {param.name for param in decl.params}
        if op.inputs:
            yield f"takes its parameters as attributes in the form of {decl.opset}, not as inputs"
    elif decl is None and op.kind.startswith("constexpr_"):
        return
    for name in op.attributes:
        if name not in allowed:
            yield f"attribute '{shorten(name)}' is not allowed"
    label = op.attributes.get("name")
    if label is not None and label.type != TensorType(DType.STRING):
        yield f"attribute 'name' is {label.type}, takes a string"


def _const_rules(op: Op) -> Iterator[str]:
    if op.inputs:
        yield "a const takes no inputs"
    if op.literal is None:
        yield "a const needs the attribute 'val'"
    elif len(op.outputs) != 1:
        yield f"a const has one output, not {len(op.outputs)}"
    elif op.output.type != op.literal.type:
        yield f"is declared as {op.output.type} but its value is {op.literal.type}"


def _block_rules(op: Op) -> Iterator[str]:
    """`cond`: both blocks give the results; `while_loop`: a bool, and the next values of the loop."""
    if op.kind not in ("cond", "while_loop"):
        if op.blocks:
            yield "has nested blocks, which only cond and while_loop take"
        return
    if len(op.blocks) != 2:
        yield f"takes two blocks, has {len(op.blocks)}"
        return
    results = [value.type for value in op.outputs]
    first = results if op.kind == "cond" else [TensorType(DType.BOOL)]
    for block, wanted in zip(op.blocks, (first, results), strict=True):
        given = [value.type for value in block.outputs]
        if given != wanted:
            yield f"a block gives ({', '.join(map(str, given))}), needs ({', '.join(map(str, wanted))})"
        starts = [] if op.kind == "cond" else results
        takes = [value.type for value in block.inputs]
        if takes != starts:
            yield f"a block takes ({', '.join(map(str, takes))}), is given ({', '.join(map(str, starts))})"


def _literal_rules(literal: Literal) -> Iterator[str]:
    """The data of a literal has the kind, shape and range that its type says."""
    type, data = literal.type, literal.data
    if isinstance(data, BlobRef):
        yield "a blob reference stands inside another value"
    elif isinstance(type, TensorType):
        yield from _array_rules(type, data)
    elif isinstance(type, DictType):
        for key, value in data:
            yield from _member_rules(type.key, key)
            yield from _member_rules(type.value, value)
    elif isinstance(type, (ListType, TupleType)):
        wanted = type.elements if isinstance(type, TupleType) else (type.element,) * len(data)
        length = len(wanted) if isinstance(type, TupleType) else type.length
        if length is not None and len(data) != length:
            yield f"a {type} holds {len(data)} elements"
            return
        for element, item in zip(wanted, data, strict=True):
            yield from _member_rules(element, item)
    else:
        yield f"a {type} has no literal"


def _member_rules(type: Type, member: Literal) -> Iterator[str]:
    if member.type != type:
        yield f"a value of type {member.type} stands where {type} is declared"
    else:
        yield from _literal_rules(member)


def _array_rules(type: TensorType, data: Any) -> Iterator[str]:
    if not isinstance(data, np.ndarray) or data.dtype != type.dtype.numpy:
        yield f"a {type} holds {getattr(data, 'dtype', data.__class__.__name__)}"
    elif not _fits(type.shape, data.shape):
        yield f"a {type} holds values of shape {list(data.shape)}"
    elif type.dtype is DType.STRING:
        if not all(isinstance(item, str) for item in data.flat):
            yield f"a {type} holds something else than strings"
    elif type.dtype.is_sub_byte and data.size:
        low, high = int_range(type.dtype)
        if data.min() < low or data.max() > high:
            yield f"a {type} holds values outside {low} to {high}"


# --- shapes ---------------------------------------------------------------------


def _fits(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """Same rank, and no known dimension differs."""
    return len(a) == len(b) and all(x == y or x is None or y is None for x, y in zip(a, b, strict=True))


def _agree(declared: Type, computed: Type) -> bool:
    """Equal, where an unknown dimension equals any: Apple's compiler and a rule may know different ones."""
    if isinstance(declared, TensorType) and isinstance(computed, TensorType):
        return declared.dtype is computed.dtype and _fits(declared.shape, computed.shape)
    return declared == computed


def _elements(type: Type) -> int:
    """How many elements a value holds; unknown dimensions count one."""
    if isinstance(type, StateType):
        return _elements(type.wrapped)
    if isinstance(type, (TensorType, BufferType)):
        return prod(1 if d is None else d for d in type.shape)
    if isinstance(type, ListType):
        return (1 if type.length is None else type.length) * _elements(type.element)
    return sum(map(_elements, type.elements)) if isinstance(type, TupleType) else 0


def _is_static(type: Type) -> bool:
    if isinstance(type, TensorType):
        return type.is_static
    if isinstance(type, StateType):
        return type.wrapped.is_static
    if isinstance(type, BufferType):
        return None not in type.shape
    if isinstance(type, ListType):
        return type.length is not None and _is_static(type.element)
    if isinstance(type, TupleType):
        return all(map(_is_static, type.elements))
    return True
