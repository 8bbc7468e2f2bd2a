"""Formulas of the ops that move data, convert it or find it by index.

Written from the text of coremltools' op documentation; where that has a
formula for one element, the formula stands here as a loop over elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anex.engines.conformance.registry import Arguments, Array, formula
from anex.mil import DType

# --- shape --------------------------------------------------------------------


@formula("reshape", "reshape_like", "expand_dims", "squeeze", "flatten2d")
def _same_elements(a: Arguments) -> Array:
    return a["x"].reshape(a.results[0].dims)


@formula("transpose")
def _transpose(a: Arguments) -> Array:
    return np.transpose(a["x"], a.const("perm"))


@formula("concat")
def _concat(a: Arguments) -> Array:
    values = a.many("values")
    if values[0].ndim == 0:
        return np.array(values)
    axis = a.const("axis") % values[0].ndim
    if not a.const("interleave", False):
        return np.concatenate(values, axis)
    out = np.zeros(a.results[0].dims, values[0].dtype)
    for i, value in enumerate(values):
        out[(slice(None),) * axis + (slice(i, None, len(values)),)] = value
    return out


@formula("stack")
def _stack(a: Arguments) -> Array:
    return np.stack(a.many("values"), a.const("axis"))


@formula("split")
def _split(a: Arguments) -> tuple[Array, ...]:
    x, axis = a["x"], a.const("axis")
    sizes = a.const("split_sizes") or [x.shape[axis] // a.const("num_splits")] * a.const("num_splits")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


@formula("tile")
def _tile(a: Arguments) -> Array:
    return np.tile(a["x"], a.const("reps"))


@formula("pad")
def _pad(a: Arguments) -> Array:
    x, amounts = a["x"], a.const("pad")
    pairs = [(0, 0)] * (x.ndim - len(amounts) // 2) + list(zip(amounts[::2], amounts[1::2], strict=True))
    mode = a.const("mode", "constant")
    if mode == "constant":
        return np.pad(x, pairs, constant_values=a.const("constant_val", 0.0))
    return np.pad(x, pairs, mode="edge" if mode == "replicate" else "reflect")


@formula("reverse")
def _reverse(a: Arguments) -> Array:
    return np.flip(a["x"], a.const("axes"))


@formula("reverse_sequence")
def _reverse_sequence(a: Arguments) -> Array:
    seq, batch = a.const("seq_axis", 0), a.const("batch_axis", 0)
    x = np.moveaxis(a["x"], (batch, seq), (0, 1)).copy()
    for row, length in zip(x, a["lengths"], strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(x, (0, 1), (batch, seq))


@formula("shape")
def _shape(a: Arguments) -> Array:
    return np.array(a["x"].shape)


# --- slices -------------------------------------------------------------------


def _slices(a: Arguments) -> tuple[slice | int, ...]:
    """numpy's index for begin, end, stride and masks."""
    rank = a["x"].ndim
    columns = [
        a.const("begin"), a.const("end"), a.const("stride", [1] * rank),
        *(a.const(name, [False] * rank) for name in ("begin_mask", "end_mask", "squeeze_mask")),
    ]  # fmt: skip
    index: list[slice | int] = []
    for begin, end, stride, from_start, to_end, squeeze in zip(*columns, strict=True):
        if squeeze:
            index.append(0 if from_start else begin)
        else:
            index.append(slice(None if from_start else begin, None if to_end else end, stride))
    return tuple(index)


@formula("slice_by_index")
def _slice_by_index(a: Arguments) -> Array:
    part: Array = a["x"][_slices(a)]
    return part


@formula("slice_update")
def _slice_update(a: Arguments) -> Array:
    out = a["x"].copy()
    out[_slices(a)] = a["update"]
    return out


@formula("slice_by_size")
def _slice_by_size(a: Arguments) -> Array:
    part = a["x"]
    for axis, (begin, size) in enumerate(zip(a.const("begin"), a.const("size"), strict=True)):
        start = begin % part.shape[axis]
        count = part.shape[axis] - start if size == -1 else size
        part = np.take(part, range(start, start + count), axis)
    return part


@formula("crop")
def _crop(a: Arguments) -> Array:
    (top, bottom), (left, right) = a.const("crop_height"), a.const("crop_width")
    height, width = a["x"].shape[-2:]
    part: Array = a["x"][..., top : height - bottom, left : width - right]
    return part


@formula("sliding_windows")
def _sliding_windows(a: Arguments) -> Array:
    axis, size, stride = a.const("axis") % a["x"].ndim, a.const("size"), a.const("stride", 1)
    windows = np.lib.stride_tricks.sliding_window_view(a["x"], size, axis)
    windows = np.moveaxis(windows, -1, axis + 1)
    part: Array = windows[(slice(None),) * axis + (slice(None, None, stride),)]
    return part


# --- indices ------------------------------------------------------------------


@formula("gather")
def _gather(a: Arguments) -> Array:
    axis, batch = a.const("axis", 0) % a["x"].ndim, a.const("batch_dims", 0)
    out = np.zeros(a.results[0].dims, a["x"].dtype)
    for at in np.ndindex(a["x"].shape[:batch]):
        out[at] = np.take(a["x"][at], a["indices"][at], axis - batch)
    return out


@formula("gather_along_axis")
def _gather_along_axis(a: Arguments) -> Array:
    axis, indices = a.const("axis", 0), a["indices"]
    out = np.zeros(indices.shape, a["x"].dtype)
    for at in np.ndindex(indices.shape):
        source = list(at)
        source[axis] = indices[at]
        out[at] = a["x"][tuple(source)]
    return out


@formula("gather_nd")
def _gather_nd(a: Arguments) -> Array:
    batch, indices = a.const("batch_dims", 0), a["indices"]
    out = np.zeros(a.results[0].dims, a["x"].dtype)
    for at in np.ndindex(indices.shape[:-1]):
        out[at] = a["x"][at[:batch] + tuple(indices[at])]
    return out


_SCATTER: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "update": lambda old, new: new,
}


def _scattered(a: Arguments, places: Iterator[tuple[Any, Any]]) -> Array:
    """`data` after one update at each (place, place of the update), in order."""
    out, combine = a["data"].copy(), _SCATTER[a.const("mode", "add")]
    for where, source in places:
        out[where] = combine(out[where], a["updates"][source])
    return out


@formula("scatter")
def _scatter(a: Arguments) -> Array:
    before = (slice(None),) * (a.const("axis", 0) % a["data"].ndim)
    return _scattered(a, (((*before, int(to)), (*before, i)) for i, to in enumerate(a["indices"])))


@formula("scatter_along_axis")
def _scatter_along_axis(a: Arguments) -> Array:
    axis = a.const("axis", 0) % a["data"].ndim
    places = np.ndindex(a["indices"].shape)
    return _scattered(a, (((*at[:axis], int(a["indices"][at]), *at[axis + 1 :]), at) for at in places))


@formula("scatter_nd")
def _scatter_nd(a: Arguments) -> Array:
    places = np.ndindex(a["indices"].shape[:-1])
    return _scattered(a, ((tuple(a["indices"][at]), at) for at in places))


def _sorted(a: Arguments) -> Array:
    """Indices in order along axis, equal elements by position."""
    x = a["x"] if a.const("ascending", False) else -a["x"]
    return np.argsort(x, axis=a.const("axis", -1), kind="stable")


@formula("argsort")
def _argsort(a: Arguments) -> Array:
    return _sorted(a)


@formula("topk")
def _topk(a: Arguments) -> tuple[Array, ...]:
    axis = a.const("axis", -1)
    count = a.results[0].dims[axis]
    order = np.take(_sorted(a), range(count), axis)
    return (np.take_along_axis(a["x"], order, axis), order)[: len(a.results)]


@formula("one_hot")
def _one_hot(a: Arguments) -> Array:
    out = np.full((*a["indices"].shape, a.const("one_hot_vector_size")), a.const("off_value", 0))
    for at in np.ndindex(a["indices"].shape):
        out[(*at, a["indices"][at])] = a.const("on_value", 1)
    return np.moveaxis(out, -1, a.const("axis", -1))


# --- generated, masks, names --------------------------------------------------


@formula("identity")
def _identity(a: Arguments) -> Array:
    return a["x"]


@formula("fill", "fill_like")
def _fill(a: Arguments) -> Array:
    return np.full(a.results[0].dims, a.const("value", 0.0))


@formula("range_1d")
def _range_1d(a: Arguments) -> Array:
    return np.array([a["start"] + i * a["step"] for i in range(a.results[0].dims[0])])


@formula("band_part")
def _band_part(a: Arguments) -> Array:
    lower, upper = a.const("lower", -1), a.const("upper", -1)
    out = a["x"].copy()
    for m, n in np.ndindex(out.shape[-2:]):
        if not ((lower < 0 or m - n <= lower) and (upper < 0 or n - m <= upper)):
            out[..., m, n] = 0
    return out


# --- element types ------------------------------------------------------------


@formula("cast")
def _cast(a: Arguments) -> Array:
    x, dtype = a["x"], a.results[0].dtype
    if dtype.value == "bool":
        return np.not_equal(x, 0)
    return x.astype(np.float64) if dtype.is_float else np.trunc(x).astype(np.int64)


def _along_axis(a: Arguments, name: str) -> Any:
    if name not in a:
        return 0
    shape = [1] * a["input"].ndim
    if a[name].ndim:
        shape[a.const("axis")] = -1
    return a[name].reshape(shape)


@formula("quantize")
def _quantize(a: Arguments) -> Array:
    low, high = (-128, 127) if a.results[0].dtype is DType.INT8 else (0, 255)
    steps: Array = np.rint(a["input"] / _along_axis(a, "scale")) + _along_axis(a, "zero_point")
    return np.clip(steps, low, high).astype(np.int64)


@formula("dequantize")
def _dequantize(a: Arguments) -> Array:
    values: Array = _along_axis(a, "scale") * (a["input"] - _along_axis(a, "zero_point")).astype(np.float64)
    return values


# --- resizing -----------------------------------------------------------------


@formula("resize_nearest_neighbor")
def _resize_nearest(a: Arguments) -> Array:
    x = a["x"]
    for axis in (-2, -1):
        size, dim = a.results[0].dims[axis], x.shape[axis]
        x = np.take(x, [math.floor(i * dim / size) for i in range(size)], axis)
    return x


@formula("upsample_nearest_neighbor")
def _upsample_nearest(a: Arguments) -> Array:
    x = a["x"]
    for axis, side in ((-2, "height"), (-1, "width")):
        factor = a.const(f"scale_factor_{side}", 1)
        x = np.take(x, [math.floor(i / factor) for i in range(a.results[0].dims[axis])], axis)
    return x


def _point(mode: str, i: int, dim: int, size: int) -> float:
    """Where sample i lies, as the documentation of `resize_bilinear` has it."""
    if mode == "ALIGN_CORNERS" and size == 1:
        return (dim - 1) / 2
    if mode in ("ALIGN_CORNERS", "STRICT_ALIGN_CORNERS"):
        at = i * (dim - 1) / (size - 1) if size > 1 else 0.0
    elif mode == "DEFAULT":
        at = i * (dim - dim / size) / (size - 1) if size > 1 else 0.0
    elif mode == "OFFSET_CORNERS":
        delta = max(1, dim - 1) / size
        at = 0.5 * delta + (i * ((size - 1) * delta) / (size - 1) if size > 1 else 0.0)
    else:
        at = i * dim / size + 0.5 * dim / size - 0.5
    return min(dim - 1, max(0, at))


def _interpolated(x: Array, axis: int, points: Sequence[float]) -> Array:
    parts = []
    for at in points:
        below = math.floor(at)
        part = np.take(x, below, axis)
        if at != below:
            part = part * (1 - (at - below)) + np.take(x, below + 1, axis) * (at - below)
        parts.append(part)
    return np.stack(parts, axis)


def _bilinear(a: Arguments, mode: str) -> Array:
    x = a["x"]
    for axis in (-2, -1):
        dim, size = x.shape[axis], a.results[0].dims[axis]
        x = _interpolated(x, axis, [_point(mode, i, dim, size) for i in range(size)])
    return x


@formula("resize_bilinear")
def _resize_bilinear(a: Arguments) -> Array:
    return _bilinear(a, a.const("sampling_mode", "DEFAULT"))


@formula("upsample_bilinear")
def _upsample_bilinear(a: Arguments) -> Array:
    aligned = a.const("align_corners", True)
    if aligned:
        return _bilinear(a, "STRICT_ALIGN_CORNERS")
    return _bilinear(a, "UNALIGN_CORNERS" if a.const("half_pixel_centers", not aligned) else "DEFAULT")


# --- channels, batch and space ------------------------------------------------


def _rearranged(a: Arguments, source: Callable[..., tuple[int, ...]]) -> Array:
    """Each element of the result is the element of x at `source(n, c, h, w)`; 0 outside x."""
    x = a["x"]
    out = np.zeros(a.results[0].dims, x.dtype)
    for at in np.ndindex(out.shape):
        place = source(*at)
        if all(0 <= i < d for i, d in zip(place, x.shape, strict=True)):
            out[at] = x[place]
    return out


@formula("depth_to_space")
def _depth_to_space(a: Arguments) -> Array:
    b, channels = a.const("block_size"), a.results[0].dims[1]
    return _rearranged(a, lambda n, c, h, w: (n, (h % b * b + w % b) * channels + c, h // b, w // b))


@formula("space_to_depth")
def _space_to_depth(a: Arguments) -> Array:
    b, channels = a.const("block_size"), a["x"].shape[1]
    return _rearranged(
        a,
        lambda n, c, h, w: (n, c % channels, h * b + c // channels // b, w * b + c // channels % b),
    )


@formula("pixel_shuffle")
def _pixel_shuffle(a: Arguments) -> Array:
    b = a.const("upscale_factor")
    return _rearranged(a, lambda n, c, h, w: (n, c * b * b + h % b * b + w % b, h // b, w // b))


@formula("pixel_unshuffle")
def _pixel_unshuffle(a: Arguments) -> Array:
    b = a.const("downscale_factor")
    return _rearranged(a, lambda n, c, h, w: (n, c // (b * b), h * b + c // b % b, w * b + c % b))


@formula("space_to_batch")
def _space_to_batch(a: Arguments) -> Array:
    (bh, bw), ((top, _), (left, _)), count = a.const("block_shape"), a.const("paddings"), a["x"].shape[0]
    return _rearranged(
        a,
        lambda n, c, h, w: (
            n % count, c, h * bh + n // count // bw - top, w * bw + n // count % bw - left,
        ),
    )  # fmt: skip


@formula("batch_to_space")
def _batch_to_space(a: Arguments) -> Array:
    (bh, bw), ((top, _), (left, _)) = a.const("block_shape"), a.const("crops")
    count = a.results[0].dims[0]
    return _rearranged(
        a,
        lambda n, c, h, w: (
            ((h + top) % bh * bw + (w + left) % bw) * count + n, c, (h + top) // bh, (w + left) // bw,
        ),
    )  # fmt: skip
