"""How an op is declared: its parameters as data, and one type rule.

A declaration is one call of `declare` with a signature in the notation of
coremltools' op table:

    declare("clip", "ios15", "x: T, alpha: const T, beta: const T", T="fp16 fp32", rule=same_as_x)

`name?` is optional, `const` must be known at compile time, `many` takes a
tuple of values.  A name with a capital letter is a type variable, bound once
per call; anything else is a dtype, or several joined with `|`.  `any` takes
every dtype.  A later opset that changes an op is a second declaration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.mil.ir import OPSETS, Binding, Literal, Operand, Value
from anex.mil.types import DType, StateType, TensorType, Type


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an op.

    Attributes:
        dtypes: Element types it takes; None takes every type.
        variable: Type variable that it shares with other parameters, or "".
        const: The value must be known at compile time.
        many: It is bound to a tuple of values.
    """

    name: str
    dtypes: frozenset[DType] | None
    variable: str = ""
    optional: bool = False
    const: bool = False
    many: bool = False


@dataclass(frozen=True, slots=True)
class OpDecl:
    """What one opset says about one op."""

    kind: str
    opset: str
    params: tuple[Param, ...]
    rule: Rule
    doc: str

    def param(self, name: str) -> Param | None:
        return next((p for p in self.params if p.name == name), None)

    @property
    def in_attributes(self) -> bool:
        """Parameters are attributes of the op: constexpr forms up to iOS17 (facts: coreml.md §2.1)."""
        return self.kind.startswith("constexpr_") and self.opset < "ios18"


class Call:
    """What a type rule sees: the operands of one call, with constants resolved.

    Args:
        decl: The declaration that applies.
        bindings: Parameter name to operand(s).
        constant: Returns the literal behind an operand, or None where it is
            only known at run time.  Blob constants count as known, but their
            numbers are not read for a type rule unless asked for.
        attributes: The op's attributes other than `name` (iOS16 constexpr ops
            take their parameters there).
    """

    def __init__(
        self,
        decl: OpDecl,
        bindings: Mapping[str, Binding],
        constant: Callable[[Operand], Literal | None],
        outputs: int = 1,
    ) -> None:
        self.decl = decl
        self.bindings = bindings
        self.outputs = outputs
        self._constant = constant

    def __contains__(self, name: str) -> bool:
        return name in self.bindings

    def operand(self, name: str) -> Operand:
        binding = self.bindings[name]
        assert not isinstance(binding, tuple)
        return binding

    def many(self, name: str) -> tuple[Operand, ...]:
        binding = self.bindings[name]
        return binding if isinstance(binding, tuple) else (binding,)

    def type(self, name: str) -> TensorType:
        """The tensor type bound to a parameter; refuses other kinds of type."""
        kind = self.operand(name).type
        if isinstance(kind, StateType):
            kind = kind.wrapped
        if not isinstance(kind, TensorType):
            raise self.error(f"parameter '{name}' takes a tensor, not {kind}")
        return kind

    def types(self, name: str) -> tuple[TensorType, ...]:
        found = [operand.type for operand in self.many(name)]
        for kind in found:
            if not isinstance(kind, TensorType):
                raise self.error(f"parameter '{name}' takes tensors, not {kind}")
        return tuple(found)  # type: ignore[arg-type]

    def const(self, name: str, default: Any = None) -> Any:
        """The value of a constant parameter: a Python scalar, string or list.

        An absent parameter gives `default`; one that is only known at run
        time, or whose data lies in the blob file, gives None.
        """
        if name not in self.bindings:
            return default
        literal = self._constant(self.operand(name))
        if literal is None or not isinstance(literal.data, np.ndarray):
            return None
        return literal.data.tolist()

    def consts(self, name: str) -> list[Any]:
        """As `const`, for each member of a tuple parameter."""
        literals = [self._constant(operand) for operand in self.many(name)]
        return [
            None if item is None or not isinstance(item.data, np.ndarray) else item.data.tolist()
            for item in literals
        ]

    def is_constant(self, name: str) -> bool:
        """Whether the value of a parameter is known at compile time, in a blob file or not."""
        return self._constant(self.operand(name)) is not None

    def error(self, what: str) -> InputError:
        return InputError(f"{self.decl.kind}: {what}")


Rule = Callable[[Call], tuple[Type, ...]]

_TABLE: dict[str, list[OpDecl]] = {}
_PARAM = re.compile(r"(?P<name>\w+)(?P<optional>\?)?\s*:\s*(?P<const>const )?(?P<many>many )?(?P<type>[\w|]+)")


def declare(kind: str, opset: str, signature: str, *, rule: Rule, doc: str = "", **variables: str) -> None:
    """Add one declaration to the op table.

    Args:
        kind: Op name as MIL spells it.
        opset: First opset in which this form holds.
        signature: Parameters in the notation of this module.
        rule: Computes the output types of a call, or raises `InputError`.
        doc: One line that says what the op computes.
        variables: dtypes of each type variable, separated by spaces.
    """
    params = []
    for part in filter(None, (p.strip() for p in signature.split(","))):
        match = _PARAM.fullmatch(part)
        if match is None:
            raise ValueError(f"{kind}: cannot read parameter {part!r}")
        kind_of = match["type"]
        variable = kind_of if kind_of in variables else ""
        names = variables[kind_of].split() if variable else kind_of.split("|")
        dtypes = None if names == ["any"] else frozenset(DType(n) for n in names)
        params.append(
            Param(
                match["name"],
                dtypes,
                variable,
                optional=match["optional"] is not None,
                const=match["const"] is not None,
                many=match["many"] is not None,
            )
        )
    forms = _TABLE.setdefault(kind, [])
    forms.append(OpDecl(kind, opset, tuple(params), rule, doc))
    forms.sort(key=lambda form: OPSETS.index(form.opset))


def kinds() -> tuple[str, ...]:
    """Every op kind of the table, sorted."""
    return tuple(sorted(_TABLE))


def lookup(kind: str, opset: str) -> OpDecl:
    """The declaration of an op that holds in an opset.

    Raises:
        UnsupportedError: The op is not in the table.
        InputError: The op only exists in a later opset, or the opset is unknown.
    """
    if opset not in OPSETS:
        raise InputError(f"unknown opset '{opset}'", hint=f"known: {', '.join(OPSETS)}")
    forms = _TABLE.get(kind)
    if not forms:
        raise UnsupportedError(f"op '{kind}'")
    level = OPSETS.index(opset)
    fitting = [form for form in forms if OPSETS.index(form.opset) <= level]
    if not fitting:
        raise InputError(f"op '{kind}' needs opset {forms[0].opset}, this is {opset}")
    return fitting[-1]


def infer(call: Call) -> tuple[Type, ...]:
    """Output types of a call, after checking its parameters against the declaration.

    Raises:
        InputError: A parameter is missing, unknown, of a wrong dtype, not
            constant, or the type rule refuses the call.
    """
    _check_params(call)
    return call.decl.rule(call)


def _check_params(call: Call) -> None:
    decl = call.decl
    for name in call.bindings:
        if decl.param(name) is None:
            known = ", ".join(p.name for p in decl.params)
            raise call.error(f"unknown parameter '{name}' (it has {known})")
    bound: dict[str, DType] = {}
    for param in decl.params:
        if param.name not in call.bindings:
            if not param.optional:
                raise call.error(f"parameter '{param.name}' is missing")
            continue
        if not param.many and isinstance(call.bindings[param.name], tuple):
            raise call.error(f"parameter '{param.name}' takes one value, not a tuple")
        for operand in call.many(param.name):
            _check_operand(call, param, operand, bound)


def _check_operand(call: Call, param: Param, operand: Operand, bound: dict[str, DType]) -> None:
    kind = operand.type
    if param.const and call._constant(operand) is None:
        raise call.error(f"parameter '{param.name}' must be a constant")
    if param.dtypes is None:
        return
    if not isinstance(kind, TensorType):
        raise call.error(f"parameter '{param.name}' takes a tensor, not {kind}")
    if kind.dtype not in param.dtypes:
        allowed = ", ".join(sorted(d.value for d in param.dtypes))
        raise call.error(f"parameter '{param.name}' is {kind.dtype.value}, takes {allowed}")
    if param.variable:
        first = bound.setdefault(param.variable, kind.dtype)
        if first is not kind.dtype:
            raise call.error(
                f"parameter '{param.name}' is {kind.dtype.value}, "
                f"but another of the same type is {first.value}"
            )


__all__ = ["Call", "OpDecl", "Param", "Rule", "Value", "declare", "infer", "kinds", "lookup"]
