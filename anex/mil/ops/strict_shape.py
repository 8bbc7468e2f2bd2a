"""Refusals that go beyond coremltools, and helpers for shapes with unknown dimensions.

coremltools 9.0 builds each of the calls below without a word: it clamps, wraps
round or writes a type that no tensor has.  The Neural Engine's compiler takes
such a program too and then computes something else, so the type rules refuse
it.  Every such refusal is a row of `REFUSALS`; the row's reason is the hint of
the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from anex.errors import InputError
from anex.mil.ops.decl import Call
from anex.mil.types import DType

Dims = tuple[int | None, ...]

ALL_15 = "bool fp16 fp32 int32"
ALL_17 = "bool fp16 fp32 int8 int16 int32 uint8 uint16"
NUMBERS_15 = "fp16 fp32 int32"
NUMBERS_17 = "fp16 fp32 int8 int16 int32 uint8 uint16"
FLOATS = "fp16 fp32"
OFFSETS_17 = "int8 int16 int32"
INDICES_16 = "int16 int32 uint16"
INDICES_17 = "int8 int16 int32 uint8 uint16"

REFUSALS: dict[str, str] = {
    # axes and permutations
    "axis-range": "such an axis names no dimension; coremltools checks it for some ops only",
    "axis-twice": "naming an axis twice changes the shape in a way that the op does not define",
    "perm-twice": "coremltools indexes the shape with perm, so a repeated entry repeats a dimension",
    # sizes
    "reshape-negative": "only -1 has a meaning; two negative sizes give a positive count and pass",
    "reshape-undetermined": "with no elements a size of -1 can be anything; coremltools divides by zero",
    "size-positive": "a dimension of this size does not exist",
    "size-divides": "coremltools rounds the quotient down and drops the rest of the data",
    "split-count": "coremltools leaves the surplus outputs with the whole shape of x",
    "split-sum": "coremltools does not add the sizes up",
    "vector-length": "entries beyond the rank are ignored, missing ones are an exception",
    "rank": "coremltools does not check this rank",
    "scalar": "coremltools takes a vector of one element where its arithmetic happens to allow it",
    # slices
    "slice-past-end": "coremltools clamps to the dimension, and for a dimension of 1 does not look",
    "slice-empty": "an end before the begin is clamped to an empty tensor",
    "slice-of-one": "coremltools gives the one element whatever the limits, the definition gives nothing",
    "slice-stride": "a stride of 0 never reaches the end",
    "slice-size": "only sizes of at least 1, and -1 for the rest, are defined",
    "slice-rest": "coremltools subtracts a negative begin, which gives more elements than there are",
    "window-size": "no window of this size fits",
    # padding
    "pad-reflect": "documented limit: at most one less than the dimension on each side",
    "pad-replicate": "documented limit: at most the dimension on each side",
    # indices and modes
    "index-range": "what an index outside the dimension reads or writes is undefined",
    "batch-dims": "batch dimensions have to agree and lie before the axis",
    "scatter-mode": "coremltools passes an unknown mode on to the compiler",
    "lengths": "one length for each entry of the batch axis, which is not the sequence axis",
    "step": "a step of 0, or one that leads away from the end, gives no sequence",
    "k-range": "the number of elements to keep is at least 1",
    # values
    "dtype": "coremltools does not check the element type of a tuple's members",
    "scale-zero": "dividing by a scale of zero gives infinity",
    "half-pixel": "aligned corners and half-pixel centres contradict each other",
    "constexpr-empty": "a compressed tensor has at least one element",
}
"""What the type rules refuse although coremltools builds it, and why."""


def refuse(call: Call, row: str, what: str) -> InputError:
    """The error for one row of `REFUSALS`."""
    return InputError(f"{call.decl.kind}: {what}", hint=REFUSALS[row])


def product(dims: Sequence[int | None]) -> int | None:
    """Number of elements; None where a dimension is unknown and none is zero."""
    known = [d for d in dims if d is not None]
    if len(known) < len(dims) and 0 not in known:
        return None
    return prod(known)


def agree(a: Sequence[int | None], b: Sequence[int | None]) -> bool:
    """Whether two shapes can be the same; an unknown dimension agrees with any."""
    return len(a) == len(b) and all(x is None or y is None or x == y for x, y in zip(a, b, strict=True))


def show(dims: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


def vector(call: Call, name: str, length: int | None = None) -> list[Any]:
    """A constant parameter as list.

    Raises:
        InputError: It is no vector, its data is not in the program, or it
            does not have `length` entries.
    """
    values = call.const(name)
    if not isinstance(values, list):
        shape = show(call.type(name).shape)
        raise call.error(f"parameter '{name}' takes a vector held in the program, this is {shape}")
    if length is not None and len(values) != length:
        raise call.error(f"parameter '{name}' has {len(values)} entries, needs {length}")
    return values


def number(call: Call, name: str, default: Any = None) -> Any:
    """A constant scalar parameter; `default` where it is absent.

    Raises:
        InputError: It is no scalar, or its data is not in the program.
    """
    value = call.const(name, default)
    if isinstance(value, list):
        raise refuse(call, "scalar", f"parameter '{name}' is a vector, takes a scalar")
    if value is None:
        raise call.error(f"parameter '{name}' takes a scalar held in the program")
    return value


def axis_of(call: Call, axis: int, rank: int, *, name: str = "axis") -> int:
    """A valid axis counted from the front.

    Raises:
        InputError: It is not in `[-rank, rank)`.
    """
    if not -rank <= axis < rank:
        raise refuse(call, "axis-range", f"{name} {axis} is outside [{-rank}, {rank})")
    return axis % rank


def axes_of(call: Call, axes: Sequence[int], rank: int, *, name: str = "axes") -> tuple[int, ...]:
    """Valid, distinct axes counted from the front, in the given order."""
    found = tuple(axis_of(call, axis, rank, name=name) for axis in axes)
    if len(set(found)) < len(found):
        raise refuse(call, "axis-twice", f"{name} {list(axes)} names a dimension twice")
    return found


def data_types(call: Call, name: str) -> tuple[DType, list[Dims]]:
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
        raise refuse(call, "dtype", f"'{name}' holds strings")
    if len({t.rank for t in found}) > 1:
        raise call.error(f"tensors of '{name}' have different ranks {sorted({t.rank for t in found})}")
    return found[0].dtype, [t.shape for t in found]


def merged(call: Call, shapes: Sequence[Dims], *, but: int | None = None) -> list[int | None]:
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
