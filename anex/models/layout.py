"""How the ports of a decoder program lie in memory: widths, cache surfaces, names."""

from __future__ import annotations

from dataclasses import dataclass

from anex.models.config import DecoderConfig

LANE = 32
"""fp16 columns in 64 bytes: port widths are multiples of it, so that packed
data and the engine's row pitch are the same thing (facts: ane.md §2.4)."""

MAX_CHANNELS = 65536
"""Most channels of one surface; a larger cache is split between layers."""


def padded(width: int) -> int:
    """The next multiple of `LANE`."""
    return -(-width // LANE) * LANE


@dataclass(frozen=True, slots=True)
class CacheSurface:
    """One surface of the KV cache: layers `first … first + layers - 1`.

    Layer `l` has its keys at channel `2·(l - first)·kv_dim` and its values
    `kv_dim` channels later; the last axis is the cached column.
    """

    index: int
    first: int
    layers: int
    kv_dim: int

    @property
    def channels(self) -> int:
        return 2 * self.layers * self.kv_dim

    @property
    def input(self) -> str:
        """Name of the port that takes the cached columns."""
        return f"i{4 + self.index:02}_cache"

    @property
    def output(self) -> str:
        """Name of the port that returns the new columns."""
        return f"o{1 + self.index:02}_kv"

    def keys(self, layer: int) -> int:
        """First channel of a layer's keys."""
        return 2 * (layer - self.first) * self.kv_dim

    def values(self, layer: int) -> int:
        """First channel of a layer's values."""
        return self.keys(layer) + self.kv_dim


def cache_surfaces(config: DecoderConfig) -> tuple[CacheSurface, ...]:
    """The surfaces that hold the KV cache of a model, in layer order."""
    each = max(1, MAX_CHANNELS // (2 * config.kv_dim))
    firsts = range(0, config.n_layers, each)
    return tuple(
        CacheSurface(index, first, min(each, config.n_layers - first), config.kv_dim)
        for index, first in enumerate(firsts)
    )


def padded_vocab(config: DecoderConfig) -> int:
    """Rows of the embedding table and of the head as stored; rows after the vocabulary are zero."""
    return padded(config.vocab_size)
