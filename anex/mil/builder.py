"""Builds a MIL function op by op; types come from the op table as it goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anex.errors import InputError
from anex.mil.ir import Binding, Function, Literal, Op, Operand, Value
from anex.mil.ops.decl import Call, OpDecl, Param, infer, lookup
from anex.mil.types import DType, TensorType, Type


class Builder:
    """Collects the ops of one function in order.

        b = Builder("main")
        x = b.input("x", DType.FP16, (1, 64, 1, 32))
        y = b.op("mul", x=x, y=0.5)
        function = b.finish({"y": y})

    Python scalars, strings, lists and numpy arrays become named constants,
    one for each distinct value; a float takes the dtype of the op's operands.
    """

    def __init__(self, name: str, opset: str = "ios18") -> None:
        self.name = name
        self.opset = opset
        self._inputs: list[Value] = []
        self._ops: list[Op] = []
        self._names: dict[str, int] = {}
        self._literals: dict[str, Literal] = {}
        self._interned: dict[Literal, Value] = {}

    def input(self, name: str, dtype: DType, shape: Sequence[int]) -> Value:
        """Declare a parameter of the function.

        Raises:
            InputError: The shape is none.
        """
        if not isinstance(shape, Iterable):
            raise InputError(f"{shape!r} is no shape", where=name, hint="a tuple of whole numbers")
        return self.input_of(name, TensorType(dtype, tuple(shape)))

    def input_of(self, name: str, type: Type) -> Value:
        """Declare a parameter of any type (a state, for one)."""
        value = Value(self._unique(name), type)
        self._inputs.append(value)
        return value

    def const(self, value: Any, *, dtype: DType | None = None, name: str = "c") -> Value:
        """A named constant; equal constants share one name."""
        literal = value if isinstance(value, Literal) else Literal.of(value, dtype)
        known = self._interned.get(literal)
        if known is not None:
            return known
        out = Value(self._unique(name), literal.type)
        attributes = {"name": Literal.of(out.name), "val": literal}
        self._ops.append(Op("const", {}, (out,), attributes))
        self._literals[out.name] = literal
        self._interned[literal] = out
        return out

    def op(self, kind: str, *, name: str = "", **inputs: Any) -> Value:
        """Append an op with one output and return it.

        Args:
            kind: Op of the op table.
            name: Wanted name of the output; made unique if it is taken.
            inputs: Parameters: values, tuples of values, or Python constants.

        Raises:
            InputError: The type rule refuses the call.
        """
        (out,) = self.ops(kind, name=name, outputs=1, **inputs)
        return out

    def ops(self, kind: str, *, name: str = "", outputs: int, **inputs: Any) -> tuple[Value, ...]:
        """Append an op with `outputs` outputs; see `op`."""
        decl = lookup(kind, self.opset)
        bindings = self._bind(decl, inputs)
        types = infer(Call(decl, bindings, self.literal_of, outputs))
        stem = name or kind
        stems = [stem] if len(types) == 1 else [f"{stem}_{i}" for i in range(len(types))]
        values = tuple(Value(self._unique(s), t) for s, t in zip(stems, types, strict=True))
        label = values[0].name if values else stem
        attributes = {"name": Literal.of(label)}
        if decl.in_attributes:
            attributes |= {key: value for key, value in bindings.items() if isinstance(value, Literal)}
            bindings = {}
        self._ops.append(Op(kind, bindings, values, attributes))
        if kind.startswith("constexpr_"):
            # Known when the program is loaded, so a constant for other ops, but without data here.
            self._literals.update({value.name: Literal(value.type, None) for value in values})
        return values

    def literal_of(self, operand: Operand) -> Literal | None:
        """The constant behind an operand, None where it is computed."""
        if isinstance(operand, Literal):
            return operand
        return self._literals.get(operand.name)

    def finish(self, outputs: Mapping[str, Value]) -> Function:
        """Close the function; each result gets the name under which it is returned.

        Parameters are sorted by name: that is Apple's order in text and the
        order in which the engine binds them (facts: ane.md §0 rule 2).

        Raises:
            InputError: A result is a parameter or a constant, or has a parameter's name.
        """
        renamed: dict[Value, Value] = {}
        produced = {v.name: v for op in self._ops for v in op.outputs}
        for name, value in outputs.items():
            if value.name not in produced or value.name in self._literals:
                raise InputError(f"result '{name}' is not computed by an op", where=self.name)
            if any(v.name == name for v in self._inputs):
                raise InputError(f"result name '{name}' is that of a parameter", where=self.name)
            holder = produced.get(name)
            if holder is not None and holder != value:
                renamed[holder] = Value(self._unique(name), holder.type)
        renamed |= {value: Value(name, value.type) for name, value in outputs.items()}
        results = tuple(renamed[value] for value in outputs.values())
        ops = tuple(_renamed(op, renamed) for op in self._ops)
        inputs = tuple(sorted(self._inputs, key=lambda v: v.name))
        return Function(self.name, self.opset, inputs, ops, results)

    def _unique(self, stem: str) -> str:
        count = self._names.get(stem)
        if count is None:
            self._names[stem] = 0
            return stem
        while True:
            count += 1
            candidate = f"{stem}_{count}"
            if candidate not in self._names:
                break
        self._names[stem] = count
        self._names[candidate] = 0
        return candidate

    def _bind(self, decl: OpDecl, inputs: Mapping[str, Any]) -> dict[str, Binding]:
        bound: dict[str, DType] = {}
        floats: DType | None = None
        for name, value in inputs.items():
            param = decl.param(name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, (Value, Literal)) and isinstance(item.type, TensorType):
                    dtype = item.type.dtype
                    if param is not None and param.variable:
                        bound.setdefault(param.variable, dtype)
                    if floats is None and dtype.is_float:
                        floats = dtype
        return {name: self._operand(decl, name, value, bound, floats) for name, value in inputs.items()}

    def _operand(
        self, decl: OpDecl, name: str, value: Any, bound: Mapping[str, DType], floats: DType | None
    ) -> Binding:
        param = decl.param(name) or Param(name, None)
        if param.many:
            return tuple(self._operand_one(param, item, bound, floats) for item in value)
        # Parameters of constexpr ops are literals in place, as coremltools writes them.
        inline = decl.kind.startswith("constexpr_")
        return self._operand_one(param, value, bound, floats, inline=inline)

    def _operand_one(
        self,
        param: Param,
        value: Any,
        bound: Mapping[str, DType],
        floats: DType | None,
        *,
        inline: bool = False,
    ) -> Operand:
        if isinstance(value, Value):
            return value
        if not isinstance(value, Literal):
            literal = Literal.of(value)
            assert isinstance(literal.type, TensorType)
            natural = literal.type.dtype
            wanted = bound.get(param.variable)
            if wanted is None and natural is DType.FP32:
                wanted = floats
            if wanted is not None and wanted is not natural:
                literal = Literal.of(value, wanted)
            value = literal
        return value if inline else self.const(value, name=param.name)


def _renamed(op: Op, names: Mapping[Value, Value]) -> Op:
    def swap(operand: Operand) -> Operand:
        return names.get(operand, operand) if isinstance(operand, Value) else operand

    op = op.map_operands(swap)
    if not any(value in names for value in op.outputs):
        return op
    return replace(op, outputs=tuple(names.get(value, value) for value in op.outputs))
