"""How the ports and weights of a decoder lie in memory: widths, cache surfaces, tiles, groups of experts."""

from __future__ import annotations

from dataclasses import dataclass

from anex.models.config import DecoderConfig

LANE = 32
"""fp16 columns in 64 bytes: port widths are multiples of it, so that packed
data and the engine's row pitch are the same thing (facts: ane.md §2.4)."""

MAX_CHANNELS = 65536
"""Most channels of one surface; a larger cache is split between layers."""

MAX_TILE = 16384
"""Most vocabulary rows of one head convolution: what M1 to M3 take (facts: ane.md §5.4, no. 67)."""


def padded(width: int) -> int:
    """The next multiple of `LANE`."""
    return -(-width // LANE) * LANE


@dataclass(frozen=True, slots=True)
class CacheSurface:
    """One surface of the KV cache: layers `first … first + layers - 1`.

    Layer `l` has its keys at channel `2·(l - first)·kv_dim` and its values
    `kv_dim` channels later; the last axis is the cached column.

    Attributes:
        input: Name of the port that takes the cached columns.
        output: Name of the port that returns the new columns.
    """

    input: str
    output: str
    first: int
    layers: int
    kv_dim: int

    @property
    def channels(self) -> int:
        return 2 * self.layers * self.kv_dim

    def keys(self, layer: int) -> int:
        """First channel of a layer's keys."""
        return 2 * (layer - self.first) * self.kv_dim

    def values(self, layer: int) -> int:
        """First channel of a layer's values."""
        return self.keys(layer) + self.kv_dim


def cache_surfaces(config: DecoderConfig, before: int) -> tuple[CacheSurface, ...]:
    """The surfaces that hold the KV cache of a model, in layer order.

    Args:
        before: Input ports that come before the first of them.
    """
    kv_dim = config.attention.kv_dim
    each = max(1, MAX_CHANNELS // (2 * kv_dim))
    return tuple(
        CacheSurface(
            f"i{before + index:02}_cache",
            f"o{1 + index:02}_kv",
            first,
            min(each, config.n_layers - first),
            kv_dim,
        )
        for index, first in enumerate(range(0, config.n_layers, each))
    )


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows `first … first + count - 1` of the vocabulary, which lie together.

    Attributes:
        number: Its number as it stands in names; all of a model have one length, so that names sort.
    """

    number: str
    first: int
    count: int

    @property
    def rows(self) -> int:
        """Rows as stored; those after `count` are zero."""
        return padded(self.count)

    @property
    def port(self) -> str:
        """Name of the port that returns the logits of these rows."""
        return f"o00_logits{self.number}"


def vocab_tiles(config: DecoderConfig) -> tuple[Tile, ...]:
    """The tiles in which the embedding table and the head are stored and computed."""
    firsts = range(0, config.vocab_size, MAX_TILE)
    digits = len(str(len(firsts) - 1))
    return tuple(
        Tile(f"{index:0{digits}}", first, min(MAX_TILE, config.vocab_size - first))
        for index, first in enumerate(firsts)
    )


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """Experts `first … first + count - 1` of a layer, which are computed by one convolution.

    Attributes:
        number: Its number as it stands in names.
    """

    number: str
    first: int
    count: int


def expert_groups(count: int, dim: int) -> tuple[ExpertGroup, ...]:
    """Groups of experts with `dim` channels each that fit one convolution together, or one expert each."""
    each = max(1, MAX_TILE // dim)
    firsts = range(0, count, each)
    return tuple(ExpertGroup(str(i), first, min(each, count - first)) for i, first in enumerate(firsts))
