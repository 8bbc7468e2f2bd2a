"""Formulas of dense products, pools and the long short-term memory: naive loops over positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from anex.engines.conformance.registry import Arguments, Array, formula

Pads = list[tuple[int, int]]


def _pads(a: Arguments, sizes: Sequence[int], extents: Sequence[int], strides: Sequence[int]) -> Pads:
    """Zeros before and after each spatial dimension, from the documentation of pad_type."""
    pad_type, rank = a.const("pad_type", "valid").lower(), len(sizes)
    if pad_type == "custom":
        pad = a.const("pad", [0] * 2 * rank)
        return [(pad[2 * i], pad[2 * i + 1]) for i in range(rank)]
    result = []
    for size, extent, stride in zip(sizes, extents, strides, strict=True):
        outputs = int(np.ceil(size / stride))
        total = 0 if pad_type == "valid" else max((outputs - 1) * stride + extent - size, 0)
        before = (total + (pad_type == "same_lower")) // 2
        result.append((before, total - before))
    return result


def _positions(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return product(*map(range, sizes))


def _at(*index: int | slice) -> Any:
    return index


def _channels(channel: int | slice, position: Sequence[int]) -> Any:
    """The index of one position in some channels of every item."""
    return _at(slice(None), channel, *position)


def _bias(a: Arguments, rank: int) -> Any:
    return a["bias"].reshape(-1, *[1] * (rank - 2)) if "bias" in a else 0


@formula("conv")
def conv(a: Arguments) -> Array:
    x, weight = a["x"], a["weight"]
    rank, groups = x.ndim - 2, a.const("groups", 1)
    strides, dilations = a.const("strides", [1] * rank), a.const("dilations", [1] * rank)
    extents = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    pads = _pads(a, x.shape[2:], extents, strides)
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    result = np.zeros(a.results[0].dims)
    inner, outer = weight.shape[1], weight.shape[0] // groups
    for at in _positions(result.shape[2:]):
        cut = tuple(
            slice(p * s, p * s + e, d) for p, s, e, d in zip(at, strides, extents, dilations, strict=True)
        )
        for o in range(weight.shape[0]):
            first = o // outer * inner
            window = x[(slice(None), slice(first, first + inner), *cut)]
            result[_channels(o, at)] = np.sum(window * weight[o], axis=tuple(range(1, x.ndim)))
    return np.asarray(result + _bias(a, x.ndim))


@formula("conv_transpose")
def conv_transpose(a: Arguments) -> Array:
    """Each value of x adds its weighted kernel to the result; then the padding is cut off."""
    x, weight = a["x"], a["weight"]
    rank, groups = x.ndim - 2, a.const("groups", 1)
    strides, dilations = a.const("strides", [1] * rank), a.const("dilations", [1] * rank)
    outer, inner = weight.shape[1], weight.shape[0] // groups
    sizes = a.results[0].dims[2:]
    full = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(x.shape[2:], strides, weight.shape[2:], dilations, strict=True)
    ]
    result = np.zeros(
        (x.shape[0], outer * groups, *(max(f, n) + n for f, n in zip(full, sizes, strict=True)))
    )
    for at in _positions(x.shape[2:]):
        for tap in _positions(weight.shape[2:]):
            to = tuple(p * s + t * d for p, s, t, d in zip(at, strides, tap, dilations, strict=True))
            for c in range(x.shape[1]):
                o = c // inner * outer
                value = x[_channels(c, at)][:, None] * weight[_at(c, slice(None), *tap)]
                result[_channels(slice(o, o + outer), to)] += value
    before = [0] * rank
    if a.const("pad_type", "valid") == "custom":
        before = a.const("pad", [0] * 2 * rank)[::2]
    elif a.const("pad_type", "valid") == "same":
        before = [max(f - n, 0) // 2 for f, n in zip(full, sizes, strict=True)]
    cut = tuple(slice(b, b + n) for b, n in zip(before, sizes, strict=True))
    return np.asarray(result[(slice(None), slice(None), *cut)] + _bias(a, x.ndim))


@formula("linear")
def linear(a: Arguments) -> Array:
    product_ = np.sum(a["x"][..., None, :] * a["weight"], axis=-1)
    return np.asarray(product_ + a["bias"] if "bias" in a else product_)


@formula("matmul")
def matmul(a: Arguments) -> Array:
    x, y = a["x"], a["y"]
    if a.const("transpose_x", False):
        x = np.swapaxes(x, -1, -2)
    if a.const("transpose_y", False):
        y = np.swapaxes(y, -1, -2)
    # The sum runs over the last axis of [..., M, 1, K] * [..., 1, N, K].
    rows = x[..., None, :] if x.ndim > 1 else x
    return np.asarray(np.sum(rows * np.swapaxes(y, -1, -2)[..., *[None] * (x.ndim > 1), :, :], axis=-1))


@formula("einsum")
def einsum(a: Arguments) -> Array:
    x, y = a.many("values")
    # [..., C, H, W] and [..., W, H, U] meet as [..., C, H, U, W].
    left = x[..., :, :, None, :]
    right = np.moveaxis(y, -3, -1)[..., None, :, :, :]
    return np.asarray(np.sum(left * right, axis=-1))


@formula("scaled_dot_product_attention")
def attention(a: Arguments) -> Array:
    query, key, value = a["query"], a["key"], a["value"]
    scores = np.sum(query[..., :, None, :] * key[..., None, :, :], axis=-1) / np.sqrt(query.shape[-1])
    if "attn_mask" in a:
        mask = a["attn_mask"]
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    weights = weights / np.sum(weights, axis=-1, keepdims=True)
    return np.asarray(np.sum(weights[..., :, :, None] * value[..., None, :, :], axis=-2))


@formula("max_pool", "avg_pool", "l2_pool")
def pool(a: Arguments) -> Array:
    x, kernel = a["x"], a.const("kernel_sizes")
    rank = len(kernel)
    strides = a.const("strides", [1] * rank)
    pads = _pads(a, x.shape[2:], kernel, strides)
    result = np.zeros(a.results[0].dims)
    for at in _positions(result.shape[2:]):
        starts = [p * s - before for p, s, (before, _) in zip(at, strides, pads, strict=True)]
        ends = [start + k for start, k in zip(starts, kernel, strict=True)]
        cut = tuple(slice(max(s, 0), e) for s, e in zip(starts, ends, strict=True))
        window = x[(slice(None), slice(None), *cut)].reshape(*x.shape[:2], -1)
        count = window.shape[-1] if a.const("exclude_padding_from_average", False) else int(np.prod(kernel))
        result[_channels(slice(None), at)] = _POOLS[a.kind](window, count)
    return result


_POOLS: dict[str, Callable[[Array, int], Array]] = {
    "max_pool": lambda window, _: np.max(window, axis=-1),
    "avg_pool": lambda window, count: np.sum(window, axis=-1) / count,
    "l2_pool": lambda window, _: np.sqrt(np.sum(window * window, axis=-1)),
}

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


@formula("lstm")
def lstm(a: Arguments) -> tuple[Array, Array, Array]:
    """A reversed direction reads the sequence backwards.

    Alone it gives its states in the order in which it computed them; beside
    the forward one, at the time step that they belong to.
    """
    direction, x = a.const("direction", "forward"), a["x"]
    size = a["weight_hh"].shape[1]
    hidden, cell = a["initial_h"], a["initial_c"]
    if direction != "bidirectional":
        states, last_cell = _run(a, "", x[::-1] if direction == "reverse" else x, hidden, cell)
        output = states if a.const("output_sequence", False) else states[-1:]
        return output, states[-1], last_cell
    ahead, ahead_cell = _run(a, "", x, hidden[:, :size], cell[:, :size])
    back, back_cell = _run(a, "_back", x[::-1], hidden[:, size:], cell[:, size:])
    last = np.concatenate([ahead[-1], back[-1]], axis=-1)
    every = np.concatenate([ahead, back[::-1]], axis=-1)
    output = every if a.const("output_sequence", False) else last[None]
    return output, last, np.concatenate([ahead_cell, back_cell], axis=-1)


def _run(a: Arguments, end: str, x: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
    """All hidden states in the order of x, and the last cell."""
    names = (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))
    gate, inner, outer = (_ACTIVATIONS[a.const(name, default).lower()] for name, default in names)
    weight_ih, weight_hh = a[f"weight_ih{end}"], a[f"weight_hh{end}"]
    bias = a[f"bias{end}"] if f"bias{end}" in a else 0.0
    peep = np.split(a[f"peephole{end}"], 3) if f"peephole{end}" in a else [0.0, 0.0, 0.0]
    states = []
    for step in x:
        i, f, o, z = np.split(step @ weight_ih.T + hidden @ weight_hh.T + bias, 4, axis=-1)
        i, f = gate(i + peep[0] * cell), gate(f + peep[1] * cell)
        cell = f * cell + i * inner(z)
        hidden = gate(o + peep[2] * cell) * outer(cell)
        states.append(hidden)
    return np.stack(states), cell
