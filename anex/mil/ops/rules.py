"""Pieces that type rules share: shapes that follow from shapes, axes, immediate constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anex.mil.ops.decl import Call, Rule
from anex.mil.types import Type

Dim = int | None
Shape = tuple[Dim, ...]


def same_as(name: str) -> Rule:
    """The result has the type of one parameter."""

    def rule(call: Call) -> tuple[Type, ...]:
        return (call.type(name),)

    return rule


same_as_x = same_as("x")


def immediate(call: Call, name: str, default: Any = None) -> Any:
    """The value of a constant that the type rule needs; `default` where it is absent.

    Raises:
        InputError: The value is only known at run time or lies in the blob file.
    """
    value = call.const(name, default)
    if value is None and name in call:
        raise call.error(f"parameter '{name}' must be an immediate constant")
    return value


def axis_of(call: Call, axis: int, rank: int, name: str = "axis") -> int:
    """An axis counted from the front.

    Raises:
        InputError: It is not inside [-rank, rank).
    """
    if not -rank <= axis < rank:
        raise call.error(f"{name} {axis} is outside the rank {rank}")
    return axis % rank


def known_to_differ(a: Dim, b: Dim) -> bool:
    """Two sizes differ and neither is unknown."""
    return a is not None and b is not None and a != b


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """The size of two dimensions that meet.

    Raises:
        ValueError: They do not broadcast.
    """
    if a == b or b == 1:
        return a
    if a == 1 or a is None:
        return b
    if b is None:
        return a
    raise ValueError(f"{a} and {b} do not broadcast")


def text_of(shape: Sequence[Dim]) -> str:
    """A shape as MIL text writes it."""
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def broadcast(call: Call, *shapes: Sequence[Dim]) -> Shape:
    """The common shape of several; an unknown dimension takes the size that it meets.

    Raises:
        InputError: The shapes do not broadcast.
    """
    rank = max(map(len, shapes))
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, start=rank - len(shape)):
            try:
                result[i] = broadcast_dim(result[i], dim)
            except ValueError:
                texts = " and ".join(map(text_of, shapes))
                raise call.error(f"shapes {texts} do not broadcast") from None
    return tuple(result)
