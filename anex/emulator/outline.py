"""Finds the block of ops that a function repeats: the layer of a transformer.

A flat MIL function of thirty layers costs XLA ten times the compile time of
one.  The same op sequence with other weights is one compiled block, called
once per layer with the weights as arguments.  Nothing here knows models: two
stretches of ops are instances of one block when kinds, types, attributes and
small constants agree and each operand is bound at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from anex.mil import Literal, Op, Operand, Type, Value, map_binding

MIN_BLOCK = 8
"""Shorter blocks cost more in calls than they save in compile time."""

RUNTIME_PARAMS = {("slice_by_size", "begin")}
"""Small constants that may differ between instances and are then passed at run time."""

_TRIES = 16
"""Periods that are tried, the best first, before a function is taken as one block."""

Position = tuple[int, int]
"""(op index within the block, operand or output index)."""

Constant = Callable[[Value], Literal | None]
"""The literal of a named constant; None for computed values and for weights."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of ops, traced once and called once per instance.

    Attributes:
        ops: The ops of the first instance.
        arguments: For each argument, its name in the first instance.
        results: Names of the values of the first instance that leave it.
        bindings: Per instance, the value name behind each argument.
        exports: Per instance, the value name of each result.
    """

    ops: tuple[Op, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    bindings: tuple[tuple[str, ...], ...]
    exports: tuple[tuple[str, ...], ...]


def segments(ops: Sequence[Op], outputs: Sequence[Value], constant: Constant) -> list[Segment]:
    """Cut the computing ops of a function into segments, in order.

    Args:
        ops: The ops without `const`.
        outputs: What the function returns.
        constant: See `Constant`; operands for which it answers are baked in.
    """
    for start, period, count in islice(_repeats(ops, constant), _TRIES):
        blocks = [ops[start + i * period : start + (i + 1) * period] for i in range(count)]
        stretches = [[ops[:start]], blocks, [ops[start + count * period :]]]
        try:
            return [_instances(s, ops, outputs, constant) for s in stretches if s[0]]
        except _NotAlikeError:
            continue  # the next best period
    return [_instances([ops], ops, outputs, constant)] if ops else []


class _NotAlikeError(Exception):
    """Two stretches look alike but are wired differently."""


def _key(op: Op, constant: Constant) -> tuple[object, ...]:
    """What must agree between instances; where operands come from is compared later."""
    if op.blocks:
        return (id(op),)  # what blocks compute is not compared: no two are alike
    inputs = [
        (name, map_binding(partial(_operand_key, op.kind, name, constant), binding))
        for name, binding in sorted(op.inputs.items())
    ]
    attributes = tuple(sorted((k, v) for k, v in op.attributes.items() if k != "name"))
    return (op.kind, tuple(inputs), attributes, tuple(v.type for v in op.outputs))


def _operand_key(kind: str, param: str, constant: Constant, operand: Operand) -> tuple[Type, Literal | None]:
    """The type, and the literal where instances must have the same one."""
    if (kind, param) in RUNTIME_PARAMS:
        return operand.type, None
    return operand.type, operand if isinstance(operand, Literal) else constant(operand)


def _repeats(ops: Sequence[Op], constant: Constant) -> Iterator[tuple[int, int, int]]:
    """(start, period, count) of stretches that repeat; first the one whose repetition covers most ops."""
    numbers: dict[object, int] = {}
    keys = np.array([numbers.setdefault(_key(op, constant), len(numbers)) for op in ops])
    runs = []  # (covered, start, period)
    for period in range(MIN_BLOCK, len(ops) // 2 + 1):
        start, length = _longest_run(keys[:-period] == keys[period:])
        if length >= period:
            runs.append((length + period, start, period))
    while runs:
        best = runs[0]
        for run in runs[1:]:
            # A multiple of the true period covers as much: only clearly more wins.
            if run[0] > best[0] + best[2]:
                best = run
        runs.remove(best)
        covered, start, period = best
        slack = range(min(period, covered - 2 * period + 1))
        offset = min(slack, key=lambda o: (_crossing(ops, start + o, period), o))
        yield start + offset, period, (covered - offset) // period


def _longest_run(equal: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[int, int]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
    if not edges.size:
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def _crossing(ops: Sequence[Op], start: int, period: int) -> int:
    """How many values the first instance hands to the second: few at a layer border."""
    first = {v for op in ops[start : start + period] for v in op.outputs}
    used = {o for op in ops[start + period : start + 2 * period] for o in op.reads()}
    return len(first & used)


def _instances(
    blocks: Sequence[Sequence[Op]], ops: Sequence[Op], outputs: Sequence[Value], constant: Constant
) -> Segment:
    homes = [
        {v.name: (i, j) for i, op in enumerate(block) for j, v in enumerate(op.outputs)} for block in blocks
    ]
    slots: dict[tuple[str, ...], str] = {}
    first = tuple(_rebound(op, i, blocks, homes, constant, slots) for i, op in enumerate(blocks[0]))
    inside = [set(map(id, block)) for block in blocks]
    used_by: dict[str, set[int]] = {}
    for op in ops:
        for operand in op.reads():
            if isinstance(operand, Value):
                used_by.setdefault(operand.name, set()).add(id(op))
    leaving = {v.name for v in outputs}
    escaping: set[Position] = set()
    for home, members in zip(homes, inside, strict=True):
        for name, position in home.items():
            if name in leaving or used_by.get(name, set()) - members:
                escaping.add(position)
    order = sorted(escaping)
    exports = tuple(tuple(block[i].outputs[j].name for i, j in order) for block in blocks)
    bindings = tuple(zip(*slots, strict=True)) if slots else tuple(() for _ in blocks)
    return Segment(first, tuple(slots.values()), exports[0], bindings, exports)


def _rebound(
    op: Op,
    index: int,
    blocks: Sequence[Sequence[Op]],
    homes: Sequence[dict[str, Position]],
    constant: Constant,
    slots: dict[tuple[str, ...], str],
) -> Op:
    """The op of the first instance with each outside operand renamed to its argument."""
    columns = zip(*(block[index].reads() for block in blocks), strict=True)
    return op.map_operands(lambda _: _argument(next(columns), homes, constant, slots))


def _argument(
    column: Sequence[Operand],
    homes: Sequence[dict[str, Position]],
    constant: Constant,
    slots: dict[tuple[str, ...], str],
) -> Operand:
    first = column[0]
    literals = [o if isinstance(o, Literal) else constant(o) for o in column]
    if literals[0] is not None and all(x == literals[0] for x in literals):
        return literals[0]
    names = [o.name for o in column if isinstance(o, Value)]
    if len(names) < len(column) or not isinstance(first, Value):
        raise _NotAlikeError  # a literal that differs between instances has no name to bind
    places = {home.get(name) for home, name in zip(homes, names, strict=True)}
    if places == {None}:
        slot = slots.setdefault(tuple(names), f"arg{len(slots)}")
        return Value(slot, first.type)
    if len(places) > 1:
        raise _NotAlikeError
    return first
