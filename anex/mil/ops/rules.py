"""Pieces that type rules share: sets of dtypes, shapes that follow from shapes, axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from anex.mil.ops.decl import Call, Rule
from anex.mil.types import DType, Type

Dim = int | None
Shape = tuple[Dim, ...]

ALL_15 = "bool fp16 fp32 int32"
ALL_17 = "bool fp16 fp32 int8 int16 int32 uint8 uint16"
NUMBERS_15 = "fp16 fp32 int32"
NUMBERS_17 = "fp16 fp32 int8 int16 int32 uint8 uint16"
FLOATS = "fp16 fp32"
OFFSETS_17 = "int8 int16 int32"
INDICES_16 = "int16 int32 uint16"
INDICES_17 = "int8 int16 int32 uint8 uint16"


def same_as(name: str) -> Rule:
    """The result has the type of one parameter."""

    def rule(call: Call) -> tuple[Type, ...]:
        return (call.type(name),)

    return rule


same_as_x = same_as("x")


def show(dims: Sequence[Dim]) -> str:
    """A shape as MIL text writes it."""
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


def known_to_differ(a: Dim, b: Dim) -> bool:
    """Two sizes differ and neither is unknown."""
    return a is not None and b is not None and a != b


def fits(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes can be the same; an unknown dimension fits any."""
    return len(a) == len(b) and not any(map(known_to_differ, a, b))


def product(dims: Sequence[Dim]) -> int | None:
    """Number of elements; None where a dimension is unknown and none is zero."""
    known = [d for d in dims if d is not None]
    if len(known) < len(dims) and 0 not in known:
        return None
    return prod(known)


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
                texts = " and ".join(map(show, shapes))
                raise call.error(f"shapes {texts} do not broadcast") from None
    return tuple(result)


def axis_of(call: Call, axis: int, rank: int, *, name: str = "axis") -> int:
    """A valid axis counted from the front.

    Raises:
        InputError: It is not in `[-rank, rank)`.
    """
    if not -rank <= axis < rank:
        raise call.refusal("axis-range", f"{name} {axis} is outside [{-rank}, {rank})")
    return axis % rank


def axes_of(call: Call, axes: Sequence[int], rank: int, *, name: str = "axes") -> tuple[int, ...]:
    """Valid, distinct axes counted from the front, in the given order."""
    found = tuple(axis_of(call, axis, rank, name=name) for axis in axes)
    if len(set(found)) < len(found):
        raise call.refusal("axis-twice", f"{name} {list(axes)} names a dimension twice")
    return found


def reduced_axes(call: Call) -> tuple[int, ...]:
    """The parameter `axes` of an op that reduces x: valid and distinct, all where it is absent.

    Raises:
        InputError: An axis is out of range or named twice, or none is named.
    """
    rank = call.type("x").rank
    axes = call.value("axes", range(rank))
    if rank and not axes:
        raise call.refusal("axes-empty", "axes is empty")
    return axes_of(call, axes, rank)


def data_types(call: Call, name: str) -> tuple[DType, list[Shape]]:
    """The common dtype and the shapes of a tuple of tensors.

    Raises:
        InputError: The tuple is empty, or dtypes or ranks differ.
    """
    found = call.types(name)
    if not found:
        raise call.error(f"'{name}' holds no tensor")
    dtypes = {t.dtype for t in found}
    if len(dtypes) > 1:
        names = ", ".join(sorted(d.value for d in dtypes))
        raise call.error(f"tensors of '{name}' have different dtypes ({names})")
    if found[0].dtype is DType.STRING:
        raise call.refusal("dtype", f"'{name}' holds strings")
    if len({t.rank for t in found}) > 1:
        raise call.error(f"tensors of '{name}' have different ranks {sorted({t.rank for t in found})}")
    return found[0].dtype, [t.shape for t in found]


def merged(call: Call, shapes: Sequence[Shape], *, but: int | None = None) -> list[Dim]:
    """One shape that agrees with all, each dimension known if any knows it.

    Raises:
        InputError: Shapes differ in a dimension other than `but`.
    """
    result = list(shapes[0])
    for shape in shapes[1:]:
        for i, dim in enumerate(shape):
            if i == but or dim is None:
                continue
            if result[i] is None:
                result[i] = dim
            elif result[i] != dim:
                raise call.error(f"shapes {show(shapes[0])} and {show(shape)} differ in dimension {i}")
    return result
