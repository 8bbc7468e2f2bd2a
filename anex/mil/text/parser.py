"""MIL text to programs: a recursive-descent parser over the tokens of a text.

It reads both dialects, whatever Apple's tools print, and the free style of
hand-written programs: any spacing and argument order, `//` comments, decimal
floats, literals as arguments.  Names and types come from the text alone: ops
that are not in the op table parse too.

Apple's text of the nested blocks of `cond` and `while_loop` is not known to
us.  This form is ours:

    TYPE y = cond(pred = p)[name = string("y")] {
        block() { … } -> (a);
        block() { … } -> (b);
    };
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from anex.errors import InputError
from anex.mil.ir import Binding, BlobRef, Block, Function, Literal, Op, Operand, Program, Value
from anex.mil.text.lexer import Lexer, shorten
from anex.mil.text.literals import WordError, read_words
from anex.mil.text.type_parser import MAX_DEPTH, TypeParser
from anex.mil.types import DictType, DType, ListType, TensorType, TupleType, Type

VERSIONS = ("1.0", "1.3")
"""The text dialects."""

T = TypeVar("T")


def parse(text: str, *, source: str = "") -> Program:
    """Read a program from its text.

    Args:
        text: The whole text, either dialect.
        source: Where it comes from, for messages (a file name).

    Raises:
        InputError: It is no text, or malformed; `where` is `source:line:column`.
    """
    if not isinstance(text, str):
        raise InputError(f"a text is expected, not {text.__class__.__name__}", where=source)
    return _Parser(Lexer(text, source)).program()


class _Parser(TypeParser):
    """Reads one text; `position` is the index of the next token."""

    def __init__(self, lexer: Lexer) -> None:
        super().__init__(lexer)
        self._scope: dict[str, Value] = {}
        self._defined: set[str] = set()

    # --- structure ------------------------------------------------------------

    def program(self) -> Program:
        self.expect("program", "'program' at the beginning")
        self.expect("(")
        version = self.take()
        if version not in VERSIONS:
            raise self.expected(f"version {' or '.join(VERSIONS)}", -1)
        self.expect(")")
        attributes = self._attributes()
        self.expect("{")
        functions: dict[str, Function] = {}
        while self.tokens[self.position] != "}":
            start = self.position + 1
            function = self._function()
            if function.name in functions:
                raise self.lexer.error(start, f"function '{shorten(function.name)}' is defined twice")
            functions[function.name] = function
        self.position += 1
        self.expect("", "the end of the text")
        return Program(functions, attributes, version)

    def _function(self) -> Function:
        self.expect("func", "'func' or '}'")
        name = self.identifier("a function name")
        self.expect("<")
        opset = self.identifier("an opset like 'ios18'")
        self.expect(">")
        self._scope, self._defined = {}, set()
        inputs = self._parameters()
        attributes = self._attributes()
        ops, outputs = self._body(0)
        return Function(name, opset, inputs, ops, outputs, attributes)

    def _parameters(self) -> tuple[Value, ...]:
        self.expect("(")
        return self.separated(self._define, ")")

    def _define(self) -> Value:
        type = self.type()
        name = self.identifier("the name of a value")
        if name in self._defined:
            raise self.error(f"'{shorten(name)}' is defined twice", -1)
        value = Value(name, type)
        self._scope[name] = value
        self._defined.add(name)
        return value

    def _body(self, depth: int) -> tuple[tuple[Op, ...], tuple[Value, ...]]:
        """`{ ops } -> (outputs);`, of a function or a block."""
        self.expect("{")
        ops = []
        while self.tokens[self.position] != "}":
            ops.append(self._op(depth))
        self.position += 1
        self.expect("->")
        self.expect("(")
        outputs = self.separated(self._use, ")")
        self.expect(";")
        return tuple(ops), outputs

    def _block(self, depth: int) -> Block:
        if depth > MAX_DEPTH:
            raise self.error(f"blocks are nested deeper than {MAX_DEPTH}")
        self.expect("block", "'block' or '}'")
        outside = len(self._scope)
        inputs = self._parameters()
        ops, outputs = self._body(depth)
        while len(self._scope) > outside:  # names of a block are not seen after it
            self._scope.popitem()
        return Block(inputs, ops, outputs)

    # --- ops ------------------------------------------------------------------

    def _op(self, depth: int) -> Op:
        declared: list[tuple[int, Type, str]] = []
        if not self._starts_call():
            declared.append(self._declared())
            while self.accept(","):
                declared.append(self._declared())
            self.expect("=")
        kind = self.identifier("the name of an op")
        if self.accept("<"):
            # The opset of a single op, as the E5 compiler prints it; the IR knows that of the function.
            self.identifier("an opset like 'ios17'")
            self.expect(">")
        self.expect("(")
        inputs = self._arguments()
        attributes = self._attributes()
        blocks = self._blocks(depth) if self.accept("{") else ()
        self.expect(";")
        # An op's own outputs are not visible in its arguments, so they are defined last.
        return Op(kind, inputs, self._outputs(declared), attributes, blocks)

    def _starts_call(self) -> bool:
        """An op without outputs begins: `write_state(` or `write_state<ios18>(`."""
        following = self.tokens[self.position + 1 : self.position + 5]
        if following[:1] == ["("]:
            return True
        return following[:1] == ["<"] and following[2:] == [">", "("]

    def _declared(self) -> tuple[int, Type, str]:
        type = self.type()
        return self.position, type, self.identifier("the name of a value")

    def _outputs(self, declared: list[tuple[int, Type, str]]) -> tuple[Value, ...]:
        for index, type, name in declared:
            if name in self._defined:
                raise self.lexer.error(index, f"'{shorten(name)}' is defined twice")
            self._defined.add(name)
            self._scope[name] = Value(name, type)
        return tuple(self._scope[name] for _, _, name in declared)

    def _blocks(self, depth: int) -> tuple[Block, ...]:
        blocks = []
        while not self.accept("}"):
            blocks.append(self._block(depth + 1))
        return tuple(blocks)

    def _arguments(self) -> dict[str, Binding]:
        return self._named(")", "a parameter name", self._binding)

    def _attributes(self) -> dict[str, Literal]:
        return self._named("]", "an attribute name", self._literal) if self.accept("[") else {}

    def _named(self, end: str, what: str, read: Callable[[], T]) -> dict[str, T]:
        """`name = value, …` up to `end`."""
        found: dict[str, T] = {}
        tokens = self.tokens
        if tokens[self.position] == end:
            self.position += 1
            return found
        while True:
            name = self.identifier(what)
            if name in found:
                raise self.error(f"'{shorten(name)}' is given twice", -1)
            self.expect("=")
            found[name] = read()
            sign = tokens[self.position]
            if sign == end:
                self.position += 1
                return found
            if sign != ",":
                raise self.expected(f"',' or '{end}'")
            self.position += 1

    def _binding(self) -> Binding:
        if self.accept("("):
            return self.separated(self._operand, ")")
        return self._operand()

    def _operand(self) -> Operand:
        following = self.tokens[self.position + 1]
        return self._literal() if following == "(" or following == "<" else self._use()

    def _use(self) -> Value:
        name = self.tokens[self.position]
        value = self._scope.get(name)
        if value is None:
            self.identifier("the name of a value or a literal")
            hint = f"write bool({name})" if name in ("true", "false") else ""
            raise self.lexer.error(self.position - 1, f"'{shorten(name)}' is not defined", hint)
        self.position += 1
        return value

    # --- literals -------------------------------------------------------------

    def _literal(self) -> Literal:
        """`type(value)`."""
        type = self.type()
        self.expect("(")
        literal = self._value(type)
        self.expect(")")
        return literal

    def _value(self, type: Type) -> Literal:
        if isinstance(type, TensorType):
            if self.accept("BLOBFILE"):
                return Literal(type, self._blob())
            return Literal(type, self._tensor(type) if type.shape else self._scalar(type))
        if isinstance(type, ListType):
            return self._list(type)
        if isinstance(type, TupleType):
            return self._tuple(type)
        if isinstance(type, DictType):
            return self._dict(type)
        raise self.error(f"a {shorten(str(type))} has no literal")

    def _blob(self) -> BlobRef:
        start = self.position
        self.expect("(")
        fields = self._named(")", "'path' or 'offset'", self._literal)
        wanted = {"path": DType.STRING, "offset": DType.UINT64}
        types = {name: literal.type for name, literal in fields.items()}
        if types != {name: TensorType(dtype) for name, dtype in wanted.items()}:
            what = "a BLOBFILE needs path = string and offset = uint64, and nothing else"
            raise self.lexer.error(start, what)
        return BlobRef(fields["path"].item(), fields["offset"].item())

    def _scalar(self, type: TensorType) -> Any:
        self.position += 1
        return self._words(type.dtype, self.position - 1, 1, listed=False).reshape(())

    def _tensor(self, type: TensorType) -> Any:
        """Nested lists, as deep as the type has dimensions; `?` takes the size that is found."""
        start = self.position
        shape = list(type.shape)
        rows: list[Any] = []
        self._row(type, 0, shape, rows)
        dims = tuple(0 if dim is None else dim for dim in shape)
        flat = np.concatenate(rows) if rows else np.empty(0, type.dtype.numpy)
        try:
            return flat.reshape(dims)
        except ValueError:  # an empty tensor with other dimensions too large for any array
            raise self.lexer.error(start, f"no array has the shape of {shorten(str(type))}") from None

    def _row(self, type: TensorType, axis: int, shape: list[int | None], rows: list[Any]) -> None:
        start = self.position
        self.expect("[", f"'[' of dimension {axis} of {shorten(str(type))}")
        if axis == len(shape) - 1:
            count = self._last_row(type, rows)
        else:
            count = len(self.separated(lambda: self._row(type, axis + 1, shape, rows), "]"))
        if shape[axis] is None:
            shape[axis] = count
        if shape[axis] != count:
            what = f"dimension {axis} of {shorten(str(type))} has {shape[axis]} elements, found {count}"
            raise self.lexer.error(start, what)

    def _last_row(self, type: TensorType, rows: list[Any]) -> int:
        """Values and commas up to `]`, without a step of Python for each."""
        start = self.position
        try:
            end = self.tokens.index("]", start)
        except ValueError:
            end = len(self.tokens) - 1
        if end == start:
            self.position = end + 1
            return 0
        count = (end - start + 1) // 2
        rows.append(self._words(type.dtype, start, count, listed=True))
        commas = self.tokens[start + 1 : end : 2]
        if commas.count(",") != len(commas):
            wrong = next(i for i, sign in enumerate(commas) if sign != ",")
            raise self.lexer.expected(start + 1 + 2 * wrong, "',' or ']'")
        if len(commas) == count:
            raise self.lexer.expected(end, "a value")
        self.position = end
        self.expect("]")
        return count

    def _words(self, dtype: DType, start: int, count: int, *, listed: bool) -> Any:
        words = self.tokens[start : start + 2 * count - 1 : 2]
        try:
            return read_words(dtype, words, listed=listed)
        except WordError as error:
            raise self.lexer.expected(start + 2 * error.index, error.wanted) from None

    def _list(self, type: ListType) -> Literal:
        start = self.position
        self.expect("[", "'[' of a list")
        items = self.separated(lambda: self._value(type.element), "]")
        if type.length is not None and type.length != len(items):
            what = f"{shorten(str(type))} has {type.length} elements, found {len(items)}"
            raise self.lexer.error(start, what)
        return Literal(type, items)

    def _tuple(self, type: TupleType) -> Literal:
        self.expect("(", "'(' of a tuple")
        items = []
        for index, element in enumerate(type.elements):
            if index:
                self.expect(",")
            items.append(self._value(element))
        self.expect(")")
        return Literal(type, tuple(items))

    def _dict(self, type: DictType) -> Literal:
        def pair() -> tuple[Literal, Literal]:
            self.expect("{", "'{' of a key and its value")
            return entry()

        def entry() -> tuple[Literal, Literal]:
            key = self._value(type.key)
            self.expect(",")
            value = self._value(type.value)
            self.expect("}")
            return key, value

        self.expect("{", "'{' of a dict")
        # Hand-written programs write a dict of one entry with single braces.
        if self.tokens[self.position] not in ("{", "}"):
            return Literal(type, (entry(),))
        return Literal(type, self.separated(pair, "}"))
