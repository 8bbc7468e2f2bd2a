"""Type rules of ops that move data: against numpy's shapes, and against coremltools.

Wherever coremltools accepts a call that we refuse, the refusal has to be a row
of `REFUSALS`; wherever it refuses, so do we; wherever both accept, both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coremltools_types import Args, ours, run_time, theirs
from hypothesis import given, settings
from hypothesis import strategies as st

from anex.errors import InputError
from anex.mil.ir import BlobRef, Literal
from anex.mil.ops.refusals import REFUSALS
from anex.mil.text import parse
from anex.mil.types import DType, TensorType
from anex.mil.verify import problems

F16, I32, U8 = DType.FP16, DType.INT32, DType.UINT8
const = Literal.of


def x(*shape: int | None, dtype: DType = F16) -> TensorType:
    return run_time(dtype, *shape)


def outcome(infer: Any, kind: str, args: Args, opset: str = "ios18") -> Any:
    """The inferred types, or the exception that says why there are none."""
    try:
        return infer(kind, args, opset)
    except Exception as error:
        return error


def shape_of(kind: str, args: Args, opset: str = "ios18") -> tuple[int | None, ...]:
    return ours(kind, args, opset)[0].shape


# --- against numpy ------------------------------------------------------------

dims = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
few = settings(max_examples=150, deadline=None)


@few
@given(dims, st.data())
def test_a_slice_has_the_shape_that_numpy_gives(shape: tuple[int, ...], data: Any) -> None:
    cuts = []
    for dim in shape:
        stride = data.draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        begin = data.draw(st.integers(0, dim - 1))
        end = data.draw(st.integers(begin + 1, dim) if stride > 0 else st.integers(0, begin))
        begin -= dim * data.draw(st.booleans())
        # a limit counted from the end cannot name the place behind the last element
        end -= dim * (end < dim and data.draw(st.booleans()))
        cuts.append((begin, end, stride, *data.draw(st.tuples(*[st.booleans()] * 3))))
    columns = list(zip(*cuts, strict=True))
    names = ("begin", "end", "stride", "begin_mask", "end_mask", "squeeze_mask")
    args = {"x": x(*shape)} | {name: const(list(c)) for name, c in zip(names, columns, strict=True)}
    index = tuple(
        (0 if first else b) if squeeze else slice(None if first else b, None if last else e, s)
        for b, e, s, first, last, squeeze in cuts
    )
    expected = np.zeros(shape)[index].shape
    # masks can turn the order of the limits round
    found = outcome(ours, "slice_by_index", args)
    if isinstance(found, InputError):
        assert found.hint in (REFUSALS["slice-empty"], REFUSALS["slice-of-one"])
        assert 0 in expected
    else:
        assert found[0].shape == expected


@few
@given(dims, st.data())
def test_reshape_fills_in_what_numpy_fills_in(shape: tuple[int, ...], data: Any) -> None:
    count = int(np.prod(shape))
    wanted: list[int] = []
    while count > 1:
        factor = data.draw(st.sampled_from([f for f in range(2, count + 1) if count % f == 0]))
        wanted.append(factor)
        count //= factor
    wanted = list(data.draw(st.permutations([*wanted, 1])))
    expected = tuple(wanted)
    if data.draw(st.booleans()):
        wanted[data.draw(st.integers(0, len(wanted) - 1))] = -1
    assert np.zeros(shape).reshape(wanted).shape == expected
    assert shape_of("reshape", {"x": x(*shape), "shape": const(wanted)}) == expected


@few
@given(dims, st.data())
def test_transposes_concats_and_stacks_are_numpys(shape: tuple[int, ...], data: Any) -> None:
    perm = [p - len(shape) * data.draw(st.booleans()) for p in data.draw(st.permutations(range(len(shape))))]
    assert (
        shape_of("transpose", {"x": x(*shape), "perm": const(perm)}) == np.zeros(shape).transpose(perm).shape
    )
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    parts = [tuple(n if i == axis % len(shape) else d for i, d in enumerate(shape)) for n in sizes]
    args = {"values": tuple(x(*p) for p in parts), "axis": const(axis)}
    assert shape_of("concat", args) == np.concatenate([np.zeros(p) for p in parts], axis).shape
    where = data.draw(st.integers(-len(shape) - 1, len(shape)))
    args = {"values": (x(*shape),) * len(sizes), "axis": const(where)}
    assert shape_of("stack", args) == np.stack([np.zeros(shape)] * len(sizes), where).shape


@few
@given(dims, st.data())
def test_inserted_and_removed_dimensions_are_numpys(shape: tuple[int, ...], data: Any) -> None:
    count = data.draw(st.integers(1, 3))
    rank = len(shape) + count
    axes = [a - rank * data.draw(st.booleans()) for a in data.draw(st.permutations(range(rank)))[:count]]
    longer = np.expand_dims(np.zeros(shape), tuple(axes)).shape
    assert shape_of("expand_dims", {"x": x(*shape), "axes": const(axes)}) == longer
    assert shape_of("squeeze", {"x": x(*longer), "axes": const(axes)}) == shape
    assert shape_of("squeeze", {"x": x(*longer)}) == np.squeeze(np.zeros(longer)).shape


# --- against coremltools ------------------------------------------------------


def check_against_coremltools(kind: str, args: Args, opset: str) -> None:
    wanted, found = outcome(theirs, kind, args, opset), outcome(ours, kind, args, opset)
    if isinstance(found, Exception):
        assert isinstance(found, InputError), repr(found)
        listed = found.hint in REFUSALS.values()
        assert isinstance(wanted, Exception) or listed, f"they give {wanted}, we say: {found}"
    else:
        assert not isinstance(wanted, Exception), f"we give {found}, they say: {wanted}"
        assert found == wanted


small = st.integers(-4, 6)
vectors = st.lists(small, min_size=0, max_size=4)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(lambda s: x(*s))
opsets = st.sampled_from(["ios15", "ios16", "ios17", "ios18"])


def optional(**parameters: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Literal]]:
    """Any subset of constant parameters."""
    return st.fixed_dictionaries({}, optional={n: v.map(const) for n, v in parameters.items()})


CALLS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "reshape": st.fixed_dictionaries({"x": shapes, "shape": vectors.map(const)}),
    "transpose": st.fixed_dictionaries({"x": shapes, "perm": vectors.map(const)}),
    "expand_dims": st.fixed_dictionaries({"x": shapes, "axes": vectors.map(const)}),
    "squeeze": st.tuples(shapes, optional(axes=vectors)).map(lambda t: {"x": t[0]} | t[1]),
    "flatten2d": st.tuples(shapes, optional(axis=small)).map(lambda t: {"x": t[0]} | t[1]),
    "tile": st.fixed_dictionaries({"x": shapes, "reps": vectors.map(const)}),
    "pad": st.fixed_dictionaries({
        "x": shapes,
        "pad": st.lists(st.integers(-1, 4), max_size=8).map(const),
        "mode": st.sampled_from(["constant", "reflect", "replicate", "wrap"]).map(const),
    }),
    "concat": st.fixed_dictionaries({
        "values": st.lists(shapes, max_size=3).map(tuple),
        "axis": small.map(const), "interleave": st.booleans().map(const),
    }),
    "stack": st.fixed_dictionaries({
        "values": st.lists(shapes, max_size=3).map(tuple), "axis": small.map(const),
    }),
    "split": st.tuples(shapes, small, optional(num_splits=small, split_sizes=vectors)).map(
        lambda t: {"x": t[0], "axis": const(t[1])} | t[2]
    ),
    "reverse": st.tuples(shapes, optional(axes=vectors)).map(lambda t: {"x": t[0]} | t[1]),
    "slice_by_size": st.fixed_dictionaries({
        "x": shapes, "begin": vectors.map(const), "size": vectors.map(const),
    }),
    "sliding_windows": st.tuples(shapes, small, small, optional(stride=small)).map(
        lambda t: {"x": t[0], "axis": const(t[1]), "size": const(t[2])} | t[3]
    ),
    "gather": st.tuples(
        shapes, st.lists(st.integers(1, 5), max_size=3), optional(axis=small),
    ).map(lambda t: {"x": t[0], "indices": x(*t[1], dtype=I32)} | t[2]),
    "gather_along_axis": st.tuples(shapes, shapes, optional(axis=small)).map(
        lambda t: {"x": t[0], "indices": x(*t[1].shape, dtype=I32)} | t[2]
    ),
    "gather_nd": st.tuples(shapes, shapes).map(
        lambda t: {"x": t[0], "indices": x(*t[1].shape, dtype=I32)}
    ),
    "topk": st.tuples(shapes, optional(k=st.integers(0, 6), axis=small, ascending=st.booleans())).map(
        lambda t: {"x": t[0]} | t[1]
    ),
    "argsort": st.tuples(shapes, optional(axis=small)).map(lambda t: {"x": t[0]} | t[1]),
    "fill": st.lists(st.integers(0, 4), max_size=3).map(lambda s: {"shape": const(s)}),
    "range_1d": st.tuples(small, small, small).map(
        lambda t: {"start": const(t[0]), "end": const(t[1]), "step": const(t[2])}
    ),
    "crop": st.tuples(shapes, vectors, vectors).map(
        lambda t: {"x": t[0], "crop_height": const(t[1]), "crop_width": const(t[2])}
    ),
    "depth_to_space": st.tuples(shapes, st.integers(0, 3)).map(
        lambda t: {"x": t[0], "block_size": const(t[1])}
    ),
    "space_to_depth": st.tuples(shapes, st.integers(0, 3)).map(
        lambda t: {"x": t[0], "block_size": const(t[1])}
    ),
    "resize_nearest_neighbor": st.tuples(shapes, small, small).map(
        lambda t: {"x": t[0], "target_size_height": const(t[1]), "target_size_width": const(t[2])}
    ),
    "upsample_bilinear": st.tuples(
        shapes,
        optional(
            scale_factor_height=small, scale_factor_width=st.floats(0, 3), align_corners=st.booleans(),
        ),
    ).map(lambda t: {"x": t[0]} | t[1]),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(CALLS))
def test_random_calls_agree_with_coremltools(kind: str) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(CALLS[kind], opsets)
    def check(args: dict[str, Any], opset: str) -> None:
        check_against_coremltools(kind, args, opset)

    check()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_slices_agree_with_coremltools(data: Any) -> None:
    shape = data.draw(shapes)
    rank = shape.rank

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        drawn: list[Any] = data.draw(st.lists(values, min_size=rank, max_size=rank))
        return drawn

    args: dict[str, Any] = {"x": shape, "begin": const(column(small)), "end": const(column(small))}
    if data.draw(st.booleans()):
        args["stride"] = const(column(st.sampled_from([1, 2, 3, -1, -2])))
    for mask in ("begin_mask", "end_mask", "squeeze_mask"):
        if data.draw(st.booleans()):
            args[mask] = const(column(st.booleans()))
    check_against_coremltools("slice_by_index", args, data.draw(opsets))


# --- every listed refusal -----------------------------------------------------


def ints(*values: int, dtype: DType = I32) -> Literal:
    return const(np.array(values, dtype.numpy), dtype)


ACCEPTED_BY_COREMLTOOLS: dict[str, tuple[str, Args]] = {
    "axis-range": ("reverse", {"x": x(2, 3), "axes": ints(5)}),
    "axis-twice": ("expand_dims", {"x": x(2), "axes": ints(1, 1)}),
    "perm-twice": ("transpose", {"x": x(2, 3), "perm": ints(0, 0)}),
    "reshape-negative": ("reshape", {"x": x(6), "shape": ints(-2, -3)}),
    "reshape-undetermined": ("reshape", {"x": x(0, 4), "shape": ints(0, -1, dtype=DType.INT16)}),
    "size-positive": ("fill", {"shape": ints(0, 2)}),
    "size-divides": ("depth_to_space", {"x": x(1, 5, 2, 2), "block_size": const(2)}),
    "split-count": (
        "split",
        {"x": x(2), "num_splits": const(3), "split_sizes": ints(1, 1), "axis": const(0)},
    ),
    "split-sum": ("split", {"x": x(5), "split_sizes": ints(1, 1), "axis": const(0)}),
    "vector-length": (
        "slice_by_index",
        {"x": x(4), "begin": ints(0), "end": ints(2), "end_mask": const([False, True, True])},
    ),
    "axes-empty": ("reduce_sum", {"x": x(2, 3), "axes": const(np.zeros(0, np.int32))}),
    "rank": ("band_part", {"x": x(3), "lower": const(0)}),
    "scalar": ("fill", {"shape": ints(2), "value": const([1.5])}),
    "slice-past-end": ("slice_by_index", {"x": x(4), "begin": ints(0), "end": ints(9)}),
    "slice-empty": ("slice_by_index", {"x": x(4), "begin": ints(-1), "end": ints(1)}),
    "slice-of-one": ("slice_by_index", {"x": x(1), "begin": ints(0), "end": ints(-1)}),
    "slice-stride": ("slice_by_index", {"x": x(1), "begin": ints(0), "end": ints(1), "stride": ints(0)}),
    "slice-size": ("slice_by_size", {"x": x(4), "begin": ints(1), "size": ints(0)}),
    "slice-rest": ("slice_by_size", {"x": x(4), "begin": ints(-1), "size": ints(-1)}),
    "window-size": ("sliding_windows", {"x": x(3), "axis": const(0), "size": const(5)}),
    "pad-reflect": ("pad", {"x": x(3), "pad": ints(3, 0), "mode": const("reflect")}),
    "pad-replicate": ("pad", {"x": x(3), "pad": ints(4, 0), "mode": const("replicate")}),
    "index-range": ("gather", {"x": x(3), "indices": ints(0, -1)}),
    "batch-dims": (
        "gather",
        {"x": x(2, 3), "indices": x(5, 2, dtype=I32), "batch_dims": const(1), "axis": const(1)},
    ),
    "scatter-mode": (
        "scatter",
        {"data": x(3), "indices": ints(0), "updates": x(1), "mode": const("xor")},
    ),
    "lengths": ("reverse_sequence", {"x": x(2, 3), "lengths": x(2, dtype=I32)}),
    "step": ("range_1d", {"start": const(5), "end": const(0), "step": const(1)}),
    "k-range": ("topk", {"x": x(3), "k": const(0)}),
    "dtype": ("concat", {"values": (const("a"), const("b")), "axis": const(0)}),
    "scale-zero": (
        "quantize",
        {"input": x(2), "scale": const([0.0, 1.0], F16), "axis": const(0), "output_dtype": const("int8")},
    ),
    "half-pixel": (
        "upsample_bilinear",
        {"x": x(1, 2, 2), "align_corners": const(True), "half_pixel_centers": const(True)},
    ),
    "constexpr-empty": (
        "constexpr_blockwise_shift_scale",
        {"data": const(np.zeros((0, 4), np.int8)), "scale": const(np.ones((1, 1), np.float16))},
    ),
}


def test_every_listed_refusal_has_a_call() -> None:
    assert set(ACCEPTED_BY_COREMLTOOLS) == set(REFUSALS)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("row", sorted(ACCEPTED_BY_COREMLTOOLS))
def test_nonsense_that_coremltools_builds_is_refused(row: str) -> None:
    kind, args = ACCEPTED_BY_COREMLTOOLS[row]
    theirs(kind, args)
    with pytest.raises(InputError) as caught:
        ours(kind, args)
    assert caught.value.hint == REFUSALS[row]
    assert "\n" not in str(caught.value)


MORE_REFUSED: Sequence[tuple[str, Args]] = [
    ("transpose", {"x": x(2, 3), "perm": ints(0, 2)}),
    ("transpose", {"x": x(2, 3), "perm": ints(0)}),
    ("reshape", {"x": x(6), "shape": ints(4, -1)}),
    ("reshape", {"x": x(6), "shape": ints(-1, -1)}),
    ("concat", {"values": (x(2), x(2, dtype=DType.FP32)), "axis": const(0)}),
    ("concat", {"values": (x(2, 3), x(3, 3)), "axis": const(1)}),
    ("split", {"x": x(5), "num_splits": const(2), "axis": const(0)}),
    ("tile", {"x": x(5), "reps": ints(0)}),
    ("pad", {"x": x(5), "pad": ints(-1, 0)}),
    ("pad", {"x": x(5), "pad": ints(1, 1, 1)}),
    ("slice_update", {"x": x(4), "update": x(3), "begin": ints(0), "end": ints(2)}),
    ("slice_update", {"x": x(4), "update": x(2, dtype=DType.FP32), "begin": ints(0), "end": ints(2)}),
    (
        "slice_update",
        {"x": x(4), "update": x(), "begin": ints(0), "end": ints(2), "squeeze_mask": const([True])},
    ),
    ("slice_by_index", {"x": x(4), "begin": ints(3), "end": ints(1)}),
    ("cast", {"x": x(2), "dtype": const("int64")}),
    ("topk", {"x": x(3), "k": const(4)}),
    ("gather", {"x": x(3), "indices": ints(3), "validate_indices": const(True)}),
    ("gather_along_axis", {"x": x(3, 4), "indices": x(2, 5, dtype=I32)}),
    ("scatter", {"data": x(3, 4), "indices": x(2, dtype=I32), "updates": x(2, 5)}),
    ("quantize", {"input": x(2), "scale": const(1.0, F16), "output_dtype": const("int32")}),
    ("quantize", {"input": x(2), "scale": const([1.0, 1.0], F16), "output_dtype": const("int8")}),
    ("dequantize", {"input": x(2, dtype=U8), "scale": const(1.0, F16), "axis": const(0)}),
]


@pytest.mark.parametrize(
    ("kind", "args"), MORE_REFUSED, ids=[f"{k}-{i}" for i, (k, _) in enumerate(MORE_REFUSED)]
)
def test_what_coremltools_refuses_is_refused(kind: str, args: Args) -> None:
    with pytest.raises((ValueError, TypeError, IndexError, AssertionError, NotImplementedError)):
        theirs(kind, args)
    with pytest.raises(InputError):
        ours(kind, args)


# --- unknown dimensions -------------------------------------------------------

IN_BLOB = Literal(TensorType(I32, (10,)), BlobRef("weight.bin", 64))
UNKNOWN: Sequence[tuple[str, Args, tuple[int | None, ...]]] = [
    ("reshape", {"x": x(1, None), "shape": ints(1, 1, -1)}, (1, 1, None)),
    ("reshape", {"x": x(2, None, 4), "shape": ints(0, 0, 2, 2)}, (1, 2, 2, 2)),
    ("reshape", {"x": x(2, 3), "shape": x(3, dtype=I32)}, (None, None, None)),
    ("transpose", {"x": x(1, None, 4), "perm": ints(2, 1, 0)}, (4, None, 1)),
    ("squeeze", {"x": x(1, None, 1)}, (None,)),
    ("concat", {"values": (x(None, 3), x(2, None)), "axis": const(1)}, (2, None)),
    ("concat", {"values": (x(None, 3), x(2, 4)), "axis": const(1)}, (2, 7)),
    ("stack", {"values": (x(None, 3), x(2, None)), "axis": const(0)}, (2, 2, 3)),
    ("split", {"x": x(2, None), "split_sizes": ints(3), "axis": const(1)}, (2, 3)),
    ("split", {"x": x(12), "split_sizes": IN_BLOB, "axis": const(0)}, (None,)),
    ("tile", {"x": x(None, 2), "reps": ints(1, 3)}, (None, 6)),
    ("pad", {"x": x(None, 2), "pad": ints(1, 1, 2, 2)}, (None, 6)),
    ("pad", {"x": x(3, 2), "pad": x(4, dtype=I32)}, (None, None)),
    ("slice_by_index", {"x": x(1, None), "begin": ints(0, 1), "end": ints(1, 2)}, (1, 1)),
    ("slice_by_index", {"x": x(1, None), "begin": ints(0, 1), "end": ints(1, 9)}, (1, None)),
    ("slice_by_index", {"x": x(5), "begin": x(1, dtype=I32), "end": x(1, dtype=I32)}, (None,)),
    ("slice_by_size", {"x": x(5, None), "begin": x(2, dtype=I32), "size": ints(2, -1)}, (2, None)),
    ("slice_by_size", {"x": x(5, None), "begin": ints(1, 1), "size": ints(-1, 3)}, (4, 3)),
    ("gather", {"x": x(None, 3), "indices": x(2, dtype=I32), "axis": const(1)}, (None, 2)),
    ("sliding_windows", {"x": x(None), "axis": const(0), "size": const(3)}, (None, 3)),
    ("one_hot", {"indices": x(2, dtype=I32), "one_hot_vector_size": x(dtype=I32)}, (2, None)),
    ("range_1d", {"start": x(dtype=I32), "end": const(3), "step": const(1)}, (None,)),
    ("non_zero", {"x": x(2, 3)}, (None, 2)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "args", "expected"), UNKNOWN, ids=[f"{u[0]}-{i}" for i, u in enumerate(UNKNOWN)]
)
def test_unknown_dimensions_stay_unknown_and_no_more(kind: str, args: Args, expected: Any) -> None:
    assert shape_of(kind, args) == expected


SAMPLES = sorted((Path(__file__).parents[1] / "data" / "mil").glob("*.mil"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_apples_own_programs_have_the_types_that_the_rules_give(path: Path) -> None:
    assert problems(parse(path.read_text())) == []
