"""Makes state an ordinary value: a function takes what each state holds, and gives what it holds then.

`read_state` is the value that stands for the state at that place, and
`write_state` begins a new one; nothing behind this pass knows of states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anex.mil import Function, Op, StateType, TensorType, Value


def states(function: Function) -> Mapping[str, TensorType]:
    """What the states of a function hold, by name."""
    return {v.name: v.type.wrapped for v in function.inputs if isinstance(v.type, StateType)}


def threaded(function: Function) -> tuple[Sequence[Op], Mapping[str, Value]]:
    """The ops of a function without state ops, and the last value of each state that is written.

    A state's name stands for the tensor that it holds at the start.
    """
    held = {name: Value(name, kind) for name, kind in states(function).items()}
    ops = []
    for op in function.ops:
        if op.kind == "read_state":
            ops.append(Op("identity", {"x": held[_name(op)]}, op.outputs))
        elif op.kind == "write_state":
            name = _name(op)
            # '@' is in no legal name, so this one is new.
            held[name] = Value(f"{name}@{len(ops)}", held[name].type)
            ops.append(Op("identity", {"x": op.inputs["data"]}, (held[name],)))
        else:
            ops.append(op)
    return ops, {name: value for name, value in held.items() if value.name != name}


def _name(op: Op) -> str:
    state = op.inputs["input"]
    assert isinstance(state, Value), "the verifier lets only a state through"
    return state.name
