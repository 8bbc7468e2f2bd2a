"""Every storage type against the `gguf` package, bit for bit in float32, then rounded once to float16."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import GGMLType, GGUFFile, TensorInfo
from anex.formats.gguf.dequant import dequantise

INTEGERS = {GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64}
UNREAD = {GGMLType.Q8_1, GGMLType.Q8_K, GGMLType.Q1_0, GGMLType.Q2_0} | INTEGERS
PLAIN = {GGMLType.F32: np.float32, GGMLType.F16: np.float16, GGMLType.F64: np.float64}
BLOCKED = [t for t in GGMLType if t not in UNREAD and t not in PLAIN]

# Byte positions of the float16 scales in a block (ggml-common.h); types whose
# scales are bytes or spread over nibbles take any bits.
SCALES = {
    GGMLType.Q4_0: (0,), GGMLType.Q4_1: (0, 2), GGMLType.Q5_0: (0,), GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,), GGMLType.Q2_K: (80, 82), GGMLType.Q3_K: (108,), GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2), GGMLType.Q6_K: (208,), GGMLType.IQ2_XXS: (0,), GGMLType.IQ2_XS: (0,),
    GGMLType.IQ3_XXS: (0,), GGMLType.IQ1_S: (0,), GGMLType.IQ4_NL: (0,), GGMLType.IQ3_S: (0,),
    GGMLType.IQ2_S: (0,), GGMLType.IQ4_XS: (0,), GGMLType.TQ1_0: (52,), GGMLType.TQ2_0: (64,),
}  # fmt: skip


def stored(kind: GGMLType, rows: int, blocks: int, size: float = 0.01) -> np.ndarray:
    """Random blocks whose scales are of the order of `size`, zeros and subnormals among them."""
    rng = np.random.default_rng(kind.value)
    raw = rng.integers(0, 256, (rows * blocks, kind.block_bytes), dtype=np.uint8)
    if kind is GGMLType.BF16:
        raw = rng.normal(0, 1, rows * blocks).astype(ml_dtypes.bfloat16).view(np.uint8).reshape(raw.shape)
    for position in SCALES.get(kind, ()):
        scale = rng.normal(0, size, len(raw)).astype(np.float16)
        scale[::7], scale[1::7], scale[2::7] = 0.0, -0.0, 2.0**-24
        raw[:, position : position + 2] = scale.view(np.uint8).reshape(-1, 2)
    if kind is GGMLType.MXFP4:
        raw[:, 0] = rng.integers(110, 130, len(raw))  # exponents around 2**0
    return raw.reshape(rows, blocks * kind.block_bytes)


def bits(array: np.ndarray) -> np.ndarray:
    """The bit pattern, every NaN counted as one."""
    plain = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return plain.view(f"u{array.itemsize}")


def test_sizes_equal_the_package() -> None:
    for number, sizes in GGML_QUANT_SIZES.items():
        kind = GGMLType(number.value)
        assert kind.name == number.name
        # The package still has Q8_1 with float32 scales; ggml-common.h has two float16: 36 bytes.
        if kind is not GGMLType.Q8_1:
            assert (kind.block, kind.block_bytes) == tuple(sizes)


@pytest.mark.parametrize("kind", BLOCKED, ids=lambda k: k.name)
def test_equals_the_package(kind: GGMLType) -> None:
    raw = stored(kind, rows=5, blocks=3)
    expected = quants.dequantize(raw, GGMLQuantizationType(kind.value))
    found = dequantise(raw, kind, np.dtype(np.float32))
    assert found.shape == (5, 3 * kind.block)
    assert np.array_equal(bits(found), bits(expected))
    if not np.isnan(expected).any() and np.abs(expected).max() < 65504:
        half = dequantise(raw, kind, np.dtype(np.float16))
        assert np.array_equal(half.view(np.uint16), expected.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("kind", [GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q6_K])
def test_own_kernels_over_more_than_one_slab(kind: GGMLType) -> None:
    raw = stored(kind, rows=3, blocks=(1 << 16) // kind.block + 1)
    expected = quants.dequantize(raw, GGMLQuantizationType(kind.value))
    assert np.array_equal(dequantise(raw, kind, np.dtype(np.float32)), expected)
    assert np.array_equal(dequantise(raw, kind, np.dtype(np.float16)), expected.astype(np.float16))


def test_both_ways_of_float_16_rounding_are_covered() -> None:
    # Ties go to even, subnormals are kept: 1 + 2**-11, 1 + 3*2**-11, 2**-25, 3*2**-25.
    values = np.array([[1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 3 * 2.0**-25, -0.0]], np.float32)
    half = dequantise(values.view(np.uint8), GGMLType.F32, np.dtype(np.float16))
    assert half.tolist() == [[1.0, 1 + 2.0**-9, 0.0, 2.0**-23, 0.0]]
    assert np.signbit(half[0, 4])


@pytest.mark.parametrize("kind", PLAIN, ids=lambda k: k.name)
def test_plain_types(kind: GGMLType) -> None:
    values = np.array([[0.5, -1.25, 65504.0], [2.0**-24, np.inf, np.nan]], PLAIN[kind])
    for dtype in (np.float32, np.float16):
        found = dequantise(values.view(np.uint8), kind, np.dtype(dtype))
        assert np.array_equal(found, values.astype(dtype), equal_nan=True)
        assert np.shares_memory(found, values) == (PLAIN[kind] is dtype)


class _File(GGUFFile):
    """A file of one tensor that never was on a disk."""

    def __init__(self, raw: np.ndarray, kind: GGMLType) -> None:
        width = raw.shape[1] // kind.block_bytes * kind.block
        info = TensorInfo("w", (raw.shape[0], width), kind, 0, raw.nbytes, Path("m.gguf"))
        self.path, self.tensors, self._raw = info.file, {"w": info}, raw

    def raw(self, tensor: str | TensorInfo) -> np.ndarray:
        return self._raw


@pytest.mark.parametrize(
    "kind", [GGMLType.F32, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q5_1], ids=lambda k: k.name
)
def test_numbers_beyond_float_16_are_refused_by_name(kind: GGMLType) -> None:
    if kind is GGMLType.F32:
        raw = np.array([[1.0, 65520.0]], np.float32).view(np.uint8)
    elif kind is GGMLType.BF16:
        raw = np.array([[1.0, -65536.0]], ml_dtypes.bfloat16).view(np.uint8)
    else:
        raw = np.full((1, kind.block_bytes), 0x7F, np.uint8)
        raw[:, :4] = np.array([60000.0, 0.0], np.float16).view(np.uint8)
    file = _File(raw, kind)
    with pytest.raises(InputError, match="beyond the range of float16") as caught:
        file.rows("w", 0, 1, np.float16)
    assert caught.value.where == "m.gguf: tensor 'w'"
    assert np.isfinite(file.rows("w", 0, 1, np.float32)).all()


@pytest.mark.parametrize("kind", sorted(UNREAD), ids=lambda k: k.name)
def test_types_without_a_float_form_are_refused_by_name(kind: GGMLType) -> None:
    file = _File(np.zeros((1, kind.block_bytes), np.uint8), kind)
    with pytest.raises(UnsupportedError, match=kind.name) as caught:
        file.rows("w", 0, 1)
    assert caught.value.where == "m.gguf: tensor 'w'"
