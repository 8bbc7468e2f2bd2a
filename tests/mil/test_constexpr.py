"""Expanding compressed constants, against coremltools' own decompression and against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from coremltools.converters.mil.mil.ops.defs.iOS16 import constexpr_ops as ios16
from coremltools.converters.mil.mil.ops.defs.iOS18 import compression as ios18
from coremltools.optimize import _utils as coremltools_utils
from coremltools_types import ours, theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anex.errors import InputError
from anex.mil.builder import Builder
from anex.mil.constexpr import KINDS, fold
from anex.mil.ir import Literal, Op, Program
from anex.mil.ops import kinds
from anex.mil.text import parse, print_program
from anex.mil.types import DType

Array = np.ndarray[Any, np.dtype[Any]]
few = settings(max_examples=40, deadline=None)


def literal(value: Any, dtype: DType | None = None) -> Literal:
    return Literal.of(np.asarray(value), dtype)


def expand(kind: str, opset: str, **parameters: Literal) -> tuple[Array, ...]:
    """Build the op, check its types against coremltools, fold it and check the types of the values."""
    types = ours(kind, parameters, opset)
    assert types == theirs(kind, parameters, opset)
    builder = Builder("main", opset)
    values = builder.ops(kind, outputs=len(types), **parameters)
    assert tuple(v.type for v in values) == types
    op = builder._ops[-1]
    # affine never got an iOS18 form
    assert bool(op.inputs) == (opset == "ios18" and kind != "constexpr_affine_dequantize")
    arrays = fold(op, lambda operand: operand.array)  # type: ignore[union-attr]
    assert [(a.dtype, a.shape) for a in arrays] == [(t.dtype.numpy, t.shape) for t in types]
    return arrays


def same(found: Array, wanted: Array) -> None:
    np.testing.assert_array_equal(found, wanted.reshape(found.shape))


shapes = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)
floats = st.sampled_from([np.float16, np.float32])


def numbers(data: Any, shape: tuple[int, ...], dtype: Any, bits: int = 8) -> Array:
    """Random numbers; `bits` limits the range of integers."""
    seed = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    if np.dtype(dtype).kind == "f":
        return seed.normal(size=shape).astype(dtype)
    low = 0 if np.dtype(dtype).kind == "u" else -(1 << bits - 1)
    return seed.integers(low, low + (1 << bits), shape).astype(dtype)


def test_kinds_are_the_constexpr_ops_of_the_table() -> None:
    assert {kind for kind in kinds() if kind.startswith("constexpr_")} == KINDS


# --- affine -------------------------------------------------------------------


@few
@given(
    st.data(),
    shapes,
    st.sampled_from([np.int8, np.uint8]),
    floats,
    st.sampled_from(["ios16", "ios17", "ios18"]),
)
def test_affine_is_coremltools(
    data: Any, shape: tuple[int, ...], stored: Any, dtype: Any, opset: str
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = st.sampled_from([(), (shape[axis],)])
    q = numbers(data, shape, stored)
    scale, point = numbers(data, data.draw(sizes), dtype), numbers(data, data.draw(sizes), stored)
    (found,) = expand(
        "constexpr_affine_dequantize", opset,
        quantized_data=literal(q), scale=literal(scale), zero_point=literal(point),
        axis=literal(axis, DType.INT32),
    )  # fmt: skip
    same(found, ios16.constexpr_affine_dequantize.decompress(q, point, scale, axis))
    along = [-1 if i == axis % len(shape) else 1 for i in range(len(shape))]
    wide = [a.astype(np.float64).reshape(along if a.ndim else ()) for a in (scale, point)]
    same(found, (wide[0] * (q - wide[1])).astype(dtype))


# --- blockwise ----------------------------------------------------------------

STORED = {
    DType.INT4: (np.int8, 4),
    DType.UINT4: (np.uint8, 4),
    DType.INT8: (np.int8, 8),
    DType.UINT8: (np.uint8, 8),
}


@few
@given(st.data(), shapes, st.sampled_from(sorted(STORED, key=str)), floats)
def test_blockwise_is_coremltools(data: Any, blocks: tuple[int, ...], stored: DType, dtype: Any) -> None:
    shape = tuple(b * data.draw(st.integers(1, 3)) for b in blocks)
    container, bits = STORED[stored]
    q, scale = numbers(data, shape, container, bits), numbers(data, blocks, dtype)
    parameters = {"data": Literal.of(q, stored), "scale": literal(scale)}
    offset: Any = None
    kind = data.draw(st.sampled_from(["none", "same", "float"]))
    if kind != "none":
        offset = numbers(data, blocks, container if kind == "same" else dtype, bits)
        parameters["offset"] = Literal.of(offset, stored) if kind == "same" else literal(offset)
    (found,) = expand("constexpr_blockwise_shift_scale", "ios18", **parameters)
    wide = np.zeros(blocks) if offset is None else offset.astype(np.float64)
    block = np.ones([s // b for s, b in zip(shape, blocks, strict=True)])
    exact = (q - np.kron(wide, block)) * np.kron(scale.astype(np.float64), block)
    # coremltools subtracts and multiplies in the dtype of the scale, we in fp32 with one rounding.
    eps, wide_eps, steps = np.finfo(dtype).eps, np.finfo(np.float32).eps, 512 * np.abs(np.kron(scale, block))
    close(ios18.constexpr_blockwise_shift_scale.decompress(q, scale, offset), exact, 2 * eps * steps)
    close(found, exact, 0.51 * eps * np.abs(exact) + wide_eps * steps)


def close(found: Array, exact: Array, error: Array) -> None:
    """`found` is at most `error` away, or half the smallest fp16 number."""
    assert np.all(np.abs(found.astype(np.float64) - exact) <= error + 2.0**-25)


def test_blocks_of_gguf_q8_0_and_q4_1_are_exact() -> None:
    """Q8_0 is `d * q` in blocks of 32, Q4_1 `d * q + m`, that is `d * (q - (-m / d))`."""
    rng = np.random.default_rng(3)
    q = rng.integers(-127, 128, (4, 96)).astype(np.int8)
    d = rng.uniform(0.001, 0.1, (4, 3)).astype(np.float16)
    (found,) = expand("constexpr_blockwise_shift_scale", "ios18", data=literal(q), scale=literal(d))
    wanted = (q.reshape(4, 3, 32) * d.astype(np.float64)[..., None]).astype(np.float16)
    same(found, wanted)
    n, offset = rng.integers(0, 16, (4, 96)).astype(np.uint8), np.full((4, 3), -3.5, np.float16)
    (found,) = expand(
        "constexpr_blockwise_shift_scale", "ios18",
        data=Literal.of(n, DType.UINT4), scale=literal(d), offset=literal(offset),
    )  # fmt: skip
    same(found, ((n.reshape(4, 3, 32) + 3.5) * d.astype(np.float64)[..., None]).astype(np.float16))


# --- look-up tables -----------------------------------------------------------

ENTRIES = st.sampled_from([np.float16, np.float32, np.int8, np.uint8])
INDICES = {1: DType.UINT1, 2: DType.UINT2, 3: DType.UINT3, 4: DType.UINT4, 6: DType.UINT6, 8: DType.UINT8}


@few
@given(st.data(), shapes, st.sampled_from([1, 2, 4, 6, 8]), ENTRIES)
def test_packed_tables_are_coremltools(data: Any, shape: tuple[int, ...], bits: int, dtype: Any) -> None:
    indices, lut = numbers(data, shape, np.uint8, bits), numbers(data, (1 << bits,), dtype)
    packed = coremltools_utils.pack_elements_into_bits(indices.ravel(), bits)
    (found,) = expand(
        "constexpr_lut_to_dense", data.draw(st.sampled_from(["ios16", "ios17"])),
        indices=literal(packed), lut=literal(lut), shape=literal(shape, DType.UINT32),
    )  # fmt: skip
    same(found, lut[indices])
    same(found, ios16.constexpr_lut_to_dense.decompress(lut, packed, shape))


def table(data: Any, indices: tuple[int, ...], bits: int, dtype: Any) -> tuple[Array, int | None]:
    """A random table of blocks for indices of that shape, and the axis of its vectors."""
    blocks = [data.draw(st.sampled_from([n for n in range(1, d + 1) if d % n == 0])) for d in indices]
    size = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(-len(indices), len(indices) - 1)) if size > 1 else None
    return numbers(data, (*blocks, 1 << bits, size), dtype), axis


def axis_parameter(axis: int | None) -> dict[str, Literal]:
    return {} if axis is None else {"vector_axis": literal(axis, DType.INT32)}


def looked_up(indices: Array, lut: Array, axis: int) -> Array:
    """The definition, one element at a time."""
    size = lut.shape[-1]
    shape = list(indices.shape)
    shape[axis] *= size
    out = np.zeros(shape, lut.dtype)
    for at in np.ndindex(indices.shape):
        block = tuple(i * b // d for i, b, d in zip(at, lut.shape, indices.shape, strict=False))
        for k in range(size):
            to = list(at)
            to[axis] = at[axis] * size + k
            out[tuple(to)] = lut[block][indices[at], k]
    return out


@few
@given(
    st.data(), hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.sampled_from(sorted(INDICES)), ENTRIES
)
def test_tables_are_coremltools(data: Any, shape: tuple[int, ...], bits: int, dtype: Any) -> None:
    indices = numbers(data, shape, np.uint8, bits)
    lut, axis = table(data, shape, bits, dtype)
    (found,) = expand(
        "constexpr_lut_to_dense", "ios18",
        indices=Literal.of(indices, INDICES[bits]), lut=literal(lut), **axis_parameter(axis),
    )  # fmt: skip
    same(found, looked_up(indices, lut, axis or 0))
    same(found, ios18.constexpr_lut_to_dense.decompress(indices, lut, axis))


def test_the_documented_vectors() -> None:
    """Case 2 of the op's documentation: a and b are vectors of three."""
    indices = Literal.of([[[0, 0], [1, 0]], [[1, 1], [0, 0]]], DType.UINT1)
    lut = literal(np.array([1, 2, 3, 11, 12, 13], np.int8).reshape(1, 1, 1, 2, 3))
    (first,) = expand(
        "constexpr_lut_to_dense", "ios18", indices=indices, lut=lut, vector_axis=literal(1, DType.INT32)
    )
    assert first[0].tolist() == [[1, 1], [2, 2], [3, 3], [11, 1], [12, 2], [13, 3]]
    (last,) = expand(
        "constexpr_lut_to_dense", "ios18", indices=indices, lut=lut, vector_axis=literal(2, DType.INT32)
    )
    assert last[0].tolist() == [[1, 2, 3, 1, 2, 3], [11, 12, 13, 1, 2, 3]]


# --- sparse -------------------------------------------------------------------


def masked(data: Any, shape: tuple[int, ...], dtype: Any, bits: int = 8) -> tuple[Array, Array]:
    """A mask with at least one 1, and as many values."""
    mask = numbers(data, shape, np.uint8, 1)
    mask.flat[0] = 1
    return mask, numbers(data, (int(mask.sum()),), dtype, bits)


@few
@given(st.data(), shapes, ENTRIES)
def test_packed_sparse_is_coremltools(data: Any, shape: tuple[int, ...], dtype: Any) -> None:
    mask, values = masked(data, shape, dtype)
    packed = np.packbits(mask.ravel(), bitorder="little")
    (found,) = expand(
        "constexpr_sparse_to_dense", "ios16",
        nonzero_data=literal(values), mask=literal(packed), shape=literal(shape, DType.UINT32),
    )  # fmt: skip
    wanted = np.zeros(shape, dtype)
    wanted[mask.astype(bool)] = values
    same(found, wanted)


@few
@given(st.data(), shapes, st.sampled_from([*STORED, DType.FP16, DType.FP32]))
def test_sparse_is_coremltools(data: Any, shape: tuple[int, ...], dtype: DType) -> None:
    mask, values = masked(data, shape, dtype.numpy, min(dtype.bits, 8))
    (found,) = expand(
        "constexpr_sparse_to_dense", "ios18",
        nonzero_data=Literal.of(values, dtype), mask=Literal.of(mask, DType.UINT1),
    )  # fmt: skip
    same(found, ios18.constexpr_sparse_to_dense.decompress(values, mask))


@few
@given(
    st.data(), hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), st.sampled_from(sorted(INDICES)), ENTRIES
)
def test_sparse_tables_are_dense_tables_at_the_ones(data: Any, shape: Any, bits: int, dtype: Any) -> None:
    mask, indices = masked(data, shape, np.uint8, bits)
    lut, axis = table(data, shape, bits, dtype)
    found = expand(
        "constexpr_lut_to_sparse", "ios18",
        indices_mask=Literal.of(mask, DType.UINT1), indices_nonzero_data=Literal.of(indices, INDICES[bits]),
        lut=literal(lut), **axis_parameter(axis),
    )  # fmt: skip
    dense = np.zeros(shape, np.uint8)
    dense[mask != 0] = indices
    grown = np.repeat(mask, lut.shape[-1], axis or 0)
    same(found[0], grown)
    same(found[1], looked_up(dense, lut, axis or 0)[grown != 0])
    wanted = ios18.constexpr_lut_to_sparse.decompress(mask, indices, lut, axis)
    same(found[0], wanted[0])
    same(found[1], wanted[1])


@few
@given(st.data(), shapes, st.sampled_from([np.int8, np.uint8]))
def test_sparse_blocks_are_coremltools(data: Any, blocks: tuple[int, ...], stored: Any) -> None:
    shape = tuple(b * data.draw(st.integers(1, 3)) for b in blocks)
    mask, values = masked(data, shape, stored)
    scale, offset = numbers(data, blocks, np.float32), numbers(data, blocks, stored)
    found = expand(
        "constexpr_sparse_blockwise_shift_scale", "ios18",
        data_mask=Literal.of(mask, DType.UINT1), nonzero_data=literal(values),
        scale=literal(scale), offset=literal(offset),
    )  # fmt: skip
    wanted = ios18.constexpr_sparse_blockwise_shift_scale.decompress(mask, values, scale, offset)
    same(found[0], mask)
    np.testing.assert_array_equal(found[1], wanted[1])


# --- cast, chains, bad input --------------------------------------------------


@pytest.mark.parametrize("opset", ["ios16", "ios18"])
def test_cast_widens_exactly(opset: str) -> None:
    values = np.array([0.0, -0.0, 2.0**-24, 65504, np.inf, -np.inf, 1 / 3], np.float16)
    (found,) = expand("constexpr_cast", opset, source_val=literal(values), output_dtype=literal("fp32"))
    assert found.tobytes() == values.astype(np.float32).tobytes()


def test_a_chain_survives_text_and_folds_in_order() -> None:
    builder = Builder("main")
    mask, values = builder.ops(
        "constexpr_sparse_blockwise_shift_scale", outputs=2,
        data_mask=Literal.of([[1, 0, 1], [0, 1, 0]], DType.UINT1),
        nonzero_data=Literal.of([3, -4, 5], DType.INT4),
        scale=np.array([[0.5], [2.0]], np.float16),
    )  # fmt: skip
    weight = builder.op("constexpr_sparse_to_dense", nonzero_data=values, mask=mask)
    x = builder.input("x", DType.FP16, (4, 3))
    function = builder.finish({"y": builder.op("linear", x=x, weight=weight)})
    program = parse(print_program(Program({"main": function})))
    known: dict[str, Array] = {}

    def read(operand: Any) -> Array:
        return operand.array if isinstance(operand, Literal) else known[operand.name]

    for op in program.functions["main"].ops[:2]:
        known.update(zip((v.name for v in op.outputs), fold(op, read), strict=True))
    assert known[weight.name].tolist() == [[1.5, 0, -2.0], [0, 10.0, 0]]


WRONG = [
    ("constexpr_affine_dequantize", "ios16", {
        "quantized_data": literal(np.zeros((2, 3), np.int8)), "scale": literal(np.ones(2, np.float16)),
        "zero_point": literal(0, DType.INT8), "axis": literal(1, DType.INT32),
    }),
    ("constexpr_lut_to_dense", "ios16", {
        "indices": literal(np.zeros(2, np.uint8)), "lut": literal(np.ones(3, np.float16)),
        "shape": literal([8], DType.UINT32),
    }),
    ("constexpr_lut_to_dense", "ios16", {
        "indices": literal(np.zeros(3, np.uint8)), "lut": literal(np.ones(4, np.float16)),
        "shape": literal([8], DType.UINT32),
    }),
    ("constexpr_lut_to_dense", "ios18", {
        "indices": Literal.of([0, 1], DType.UINT2), "lut": literal(np.ones((1, 2, 1), np.float16)),
    }),
    ("constexpr_lut_to_dense", "ios18", {
        "indices": Literal.of([0, 1], DType.UINT1), "lut": literal(np.ones((1, 2, 2), np.float16)),
    }),
    ("constexpr_sparse_to_dense", "ios16", {
        "nonzero_data": literal(np.ones(2, np.float16)), "mask": literal([7], DType.UINT8),
        "shape": literal([3], DType.UINT32),
    }),
    ("constexpr_sparse_to_dense", "ios16", {
        "nonzero_data": literal(np.ones(2, np.float16)), "mask": literal([9], DType.UINT8),
        "shape": literal([3], DType.UINT32),
    }),
    ("constexpr_sparse_to_dense", "ios18", {
        "nonzero_data": literal(np.ones(2, np.float16)), "mask": Literal.of([1, 0, 0], DType.UINT1),
    }),
    ("constexpr_blockwise_shift_scale", "ios18", {
        "data": literal(np.ones((2, 3), np.int8)), "scale": literal(np.ones((2, 2), np.float16)),
    }),
    ("constexpr_blockwise_shift_scale", "ios18", {
        "data": literal(np.ones((2, 3), np.int8)), "scale": literal(np.ones((2, 1), np.float16)),
        "offset": literal(np.ones((2, 1), np.uint8)),
    }),
    ("constexpr_cast", "ios16", {
        "source_val": literal(np.ones(2, np.float16)), "output_dtype": literal("fp16"),
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "opset", "parameters"), WRONG, ids=[f"{w[0]}-{i}" for i, w in enumerate(WRONG)]
)
def test_what_coremltools_refuses_is_refused(kind: str, opset: str, parameters: dict[str, Literal]) -> None:
    with pytest.raises((ValueError, AssertionError, NotImplementedError)):
        theirs(kind, parameters, opset)
    with pytest.raises(InputError):
        ours(kind, parameters, opset)


def test_a_mask_that_the_type_rule_could_not_read_is_counted_when_folded() -> None:
    op = Op(
        "constexpr_sparse_to_dense",
        {"nonzero_data": literal(np.ones(2, np.float16)), "mask": Literal.of([1, 1, 1], DType.UINT1)},
        (),
    )
    with pytest.raises(InputError, match="3 ones for 2 values"):
        fold(op, lambda operand: operand.array)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="'mask' is missing"):
        fold(Op(op.kind, {"nonzero_data": op.inputs["nonzero_data"]}, ()), lambda operand: operand.array)  # type: ignore[union-attr]
