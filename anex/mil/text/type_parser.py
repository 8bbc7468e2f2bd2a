"""The types of MIL text, and the steps over tokens that every part of the parser shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anex.errors import InputError
from anex.mil.text.lexer import Lexer
from anex.mil.types import BufferType, DictType, DType, ListType, StateType, TensorType, TupleType, Type

MAX_DEPTH = 32
"""Deepest nesting of types and of blocks, and largest rank; hostile text would exhaust the stack."""

_MAX_DIGITS = 15
"""Longest dimension in decimal digits; no memory holds a larger tensor."""

_DTYPES = {dtype.value: dtype for dtype in DType}
T = TypeVar("T")


class TypeParser:
    """Reads types; `position` is the index of the next token."""

    def __init__(self, lexer: Lexer) -> None:
        self.lexer = lexer
        self.tokens = lexer.tokens
        self.position = 0
        self._types: dict[str, Type] = {name: TensorType(dtype) for name, dtype in _DTYPES.items()}
        self._containers: dict[str, Callable[[int], Type]] = {
            "tensor": self._tensor_type,
            "list": self._list_type,
            "tuple": self._tuple_type,
            "dict": self._dict_type,
            "state": self._state_type,
            "tensor_buffer": self._buffer_type,
        }

    # --- steps over tokens ----------------------------------------------------

    def take(self) -> str:
        """The next token; the end of the text is never passed."""
        token = self.tokens[self.position]
        self.position += bool(token)
        return token

    def accept(self, sign: str) -> bool:
        if self.tokens[self.position] == sign:
            self.position += 1
            return True
        return False

    def expect(self, sign: str, wanted: str = "") -> None:
        if self.tokens[self.position] != sign:
            raise self.expected(wanted or f"'{sign}'")
        self.position += 1

    def identifier(self, wanted: str) -> str:
        token = self.tokens[self.position]
        if not token.isidentifier():  # the lexer has refused non-ASCII letters
            raise self.expected(wanted)
        self.position += 1
        return token

    def separated(self, read: Callable[[], T], end: str) -> tuple[T, ...]:
        """Items with commas between them up to `end`, which is consumed."""
        if self.accept(end):
            return ()
        items = [read()]
        while not self.accept(end):
            if not self.accept(","):
                raise self.expected(f"',' or '{end}'")
            items.append(read())
        return tuple(items)

    def expected(self, wanted: str, ahead: int = 0, hint: str = "") -> InputError:
        return self.lexer.expected(self.position + ahead, wanted, hint)

    def error(self, what: str, ahead: int = 0) -> InputError:
        return self.lexer.error(self.position + ahead, what)

    # --- types ----------------------------------------------------------------

    def type(self, depth: int = 0) -> Type:
        """Any type; equal texts give one object."""
        token = self.tokens[self.position]
        known = self._types.get(token)
        if known is not None:
            self.position += 1
            return known
        if token.startswith("tensor<"):
            known = self._types[token] = self._fused(token)
            self.position += 1
            return known
        read = self._containers.get(token)
        if read is None:
            raise self.expected("a type")
        if depth >= MAX_DEPTH:
            raise self.error(f"types are nested deeper than {MAX_DEPTH}")
        self.position += 1
        self.expect("<")
        made = read(depth + 1)
        self.expect(">")
        return made

    def _fused(self, token: str) -> TensorType:
        """`tensor<fp16, [1, 2]>`, which the lexer gives as one token."""
        name, _, dims = token[len("tensor<") : -len("]>")].partition(",")
        words = dims.lstrip(" [").split(",") if dims[-1] != "[" else []
        dtype = _DTYPES.get(name)
        if dtype is None:
            raise self.error(f"expected an element type, found '{name}'")
        if len(words) > MAX_DEPTH:
            raise self.error(f"a tensor has at most {MAX_DEPTH} dimensions")
        return TensorType(dtype, tuple(self._dimension(word.strip()) for word in words))

    def _dimension(self, word: str) -> int | None:
        if word == "?":
            return None
        if not (word.isascii() and word.isdecimal()):
            raise self.error(f"expected a dimension, found '{word[:20]}'")
        if len(word) > _MAX_DIGITS:
            raise self.error(f"expected a dimension of at most {_MAX_DIGITS} digits, found {len(word)}")
        return int(word)

    def _shape(self) -> tuple[int | None, ...]:
        def dimension() -> int | None:
            value = self._dimension(self.tokens[self.position])
            self.position += 1
            return value

        self.expect("[")
        shape = self.separated(dimension, "]")
        if len(shape) > MAX_DEPTH:
            raise self.error(f"a tensor has at most {MAX_DEPTH} dimensions", -1)
        return shape

    def _dtype(self) -> DType:
        dtype = _DTYPES.get(self.tokens[self.position])
        if dtype is None:
            raise self.expected("an element type")
        self.position += 1
        return dtype

    def _tensor_type(self, depth: int) -> TensorType:
        dtype = self._dtype()
        self.expect(",")
        return TensorType(dtype, self._shape())

    def _list_type(self, depth: int) -> ListType:
        element = self.type(depth)
        self.expect(",")
        length = self._dimension(self.tokens[self.position])
        self.position += 1
        return ListType(element, length)

    def _tuple_type(self, depth: int) -> TupleType:
        if self.tokens[self.position] == ">":
            return TupleType(())
        elements = [self.type(depth)]
        while self.accept(","):
            elements.append(self.type(depth))
        return TupleType(tuple(elements))

    def _dict_type(self, depth: int) -> DictType:
        key = self.type(depth)
        self.expect(",")
        return DictType(key, self.type(depth))

    def _state_type(self, depth: int) -> StateType:
        wrapped = self.type(depth)
        if not isinstance(wrapped, TensorType):
            raise self.error("expected the tensor type of a state", -1)
        return StateType(wrapped)

    def _buffer_type(self, depth: int) -> BufferType:
        dtype = self._dtype()
        fields: dict[str, tuple[int | None, ...]] = {}
        while self.accept(","):
            name = self.identifier("'shape', 'strides' or 'interleave_factors'")
            if name not in ("shape", "strides", "interleave_factors") or name in fields:
                raise self.expected("'shape', 'strides' or 'interleave_factors' once", -1)
            self.expect("=")
            fields[name] = self._shape()
        if "shape" not in fields:
            raise self.expected("', shape=[…]'")
        return BufferType(
            dtype, fields["shape"], self._known(fields, "strides"), self._known(fields, "interleave_factors")
        )

    def _known(self, fields: dict[str, tuple[int | None, ...]], name: str) -> tuple[int, ...] | None:
        if name not in fields:
            return None
        known = tuple(value for value in fields[name] if value is not None)
        if len(known) != len(fields[name]):
            raise self.error(f"expected numbers as {name}, found '?'", -1)
        return known
