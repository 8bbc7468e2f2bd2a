"""What a function needs at least in memory, known before anything is allocated.

XLA ends the process, or the system does, where a program asks for more than
there is; so such a program is refused when it is loaded.
"""

from __future__ import annotations

from anex.emulator.host import available_memory
from anex.emulator.numerics import Level
from anex.errors import ResourceError
from anex.mil import DType, Function, Op, StateType, TensorType, Type, Value


def check_memory(function: Function, level: Level) -> None:
    """Refuse a function that cannot fit.

    Raises:
        ResourceError: Its parameters and results, or those of one op, exceed the free memory.
    """
    limit = available_memory()
    ports = {*function.inputs, *function.outputs}
    needs = {"parameters and results": sum(_nbytes(v.type, level) for v in ports)}
    # Constants lie in mapped files or in the text itself, so they are there already.
    constants = {v for op in function.ops if op.kind == "const" for v in op.outputs}
    for op in function.ops:
        if op.kind != "const":
            held = {o for o in op.operands() if isinstance(o, Value)} - constants | set(op.outputs)
            needs[_label(op)] = sum(_nbytes(v.type, level) for v in held)
    what, most = max(needs.items(), key=lambda item: item[1])
    if most > limit:
        raise ResourceError(
            f"{what} of function '{function.name}' take {_gib(most)}, {_gib(limit)} of memory are free",
            hint="smaller shapes, or a machine with more memory",
        )


def _label(op: Op) -> str:
    return f"operands and results of {op.kind} '{op.name}'"


def _nbytes(kind: Type, level: Level) -> int:
    if isinstance(kind, StateType):
        kind = kind.wrapped
    if not isinstance(kind, TensorType) or not kind.is_static:
        return 0  # refused elsewhere, with its name
    widened = level is Level.FP32 and kind.dtype is DType.FP16
    return kind.size * (4 if widened else kind.dtype.numpy.itemsize)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
