"""Memory that lives between calls: read_state, write_state, and what never stands in a file."""

from __future__ import annotations

from anex.mil.ops.decl import Call, declare
from anex.mil.types import StateType, TensorType, Type


def _wrapped(call: Call, name: str) -> TensorType:
    kind = call.operand(name).type
    if not isinstance(kind, StateType):
        raise call.error(f"parameter '{name}' takes a state, not {kind}")
    return kind.wrapped


def _read_state(call: Call) -> tuple[Type, ...]:
    return (_wrapped(call, "input"),)


declare("read_state", "ios18", "input: any", rule=_read_state, doc="A copy of what the state holds.")


def _write_state(call: Call) -> tuple[Type, ...]:
    wrapped, data = _wrapped(call, "input"), call.type("data")
    if data != wrapped:
        raise call.error(f"data is {data}, the state holds {wrapped}")
    return ()


declare(
    "write_state",
    "ios18",
    "input: any, data: any",
    rule=_write_state,
    doc="The state holds data from here on.",
)


def _coreml_update_state(call: Call) -> tuple[Type, ...]:
    raise call.error("exists only inside coremltools; files hold write_state and read_state instead")


declare(
    "coreml_update_state", "ios18", "state: any, value: any", rule=_coreml_update_state,
    doc="coremltools' shorthand for write_state followed by read_state; always refused.",
)  # fmt: skip
