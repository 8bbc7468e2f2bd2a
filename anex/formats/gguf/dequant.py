"""Stored blocks to numbers: own code for the common types, the `gguf` package for all others.

Results equal the `gguf` package's bit for bit in float32; float16 is that,
rounded once to nearest even.  The own kernels read the blocks as records and
work in slabs that stay in the processor's cache.  Most of the time to float16
is numpy's cast; bit tricks and lookup tables in its place were no faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anex.errors import UnsupportedError
from anex.formats.gguf.types import Array, GGMLType

_SLAB = 1 << 16  # elements: 256 KB of float32, well inside a second-level cache

Kernel = Callable[[Any, Array], None]
"""Writes the numbers of blocks [n] (records) to float32 [n, block]."""


def dequantise(raw: Array, kind: GGMLType, dtype: np.dtype[Any]) -> Array:
    """The numbers of stored rows.

    Args:
        raw: uint8 of shape [rows, bytes of a row], C-contiguous.
        kind: How they are stored.
        dtype: float32 or float16.

    Returns:
        [rows, width] of `dtype`: a view where the file already holds that,
        else a new array.

    Raises:
        UnsupportedError: The type has no float form here.
        FloatingPointError: A finite number is beyond the range of `dtype`.
    """
    plain = _PLAIN.get(kind)
    with np.errstate(all="ignore", over="raise"):
        if plain is not None:
            return _cast(plain(raw), dtype)
        out = np.empty((raw.shape[0], raw.shape[1] // kind.block_bytes * kind.block), dtype)
        blocks = raw.reshape(-1, kind.block_bytes)
        kernel = _KERNELS.get(kind)
        _slabs(blocks, out.reshape(-1, kind.block), kernel or _package_kernel(kind), _LAYOUTS.get(kind))
    return out


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    return values.astype(dtype, copy=False)


def _slabs(blocks: Array, out: Array, kernel: Kernel, layout: np.dtype[Any] | None) -> None:
    records = blocks if layout is None else blocks.view(layout)[:, 0]
    block = out.shape[1]
    step = max(1, _SLAB // block)
    direct = out.dtype == np.float32
    scratch = None if direct else np.empty((step, block), np.float32)
    for start in range(0, len(out), step):
        target = out[start : start + step]
        wide = target if scratch is None else scratch[: len(target)]
        kernel(records[start : start + step], wide)
        if not direct:
            np.copyto(target, wide, casting="same_kind")


def _bf16(raw: Array) -> Array:
    return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


_PLAIN: dict[GGMLType, Callable[[Array], Array]] = {
    GGMLType.F32: lambda raw: raw.view(np.float32),
    GGMLType.F16: lambda raw: raw.view(np.float16),
    GGMLType.F64: lambda raw: raw.view(np.float64),
    GGMLType.BF16: _bf16,
}


def _wide(halves: Array) -> Array:
    """Float16 scales [n] as float32 [n, 1]."""
    return halves.astype(np.float32)[:, None]


def _nibbles(q: Array, out: Array, group: int) -> None:
    """Low nibbles of each `group` bytes, then their high nibbles, as float32."""
    source = q.reshape(len(q), -1, group)
    pairs = out.reshape(len(q), -1, 2, group)
    pairs[:, :, 0] = source & np.uint8(15)
    pairs[:, :, 1] = source >> np.uint8(4)


def _q4_0(b: Any, out: Array) -> None:
    _nibbles(b["q"], out, 16)
    out -= np.float32(8)
    out *= _wide(b["d"])


def _q4_1(b: Any, out: Array) -> None:
    _nibbles(b["q"], out, 16)
    out *= _wide(b["d"])
    out += _wide(b["m"])


def _q8_0(b: Any, out: Array) -> None:
    np.multiply(b["q"], _wide(b["d"]), out=out)


def _q4_k(b: Any, out: Array) -> None:
    # Eight 6-bit scales and eight 6-bit minima in twelve bytes, see get_scale_min_k4 of ggml-quants.c.
    packed = b["s"].reshape(len(b), 3, 4)
    low, minimum, high = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=1)
    minima = np.concatenate([minimum & 63, (high >> 4) | ((minimum >> 2) & 48)], axis=1)
    _nibbles(b["q"], out, 32)
    groups = out.reshape(len(b), 8, 32)
    groups *= (_wide(b["d"]) * scales.astype(np.float32))[:, :, None]
    groups -= (_wide(b["m"]) * minima.astype(np.float32))[:, :, None]


def _q6_k(b: Any, out: Array) -> None:
    count = len(b)
    low = b["l"].reshape(count, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    high = b["h"].reshape(count, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high &= np.uint8(3)
    high <<= np.uint8(4)
    low &= np.uint8(15)
    low.reshape(high.shape)[...] |= high
    out.reshape(low.shape)[...] = low
    out -= np.float32(32)
    groups = out.reshape(count, 16, 16)
    groups *= (_wide(b["d"]) * b["s"].astype(np.float32))[:, :, None]


_LAYOUTS: dict[GGMLType, np.dtype[Any]] = {
    GGMLType.Q4_0: np.dtype([("d", "<f2"), ("q", "u1", 16)]),
    GGMLType.Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]),
    GGMLType.Q8_0: np.dtype([("d", "<f2"), ("q", "i1", 32)]),
    GGMLType.Q4_K: np.dtype([("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128)]),
    GGMLType.Q6_K: np.dtype([("l", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), ("d", "<f2")]),
}

_KERNELS: dict[GGMLType, Kernel] = {
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q6_K: _q6_k,
}


def _package_kernel(kind: GGMLType) -> Kernel:
    """A kernel out of the `gguf` package, imported when first needed."""
    from gguf import GGMLQuantizationType, quants

    try:
        number = GGMLQuantizationType(kind.value)
        quants.dequantize(np.zeros((1, kind.block_bytes), np.uint8), number)
    except (ValueError, NotImplementedError) as error:
        raise UnsupportedError(f"reading ggml type {kind.name} as floating point") from error

    def kernel(blocks: Any, out: Array) -> None:
        # As one row: the package walks over rows in small groups.
        out[...] = quants.dequantize(blocks.reshape(1, -1), number).reshape(out.shape)

    return kernel
