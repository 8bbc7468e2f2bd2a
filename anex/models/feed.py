"""What the host computes for each call of a decoder: one entry per input port it writes.

The list of a model's host inputs says which ports there are, in their order,
how wide, and with what they are filled.  A family with two masks, two RoPE
tables or learned positions has another list; whoever runs the functions does not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from anex.errors import InputError
from anex.models.config import DecoderConfig
from anex.models.masks import EMPTY, mask
from anex.models.rope import Rope, tables

Array = np.ndarray[Any, np.dtype[Any]]
Rows = Callable[[str, ArrayLike], Array]
"""Role of a table (`embed`, `positions`) and indices `[n]` → its rows `[n, dim]`."""

LOCAL = "_local"
"""Ends the names of the inputs that only `config.local` layers read."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one call.

    Attributes:
        ids: Token ids, `[n]`; n is at most the columns of the call.
        positions: Of every column, `[T]`; `EMPTY` after the tokens.
        held: Position of every cached column, `[C]`; `EMPTY` where nothing lies.
    """

    ids: Array
    positions: Array
    held: Array


class HostInput(Protocol):
    """One input port that the host writes; `name` follows its number in the port's name."""

    @property
    def name(self) -> str: ...

    def shape(self, columns: int, cached: int) -> tuple[int, int, int, int]:
        """Shape of its values for T columns after C cached ones; the port's last axis may be wider."""
        ...

    def values(self, batch: Batch, rows: Rows) -> Array:
        """The values, `shape` with T and C of the batch; the port's type rounds them."""
        ...


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Rows of the embedding table as columns, zero after the tokens.

    Attributes:
        positions: Rows of a second table, by position, are added.
    """

    name: str
    dim: int
    scale: float = 1.0
    positions: bool = False

    def shape(self, columns: int, cached: int) -> tuple[int, int, int, int]:
        return 1, self.dim, 1, columns

    def values(self, batch: Batch, rows: Rows) -> Array:
        found = rows("embed", batch.ids).astype(np.float32)
        if self.scale != 1.0:
            found *= np.float32(self.scale)
        if self.positions:
            found += rows("positions", batch.positions[: len(found)])
        out = np.zeros(self.shape(len(batch.positions), 0), np.float32)
        out[0, :, 0, : len(found)] = found.T
        return out


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos (`which` 0) or sin (1) of every position's angles; angles of 0 where there is no rotation."""

    name: str
    rope: Rope | None
    which: int
    dims: int

    def shape(self, columns: int, cached: int) -> tuple[int, int, int, int]:
        return 1, 1, self.dims // 2, columns

    def values(self, batch: Batch, rows: Rows) -> Array:
        if self.rope is None:
            return np.full(self.shape(len(batch.positions), 0), 1.0 - self.which)
        return tables(self.rope, batch.positions)[self.which][None, None]


@dataclass(frozen=True, slots=True)
class Mask:
    """Who may look at whom, cached columns first; `window` as in `anex.models.masks.mask`."""

    name: str
    window: int | None

    def shape(self, columns: int, cached: int) -> tuple[int, int, int, int]:
        return 1, 1, columns, cached + columns

    def values(self, batch: Batch, rows: Rows) -> Array:
        return mask(batch.positions, batch.held, self.window)[None, None]


def host_inputs(config: DecoderConfig, context: int | None = None) -> tuple[HostInput, ...]:
    """What the host writes for a model, in the order of the ports.

    Layers that differ read inputs of their own, but all layers are the same ops:
    one that does not rotate, in a model that otherwise does, turns by angles of 0.

    Args:
        context: Most tokens of the conversation; the model's own context if None.
    """
    dims, longest = config.rope_dims, context or config.context_length

    def rotation(rope: Rope | None, suffix: str) -> list[HostInput]:
        fitted = rope.within(longest) if rope else None
        return [
            RopeTable(f"{name}{suffix}", fitted, which, dims) for which, name in enumerate(("cos", "sin"))
        ]

    x = Embeddings("x", config.dim, config.multipliers.embedding, config.positions > 0)
    found: list[HostInput] = [x, *(rotation(config.rope, "") if dims else [])]
    found.append(Mask("mask", config.attention.window))
    if config.local and config.local.rope != config.rope:
        found += rotation(config.local.rope, LOCAL)
    if config.local and config.local.window != config.attention.window:
        found.append(Mask(f"mask{LOCAL}", config.local.window))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Feed:
    """Fills the host's ports of one function.

    Attributes:
        columns: Tokens that a call can take (T).
        cached: Columns of its cache (C).
        inputs: Port → what fills it.
    """

    columns: int
    cached: int
    inputs: Mapping[str, HostInput]
    rows: Rows

    def __call__(self, ids: ArrayLike, positions: ArrayLike, held: ArrayLike) -> dict[str, Array]:
        """The arrays of one call.

        Args:
            ids: The new tokens, at most `columns`.
            positions: One for each of them.
            held: Position of each cached column, `[C]`; `EMPTY` where nothing lies.

        Returns:
            Port → its values.  Where an array is narrower than its port it fills
            the first columns, and what stands in the others does not count.

        Raises:
            InputError: An id is not in the vocabulary, or the lengths do not fit the function.
        """
        tokens, places = np.asarray(ids, np.int64), np.asarray(positions, np.int64)
        caches = np.asarray(held, np.int64)
        if not len(tokens) == len(places) <= self.columns or len(caches) != self.cached:
            raise InputError(
                f"{len(tokens)} tokens at {len(places)} positions after {len(caches)} cached columns",
                hint=f"this function takes up to {self.columns} after {self.cached}",
            )
        padding = np.full(self.columns - len(places), EMPTY)
        batch = Batch(tokens, np.concatenate([places, padding]), caches)
        return {port: source.values(batch, self.rows) for port, source in self.inputs.items()}
