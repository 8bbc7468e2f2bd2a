"""The formulas of ops whose documentation or tests in coremltools 9.0 show numbers give those numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anex.engines.conformance import expected
from anex.mil.examples import Example
from anex.mil.ir import Literal

const = Literal.of


def one(kind: str, **args: Any) -> np.ndarray:
    return expected(Example(kind, "documented", args))[0]


GRIDS = {
    "UNALIGN_CORNERS": ([0, 0.1, 0.5, 0.9, 1], [0, 0, 1 / 3, 2 / 3, 1, 1]),
    "STRICT_ALIGN_CORNERS": ([0, 0.25, 0.5, 0.75, 1], [0, 0.2, 0.4, 0.6, 0.8, 1]),
    "ALIGN_CORNERS": ([0, 0.25, 0.5, 0.75, 1], [0, 0.2, 0.4, 0.6, 0.8, 1]),
    "DEFAULT": ([0, 0.4, 0.8, 1, 1], [0, 1 / 3, 2 / 3, 1, 1, 1]),
    "OFFSET_CORNERS": ([0.1, 0.3, 0.5, 0.7, 0.9], [1 / 12, 0.25, 5 / 12, 7 / 12, 0.75, 11 / 12]),
}


@pytest.mark.parametrize("mode", sorted(GRIDS))
def test_bilinear_grids(mode: str) -> None:
    x = np.array([[[0, 1]]], np.float32)
    for points in GRIDS[mode]:
        size = const(len(points))
        found = one("resize_bilinear", x=x, target_size_width=size, sampling_mode=const(mode))
        np.testing.assert_allclose(found[0, 0], points, atol=1e-12)
    aligned = {"STRICT_ALIGN_CORNERS": True, "UNALIGN_CORNERS": False}.get(mode)
    if aligned is not None:
        found = one("upsample_bilinear", x=x, scale_factor_width=const(3), align_corners=const(aligned))
        np.testing.assert_allclose(found[0, 0], GRIDS[mode][1], atol=1e-12)


def test_nearest_neighbours() -> None:
    x = np.array([0.37, 6.17], np.float32).reshape(1, 1, 2, 1)
    found = one("resize_nearest_neighbor", x=x, target_size_height=const(2), target_size_width=const(3))
    np.testing.assert_array_equal(found.ravel().astype(np.float32), np.repeat(x.ravel(), 3))
    row = np.array([[[1.5, 2.5, 3.5]]], np.float32)
    found = one("upsample_nearest_neighbor", x=row, scale_factor_width=const(2))
    assert found.ravel().tolist() == [1.5, 1.5, 2.5, 2.5, 3.5, 3.5]


def test_depth_and_space() -> None:
    """depth_to_space has TensorFlow's order of channels, pixel_shuffle PyTorch's."""
    x = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    block: dict[str, Any] = {"block_size": const(2)}
    assert one("depth_to_space", x=x, **block).tolist() == [[[[0, 2], [4, 6]], [[1, 3], [5, 7]]]]
    assert one("pixel_shuffle", x=x, upscale_factor=const(2)).tolist() == [
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    ]
    image = np.array([[[[7, 9], [4, 6]]]], np.float32)
    assert one("space_to_depth", x=image, **block).ravel().tolist() == [7, 9, 4, 6]


def test_batch_and_space() -> None:
    x = np.arange(1, 17, dtype=np.float32).reshape(2, 1, 2, 4)
    found = one("space_to_batch", x=x, block_shape=const([2, 2]), paddings=const([[0, 0], [2, 0]]))
    assert found.reshape(8, 3).tolist() == [
        [0, 1, 3], [0, 9, 11], [0, 2, 4], [0, 10, 12], [0, 5, 7], [0, 13, 15], [0, 6, 8], [0, 14, 16],
    ]  # fmt: skip
    back = one(
        "batch_to_space", x=found.astype(np.float32), block_shape=const([2, 2]), crops=const([[0, 0], [2, 0]])
    )
    np.testing.assert_array_equal(back, x)


def test_scatter_adds() -> None:
    data = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    updates = np.array([[5, 6, 7], [8, 9, 10]], np.float32)
    found = one("scatter", data=data, indices=np.array([1, 0], np.int32), updates=updates, mode=const("add"))
    assert found.tolist() == [[9, 11, 13], [9, 11, 13]]


def test_band_parts() -> None:
    x = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    assert one("band_part", x=x, lower=const(0)).tolist() == np.triu(x).tolist()
    assert one("band_part", x=x, upper=const(0)).tolist() == np.tril(x).tolist()
