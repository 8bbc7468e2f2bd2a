"""How an op is declared: its parameters as data, and one type rule.

A declaration is one call of `declare` with a signature in the notation of
coremltools' op table:

    declare("clip", "ios15", "x: T, alpha: const T, beta: const T", T="fp16 fp32", rule=same_as_x)

`name?` is optional, `const` must be known at compile time, `many` takes a
tuple of values.  A name with a capital letter is a type variable, bound once
per call; anything else is a dtype, or several joined with `|`.  `any` takes
every dtype.  A later opset that changes an op is a second declaration.

The rank is part of the declaration: `int32[]` is a vector, `int32[][]` a
matrix, `scalar T` has rank 0, and so has a constant whose dtype is written as
bool, int32, uint32 or string (an axis, a mode).  Others take any rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.mil.ir import OPSETS, Binding, Literal, Operand, Value
from anex.mil.ops.refusals import REFUSALS
from anex.mil.types import DType, StateType, TensorType, Type


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an op.

    Attributes:
        dtypes: Element types it takes; None takes every type.
        variable: Type variable that it shares with other parameters, or "".
        const: The value must be known at compile time.
        many: It is bound to a tuple of values.
        rank: The rank it takes; None takes every rank.
    """

    name: str
    dtypes: frozenset[DType] | None
    variable: str = ""
    optional: bool = False
    const: bool = False
    many: bool = False
    rank: int | None = None


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
        """The value of a constant parameter: Python scalars and strings, in lists as deep as its rank.

        The rank is the declared one; a `many` parameter gives a list of values.
        An absent parameter gives `default`; one that is only known at run
        time, or whose data lies in the blob file, gives None.
        """
        binding = self.bindings.get(name)
        if binding is None:
            return default
        if isinstance(binding, tuple):
            return [self._data(operand) for operand in binding]
        return self._data(binding)

    def _data(self, operand: Operand) -> Any:
        literal = self._constant(operand)
        if literal is None or not isinstance(literal.data, np.ndarray):
            return None
        return literal.data.tolist()

    def value(self, name: str, default: Any = None, *, length: int | None = None) -> Any:
        """As `const`, for a value that the type rule cannot do without.

        Args:
            default: What an absent parameter means.
            length: How many entries the vector must have.

        Raises:
            InputError: The value is only known at run time or lies in the
                blob file, or the length is another.
        """
        value = self.const(name, default)
        if name not in self.bindings:
            return value
        if value is None or (isinstance(value, list) and None in value):
            raise self.error(f"parameter '{name}' must be an immediate constant")
        if length is not None and len(value) != length:
            raise self.error(f"parameter '{name}' has {len(value)} entries, takes {length}")
        return value

    def is_constant(self, name: str) -> bool:
        """Whether the value of a parameter is known at compile time, in a blob file or not."""
        return self._constant(self.operand(name)) is not None

    def error(self, what: str) -> InputError:
        return InputError(f"{self.decl.kind}: {what}")

    def refusal(self, row: str, what: str) -> InputError:
        """The error for one row of `REFUSALS`: something that coremltools builds."""
        return InputError(f"{self.decl.kind}: {what}", hint=REFUSALS[row])


Rule = Callable[[Call], tuple[Type, ...]]

_TABLE: dict[str, list[OpDecl]] = {}
_PARAM = re.compile(
    r"(?P<name>\w+)(?P<optional>\?)?\s*:\s*(?P<const>const )?(?P<many>many )?(?P<scalar>scalar )?"
    r"(?P<type>[\w|]+)(?P<axes>(\[\])*)"
)
_SETTINGS = frozenset({DType.BOOL, DType.INT32, DType.UINT32, DType.STRING})
"""Constants of these dtypes are scalars unless declared otherwise: axes, modes, switches."""

SMALLEST_IN_BLOB = 10
"""Writers put a constant of fewer elements into the program itself (facts: coreml.md §2.1)."""


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
    parts = filter(None, (part.strip() for part in signature.split(",")))
    params = tuple(_param(kind, part, variables) for part in parts)
    forms = _TABLE.setdefault(kind, [])
    forms.append(OpDecl(kind, opset, params, rule, doc))
    forms.sort(key=lambda form: OPSETS.index(form.opset))


def _param(kind: str, text: str, variables: Mapping[str, str]) -> Param:
    match = _PARAM.fullmatch(text)
    if match is None:
        raise ValueError(f"{kind}: cannot read parameter {text!r}")
    name_of = match["type"]
    variable = name_of if name_of in variables else ""
    names = variables[name_of].split() if variable else name_of.split("|")
    dtypes = None if names == ["any"] else frozenset(DType(n) for n in names)
    const = match["const"] is not None
    setting = const and not variable and dtypes is not None and dtypes <= _SETTINGS
    return Param(
        match["name"],
        dtypes,
        variable,
        optional=match["optional"] is not None,
        const=const,
        many=match["many"] is not None,
        rank=len(match["axes"]) // 2 or (0 if setting or match["scalar"] else None),
    )


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
    if param.rank is not None:
        _check_rank(call, param, kind)
        _check_held(call, param, operand, kind)
    if param.variable:
        first = bound.setdefault(param.variable, kind.dtype)
        if first is not kind.dtype:
            raise call.error(
                f"parameter '{param.name}' is {kind.dtype.value}, "
                f"but another of the same type is {first.value}"
            )


_RANKS = ("scalar", "vector", "matrix")


def _check_rank(call: Call, param: Param, kind: TensorType) -> None:
    if param.rank is not None and kind.rank != param.rank:
        row = "rank" if param.rank else "scalar"
        raise call.refusal(row, f"parameter '{param.name}' is {kind}, takes a {_RANKS[param.rank]}")


def _check_held(call: Call, param: Param, operand: Operand, kind: TensorType) -> None:
    """A setting stands in the program itself, unless it is so long that no writer puts it there."""
    if not param.const or kind.dtype.is_float or (kind.is_static and kind.size >= SMALLEST_IN_BLOB):
        return
    if call._data(operand) is None:
        raise call.error(f"parameter '{param.name}' must be an immediate constant")


__all__ = ["Call", "OpDecl", "Param", "Rule", "Value", "declare", "infer", "kinds", "lookup"]
