"""Which functions a model needs, and the program that holds them.

A function is made when it is used: the context grows along rungs, and each rung
has its own shapes.  All functions of a model share one blob, so programs that
hold different functions of it can live side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anex.errors import InputError
from anex.mil import Function, Program
from anex.models.config import DecoderConfig
from anex.models.decoder import build
from anex.models.emit import Weights
from anex.models.layout import padded
from anex.models.signature import prefill_name, signature

CHUNKS = (32, 128, 512)
"""Columns that one prefill call computes."""

FIRST_RUNG = 256


@dataclass(frozen=True, slots=True)
class Rungs:
    """Sizes of the KV cache that programs are built for: 0, 256, 512, 1024 … up to the limit."""

    limit: int

    @property
    def sizes(self) -> tuple[int, ...]:
        sizes, size = [0], FIRST_RUNG
        while size < self.limit:
            sizes.append(size)
            size *= 2
        return (*sizes, padded(self.limit))

    def holding(self, columns: int) -> int:
        """The smallest rung with room for that many cached columns.

        Raises:
            InputError: The model's context is shorter.
        """
        for size in self.sizes:
            if columns <= size:
                return size
        raise InputError(f"{columns} cached tokens do not fit a context of {self.limit}")


@dataclass(frozen=True, slots=True)
class Call:
    """One prefill call: tokens `start … start + count - 1`, in a function `chunk` columns wide.

    Attributes:
        cached: Rung of the cache while it runs.
    """

    start: int
    count: int
    chunk: int
    cached: int

    @property
    def function(self) -> str:
        return prefill_name(self.chunk, self.cached)


def plan(tokens: int, *, past: int = 0, limit: int, chunks: Iterable[int] = CHUNKS) -> tuple[Call, ...]:
    """The calls that take `tokens` new tokens in after `past` cached ones.

    Each call takes the largest chunk that is filled, or the next wider one where
    that computes no more columns than the calls it replaces.

    Raises:
        InputError: More tokens than the context holds.
    """
    if past + tokens > limit:
        raise InputError(f"{past + tokens} tokens do not fit a context of {limit}")
    widths, rungs = sorted(chunks), Rungs(limit)
    calls: list[Call] = []
    while tokens > 0:
        chunk = max((w for w in widths if w <= tokens), default=widths[0])
        wider = min((w for w in widths if w > chunk), default=0)
        if tokens < wider <= -(-tokens // chunk) * chunk:
            chunk = wider
        count = min(chunk, tokens)
        calls.append(Call(past, count, chunk, rungs.holding(past)))
        past, tokens = past + count, tokens - count
    return tuple(calls)


def build_function(config: DecoderConfig, weights: Weights, name: str) -> Function:
    """One function by its name; raises as `signature`."""
    return build(config, weights, signature(config, name))


def build_program(config: DecoderConfig, weights: Weights, functions: Iterable[str]) -> Program:
    """A program with the named functions, in that order."""
    return Program({name: build_function(config, weights, name) for name in functions})
