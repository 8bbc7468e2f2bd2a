"""Programs to MIL text, in the canonical style of Apple's compiler, byte for byte.

Op arguments, attributes and functions are sorted by name; function inputs and
ops keep the order of the program; there is no final newline.  Dialect 1.0
writes a scalar type as a tensor of rank 0, dialect 1.3 by its bare name.
The layout was checked against texts made by Apple's compiler; that of nested
blocks is our own (see the parser).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from typing import Any

from anex.errors import InputError
from anex.mil.ir import Binding, BlobRef, Block, Function, Literal, Op, Operand, Program, Value
from anex.mil.text.lexer import IDENTIFIER, shorten
from anex.mil.text.literals import print_words, quote
from anex.mil.text.parser import VERSIONS
from anex.mil.types import DictType, DType, ListType, StateType, TensorType, TupleType, Type

_STRING, _UINT64 = TensorType(DType.STRING), TensorType(DType.UINT64)
_FUNCTION, _OP, _CLOSE = 4, 8, 4
"""Columns: of a function; of its ops and of its closing brace, relative to it."""


def print_program(program: Program, *, dialect: str | None = None) -> str:
    """The text of a program; parsing it gives an equal program.

    Args:
        program: Any program, verified or not.
        dialect: "1.0" or "1.3"; the program's own version if None.

    Raises:
        InputError: The dialect is unknown, a name is no legal identifier, or
            a literal cannot be written.
    """
    version = program.version if dialect is None else dialect
    if version not in VERSIONS:
        raise InputError(f"unknown text dialect '{version}'", hint=f"known: {', '.join(VERSIONS)}")
    text = "\n".join(_Printer(version).program(program))
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError("a string holds a lone surrogate, which no text file can") from None
    return text


class _Printer:
    def __init__(self, version: str) -> None:
        self._version = version
        self._type = cache(self._type_uncached)
        self._name = cache(_checked_name)

    # --- structure ------------------------------------------------------------

    def program(self, program: Program) -> Iterator[str]:
        yield f"program({self._version})"
        if program.attributes:
            yield self._attributes(program.attributes)
        yield "{"
        for name in sorted(program.functions):
            yield from self._function(program.functions[name])
        yield "}"

    def _function(self, function: Function) -> Iterator[str]:
        head = f"func {self._name(function.name)}<{self._name(function.opset)}>"
        head += f"({self._values(function.inputs)})"
        if function.attributes:
            head += f" {self._attributes(function.attributes)}"
        yield from self._body(head, function.ops, function.outputs, _FUNCTION)

    def _body(self, head: str, ops: Iterable[Op], outputs: Iterable[Value], column: int) -> Iterator[str]:
        yield f"{' ' * column}{head} {{"
        for op in ops:
            yield from self._op(op, column + _OP)
        results = ", ".join(self._name(value.name) for value in outputs)
        yield f"{' ' * (column + _CLOSE)}}} -> ({results});"

    def _op(self, op: Op, column: int) -> Iterator[str]:
        inputs = op.inputs
        names = sorted(inputs) if len(inputs) > 1 else inputs
        arguments = ", ".join([f"{self._name(name)} = {self._binding(inputs[name])}" for name in names])
        text = f"{' ' * column}{self._values(op.outputs)}{' = ' if op.outputs else ''}"
        text += f"{self._name(op.kind)}({arguments})"
        if op.attributes:
            text += self._attributes(op.attributes)
        if not op.blocks:
            yield f"{text};"
            return
        yield f"{text} {{"
        for block in op.blocks:
            yield from self._block(block, column + 4)
        yield f"{' ' * column}}};"

    def _block(self, block: Block, column: int) -> Iterator[str]:
        return self._body(f"block({self._values(block.inputs)})", block.ops, block.outputs, column)

    def _values(self, values: Iterable[Value]) -> str:
        return ", ".join([f"{self._type(value.type)} {self._name(value.name)}" for value in values])

    def _attributes(self, attributes: Mapping[str, Literal]) -> str:
        items = [f"{self._name(name)} = {self._literal(attributes[name])}" for name in sorted(attributes)]
        return f"[{', '.join(items)}]"

    def _binding(self, binding: Binding) -> str:
        if isinstance(binding, tuple):
            return f"({', '.join(map(self._operand, binding))})"
        return self._operand(binding)

    def _operand(self, operand: Operand) -> str:
        return self._name(operand.name) if isinstance(operand, Value) else self._literal(operand)

    # --- types and literals ---------------------------------------------------

    def _type_uncached(self, type: Type) -> str:
        if isinstance(type, TensorType):
            return type.dtype.value if not type.shape and self._version != "1.0" else str(type)
        if isinstance(type, ListType):
            return f"list<{self._type(type.element)}, {'?' if type.length is None else type.length}>"
        if isinstance(type, TupleType):
            return f"tuple<{', '.join(map(self._type, type.elements))}>"
        if isinstance(type, DictType):
            return f"dict<{self._type(type.key)}, {self._type(type.value)}>"
        if isinstance(type, StateType):
            return f"state<{self._type(type.wrapped)}>"
        return str(type)

    def _literal(self, literal: Literal) -> str:
        return f"{self._type(literal.type)}({self._value(literal)})"

    def _value(self, literal: Literal) -> str:
        data, type = literal.data, literal.type
        if isinstance(data, BlobRef):
            path = f"{self._type(_STRING)}({quote(data.path)})"
            return f"BLOBFILE(path = {path}, offset = {self._type(_UINT64)}({data.offset}))"
        if isinstance(type, TensorType):
            return _tensor(type, data)
        if isinstance(type, ListType):
            return f"[{', '.join(map(self._value, data))}]"
        if isinstance(type, TupleType):
            return f"({', '.join(map(self._value, data))})"
        if isinstance(type, DictType):
            pairs = [f"{{{self._value(key)}, {self._value(value)}}}" for key, value in data]
            return f"{{{', '.join(pairs)}}}"
        raise InputError(f"a {shorten(str(type))} has no literal")


def _tensor(type: TensorType, array: Any) -> str:
    """Words of an array, in brackets as deep as it has dimensions."""
    words = print_words(type.dtype, array.ravel())
    shape = array.shape
    for axis in reversed(range(len(shape))):
        size = shape[axis]
        words = [f"[{', '.join(words[i * size : (i + 1) * size])}]" for i in range(prod(shape[:axis]))]
    return words[0]


def _checked_name(name: str) -> str:
    if IDENTIFIER.fullmatch(name) is None:
        raise InputError(f"{shorten(ascii(name))} is no legal MIL name", hint="letters, digits and _ only")
    return name
