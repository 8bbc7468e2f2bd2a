"""Expands compressed constants: every constexpr op, as numpy.

A constexpr op is not computed at run time.  Whoever loads a program folds it
once (`fold`) and goes on with a dense constant, so these ops have no lowering.
Both serialised forms are read: parameters as attributes (up to iOS17) and as
inputs (iOS18).

Shift-and-scale is computed in fp32 and rounded once to the type of the scale.
With an fp16 scale coremltools computes its blockwise form in fp16 instead; an
8-bit integer times an fp16 number is exact in fp32, so ours is never further
from the value that the definition gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.errors import InputError
from anex.mil.ir import Op, Operand

Array = np.ndarray[Any, np.dtype[Any]]
Read = Callable[[Operand], Array]


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of one op as arrays, read when asked for."""

    op: Op
    bound: Mapping[str, Any]
    read: Read

    def __contains__(self, name: str) -> bool:
        return name in self.bound

    def __getitem__(self, name: str) -> Array:
        if name not in self.bound:
            raise self.error(f"parameter '{name}' is missing")
        return self.read(self.bound[name])

    def optional(self, name: str) -> Array | None:
        return None if name not in self.bound else self[name]

    def error(self, what: str) -> InputError:
        return InputError(f"{self.op.kind}: {what}", where=self.op.name)


def fold(op: Op, read: Read) -> tuple[Array, ...]:
    """The dense values of a constexpr op, one array for each of its outputs.

    Args:
        op: An op of one of `KINDS` that its type rule accepts.
        read: Gives the numbers behind an operand, in the shape of its type,
            sub-byte types one element to a byte: of a literal, immediate or
            in the blob file, or of a value that was folded before.

    Raises:
        InputError: A parameter is missing, or counts do not fit.
    """
    bound = {name: value for name, value in op.attributes.items() if name != "name"}
    values = _KINDS[op.kind](_Parameters(op, bound | dict(op.inputs), read))
    return values if isinstance(values, tuple) else (values,)


# --- scale and offset ---------------------------------------------------------


def _spread(array: Array, shape: tuple[int, ...]) -> Array:
    """One entry for each block repeated over its block, in all dimensions."""
    for axis, (size, blocks) in enumerate(zip(shape, array.shape, strict=False)):
        if size != blocks:
            array = np.repeat(array, size // blocks, axis=axis)
    return array


def _along(array: Array, rank: int, axis: int) -> Array:
    """A scalar or a vector laid along one axis of `rank` dimensions."""
    if array.ndim == 0:
        return array
    return array.reshape(tuple(-1 if i == axis else 1 for i in range(rank)))


def _shift_scale(data: Array, scale: Array, offset: Array | None) -> Array:
    wide = data.astype(np.float32)
    if offset is not None:
        wide -= offset.astype(np.float32)
    wide *= scale.astype(np.float32)
    return wide.astype(scale.dtype, copy=False)


def _affine(p: _Parameters) -> Array:
    data = p["quantized_data"]
    axis = int(p["axis"]) % data.ndim
    scale, point = (_along(p[name], data.ndim, axis) for name in ("scale", "zero_point"))
    return _shift_scale(data, scale, point)


def _blockwise(p: _Parameters) -> Array:
    data, offset = p["data"], p.optional("offset")
    return _dequantized(data, p["scale"], offset)


def _dequantized(data: Array, scale: Array, offset: Array | None) -> Array:
    return _shift_scale(
        data, _spread(scale, data.shape), None if offset is None else _spread(offset, data.shape)
    )


# --- look-up tables -----------------------------------------------------------


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """`count` numbers of `bits` bits each, packed from the lowest bit up."""
    stream = np.unpackbits(packed.view(np.uint8), bitorder="little", count=bits * count)
    return np.packbits(stream.reshape(count, bits), axis=1, bitorder="little")[:, 0]


def _looked_up(indices: Array, lut: Array, vector_axis: int) -> Array:
    """Replace each index by the vector of its block's table, laid along `vector_axis`.

    `lut` has shape `[*blocks, entries, vector size]`.
    """
    blocks, (entries, size) = lut.shape[:-2], lut.shape[-2:]
    table = lut.reshape(-1, size)
    number = np.arange(math.prod(blocks), dtype=np.intp).reshape(blocks)
    rows = _spread(number, indices.shape) * entries + indices
    found = table[rows]
    moved = np.moveaxis(found, -1, vector_axis + 1)
    shape = list(indices.shape)
    shape[vector_axis] *= size
    dense: Array = moved.reshape(shape)
    return dense


def _lut(p: _Parameters) -> Array:
    lut = p["lut"]
    if "shape" in p:
        shape = tuple(int(d) for d in p["shape"])
        return lut[_unpacked(p["indices"], len(lut).bit_length() - 1, math.prod(shape))].reshape(shape)
    indices = p["indices"]
    return _looked_up(indices, lut, _vector_axis(p, indices.ndim))


def _vector_axis(p: _Parameters, rank: int) -> int:
    axis = p.optional("vector_axis")
    return 0 if axis is None else int(axis) % rank


# --- sparse -------------------------------------------------------------------


def _scattered(p: _Parameters, values: Array, mask: Array) -> Array:
    if int(np.count_nonzero(mask)) != values.size:
        raise p.error(f"the mask has {np.count_nonzero(mask)} ones for {values.size} values")
    dense = np.zeros(mask.shape, values.dtype)
    dense[mask] = values
    return dense


def _sparse(p: _Parameters) -> Array:
    mask, values = p["mask"], p["nonzero_data"]
    if "shape" not in p:
        return _scattered(p, values, mask != 0)
    shape = tuple(int(d) for d in p["shape"])
    bits = np.unpackbits(mask, bitorder="little", count=math.prod(shape))
    return _scattered(p, values, bits.astype(bool).reshape(shape))


def _lut_sparse(p: _Parameters) -> tuple[Array, Array]:
    mask, lut = p["indices_mask"], p["lut"]
    axis = _vector_axis(p, mask.ndim)
    indices = _scattered(p, p["indices_nonzero_data"], mask != 0)
    grown = np.repeat(mask, lut.shape[-1], axis=axis)
    return grown, _looked_up(indices, lut, axis)[grown != 0]


def _sparse_blockwise(p: _Parameters) -> tuple[Array, Array]:
    mask = p["data_mask"]
    data = _scattered(p, p["nonzero_data"], mask != 0)
    return mask, _dequantized(data, p["scale"], p.optional("offset"))[mask != 0]


# --- cast ---------------------------------------------------------------------


def _cast(p: _Parameters) -> Array:
    return p["source_val"].astype(np.float32)


_KINDS: dict[str, Callable[[_Parameters], Array | tuple[Array, ...]]] = {
    "constexpr_affine_dequantize": _affine,
    "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_cast": _cast,
    "constexpr_lut_to_dense": _lut,
    "constexpr_lut_to_sparse": _lut_sparse,
    "constexpr_sparse_blockwise_shift_scale": _sparse_blockwise,
    "constexpr_sparse_to_dense": _sparse,
}

KINDS = frozenset(_KINDS)
"""The ops that `fold` expands; they need no lowering."""
