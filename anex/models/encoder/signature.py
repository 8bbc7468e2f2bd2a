"""The functions of an encoder by name, their ports, and what the host writes into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.errors import InputError
from anex.models.encoder.config import EncoderConfig, Rotary
from anex.models.layout import LANE, padded
from anex.models.masks import MASKED
from anex.models.rope import Rope, tables

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int, int, int]

FIRST_RUNG = 32

_NAME = re.compile(r"encode_t([1-9]\d{0,6})")


@dataclass(frozen=True, slots=True)
class Text:
    """One text on its way into a function.

    Attributes:
        rows: Sums of its embedding rows, float32 `[n, D]`.
        weights: Weight of each token in the pooled vector, `[n]`.
        columns: Of the function (T).
    """

    rows: Array
    weights: Array
    columns: int


@dataclass(frozen=True, slots=True)
class Host:
    """One port that the host writes: its name after the number, its shape and values by T."""

    name: str
    shape: Callable[[int], Shape]
    values: Callable[[Text], Array]


@dataclass(frozen=True, slots=True)
class EncoderSignature:
    """A function by its ports.

    Attributes:
        columns: Tokens it has room for (T).
        inputs: Port → what the host writes there.
    """

    name: str
    columns: int
    inputs: Mapping[str, Host]
    hidden: str = "o00_hidden"
    pooled: str = "o01_pooled"

    def feed(self, rows: Array, weights: Array) -> dict[str, Array]:
        """The arrays of one call: sums of embedding rows `[n, D]` and pooling weights `[n]`, n ≤ T."""
        text = Text(rows, weights, self.columns)
        return {port: host.values(text) for port, host in self.inputs.items()}


def rungs(longest: int) -> tuple[int, ...]:
    """The widths that functions are built for: 32, 64, 128 … up to the longest text."""
    sizes, size = [], FIRST_RUNG
    while size < longest:
        sizes.append(size)
        size *= 2
    return (*sizes, padded(longest))


def encode_name(config: EncoderConfig, tokens: int) -> str:
    """The narrowest function with room for that many tokens.

    Raises:
        InputError: The model takes fewer.
    """
    for size in rungs(config.max_tokens):
        if tokens <= min(size, config.max_tokens):
            return f"encode_t{size}"
    raise InputError(f"{tokens} tokens, the model takes {config.max_tokens}")


def signature(config: EncoderConfig, name: str) -> EncoderSignature:
    """What a function of that name takes and gives.

    Ports (fp16): `i00_x [1,D,1,T]`, `i01_mask [1,1,1,T]`, with RoPE its tables and the masks and tables
    of windowed layers, and last `i0n_pool [1,1,1,T]`, the weight of each token in the pooled vector.
    Results: `o00_hidden [1,D,1,T]` and `o01_pooled [1,D/32,1,32]`, D rounded up to a multiple of 32.

    Raises:
        InputError: No function has such a name, or its width is no multiple of 32.
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) % LANE:
        raise InputError(f"no function is called '{name}'", hint=f"encode_t<T>, T a multiple of {LANE}")
    ports = {f"i{index:02}_{host.name}": host for index, host in enumerate(_hosts(config))}
    return EncoderSignature(name, int(match[1]), ports)


def _hosts(config: EncoderConfig) -> tuple[Host, ...]:
    return (
        Host("x", lambda t: (1, config.dim, 1, t), _columns),
        Host("mask", _row, _mask),
        *(_rotary(config, config.positions) if isinstance(config.positions, Rotary) else ()),
        Host("pool", _row, _weights),
    )


def _rotary(config: EncoderConfig, positions: Rotary) -> tuple[Host, ...]:
    def table(name: str, theta: float, which: int) -> Host:
        rope = Rope(dims=config.head_dim, theta=theta)
        return Host(
            name,
            lambda t: (1, 1, config.head_dim // 2, t),
            lambda text: tables(rope, np.arange(text.columns))[which][None, None],
        )

    def window(text: Text) -> Array:
        place = np.arange(text.columns)
        near = np.abs(place[:, None] - place) <= positions.window
        # Columns after the text may see each other, so that no softmax is without a column to look at.
        real = (place < len(text.rows)) | (place[:, None] >= len(text.rows))
        return np.where(near & real, 0.0, MASKED)[None, None]

    return (
        table("cos", positions.theta, 0),
        table("sin", positions.theta, 1),
        Host("local_mask", lambda t: (1, 1, t, t), window),
        table("local_cos", positions.local_theta, 0),
        table("local_sin", positions.local_theta, 1),
    )


def _row(columns: int) -> Shape:
    return 1, 1, 1, columns


def _columns(text: Text) -> Array:
    out = np.zeros((1, text.rows.shape[1], 1, text.columns), np.float32)
    out[0, :, 0, : len(text.rows)] = text.rows.T
    return out


def _mask(text: Text) -> Array:
    return np.where(np.arange(text.columns) < len(text.rows), 0.0, MASKED)[None, None, None]


def _weights(text: Text) -> Array:
    out = np.zeros(_row(text.columns), np.float32)
    out[0, 0, 0, : len(text.weights)] = text.weights
    return out
