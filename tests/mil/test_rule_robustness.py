"""Type rules under malformed calls: a rule gives types or one of our errors, whatever it is handed.

Each argument of each example is replaced by ones of another rank, dtype,
size or value, by one whose data lies in the blob file, by one that is only
known at run time, and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from anex.errors import InputError, UnsupportedError
from anex.mil.examples import Example, examples
from anex.mil.ir import BlobRef, Literal, Value
from anex.mil.ops import Call, infer, kinds, lookup
from anex.mil.text.literals import int_range
from anex.mil.types import DType, TensorType, Type

NUMBERS: list[Any] = [
    0, 1, -1, 2, 7, -7, 100, 2**31 - 1, -(2**31), [], [0], [1], [0, 0], [1, 2], [-1, -1], [0, 0, 0],
    [0] * 4, [1] * 4, [-1] * 4, [2**31 - 1] * 4, [1] * 6, [1] * 12, [[1, 2]], [[1], [2]],
]  # fmt: skip
FLOATS: list[Any] = [np.inf, -np.inf, np.nan, -0.0, 0.3, [np.inf, np.nan]]
STRINGS: list[Any] = ["", "zzz", "valid", ["valid", "valid"], [], [["same"]]]
FEW_OUTPUTS = (0, 1, 2, 3, 9)


@cache
def literals(dtype: DType) -> tuple[Literal, ...]:
    """Constants of one element type: odd ranks, sizes and values."""
    values = STRINGS if dtype is DType.STRING else NUMBERS + FLOATS if dtype.is_float else NUMBERS
    with np.errstate(all="ignore"):
        arrays = [np.asarray(value, object).astype(dtype.numpy) for value in values if fits(value, dtype)]
    return tuple(Literal.of(array, dtype) for array in arrays)


def fits(value: Any, dtype: DType) -> bool:
    if dtype is DType.STRING or not dtype.is_int:
        return True
    low, high = int_range(dtype)
    return all(low <= n <= high for n in np.asarray(value, object).ravel())


def types(kind: TensorType) -> Iterator[TensorType]:
    """Other ranks, sizes and dtypes than those of a run-time argument."""
    shape = kind.shape
    unknown = (None,) * kind.rank
    odd = [(), (0,), (1,), (None,), (1,) * 6, (0,) * 4, unknown, shape[1:], (*shape, 1), (2**40,) * kind.rank]
    for other in [*odd, tuple(reversed(shape))]:
        yield TensorType(kind.dtype, other)
    for dtype in (DType.FP32, DType.INT32, DType.BOOL, DType.STRING, DType.INT4):
        yield TensorType(dtype, shape)


def bindings_of(example: Example) -> dict[str, Any]:
    def bind(name: str, item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(bind(f"{name}_{i}", each) for i, each in enumerate(item))
        return (
            item if isinstance(item, Literal) else Value(name, TensorType(DType.of(item.dtype), item.shape))
        )

    return {name: bind(name, item) for name, item in example.args.items()}


def replacements(bound: Any) -> Iterator[Any]:
    """What stands in for one argument."""
    if isinstance(bound, tuple):
        yield bound[1:]
        yield (*bound, *bound)
        for other in replacements(bound[0]):
            if not isinstance(other, tuple):
                yield (other, *bound[1:])
        return
    yield ()
    yield (bound, bound)
    if isinstance(bound, Value):
        yield from (Value(bound.name, kind) for kind in types(bound.type))  # type: ignore[arg-type]
        return
    yield from literals(bound.type.dtype)
    yield from literals(DType.INT32 if bound.type.dtype is DType.FP16 else DType.FP16)[:3]
    yield Value("q", bound.type)
    for shape in (bound.type.shape, (3,), (12,)):
        kind = TensorType(bound.type.dtype, shape)
        yield Literal(kind, None)
        yield Literal(kind, BlobRef("@model_path/weights/weight.bin", 64))


def calls(example: Example) -> Iterator[tuple[str, dict[str, Any], int]]:
    bound = bindings_of(example)
    for name, argument in bound.items():
        for other in replacements(argument):
            yield f"{name} = {other!r}", {**bound, name: other}, example.outputs
        yield f"without {name}", {n: b for n, b in bound.items() if n != name}, example.outputs
    yield "unknown parameter", {**bound, "nonsense": Literal.of(1)}, example.outputs
    for outputs in FEW_OUTPUTS:
        yield f"{outputs} outputs", bound, outputs


def judge(example: Example, bound: dict[str, Any], outputs: int) -> str | None:
    """None where the rule gave types, or one of our errors in one line; else what it did."""
    call = Call(
        lookup(example.kind, example.opset), bound, lambda o: o if isinstance(o, Literal) else None, outputs
    )
    try:
        found = infer(call)
    except (InputError, UnsupportedError) as error:
        return None if example.kind in str(error) and "\n" not in str(error) else f"says {error}"
    except Exception as error:  # what this test is about
        return f"raises {error!r}"
    good = isinstance(found, tuple) and all(isinstance(kind, Type) for kind in found)
    sizes = [d for kind in found if isinstance(kind, TensorType) for d in kind.shape if d is not None]
    return None if good and all(type(d) is int and d >= 0 for d in sizes) else f"gives {found}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [kind for kind in kinds() if examples(kind)])
def test_a_rule_gives_types_or_our_errors(kind: str) -> None:
    wrong = [
        f"{example.id}: {what}: {verdict}"
        for example in examples(kind)
        for what, bound, outputs in calls(example)
        if (verdict := judge(example, bound, outputs)) is not None
    ]
    assert not wrong, f"{len(wrong)} calls, the first: {wrong[0]}"


@pytest.mark.parametrize("kind", [kind for kind in kinds() if examples(kind)])
def test_a_short_setting_in_the_blob_file_is_refused_by_name(kind: str) -> None:
    for example in examples(kind):
        decl, bound = lookup(kind, example.opset), bindings_of(example)
        for name, literal in bound.items():
            param = decl.param(name)
            assert param is not None
            if not isinstance(literal, Literal) or not param.const or param.rank is None:
                continue
            assert isinstance(literal.type, TensorType)
            if literal.type.dtype.is_float or literal.type.size >= 10:
                continue
            hidden = Literal(literal.type, BlobRef("@model_path/weights/weight.bin", 64))
            call = Call(decl, {**bound, name: hidden}, lambda o: o if isinstance(o, Literal) else None)
            with pytest.raises(InputError, match=f"'{name}' must be an immediate constant"):
                infer(call)
