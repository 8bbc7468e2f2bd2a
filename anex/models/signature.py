"""The functions of a decoder by name: their ports, with what each port is for."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.errors import InputError
from anex.models.config import DecoderConfig
from anex.models.feed import HostInput, host_inputs
from anex.models.layout import LANE, CacheSurface, cache_surfaces, padded, vocab_tiles

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int, int, int]


class Role(enum.Enum):
    """What a port is for."""

    HOST = "computed by the host for every call (anex.models.feed)"
    CACHE = "cached keys and values"
    HIDDEN = "hidden states after the final norm"
    LOGITS = "logits of one tile of the vocabulary"
    NEW = "new keys and values"


class Kind(enum.Enum):
    """What a function does."""

    PREFILL = "computes hidden states of T columns after C cached ones"
    DECODE = "computes the logits of one column after C cached ones"
    HEAD = "computes the logits of T columns of hidden states"


@dataclass(frozen=True, slots=True)
class PortInfo:
    """One fp16 port of a function."""

    name: str
    shape: Shape
    role: Role


@dataclass(frozen=True, slots=True)
class Signature:
    """A function by its ports.

    Attributes:
        columns: Tokens it computes (T).
        cached: Columns of its cache (C); without any it has no cache port.
    """

    name: str
    kind: Kind
    columns: int
    cached: int
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]

    def port(self, role: Role) -> PortInfo:
        """The one port of a role."""
        (found,) = (port for port in (*self.inputs, *self.outputs) if port.role is role)
        return found


def prefill_name(chunk: int, cached: int) -> str:
    return f"prefill_t{chunk}_c{cached}"


def decode_name(cached: int) -> str:
    return f"decode_c{cached}"


def head_name(columns: int = LANE) -> str:
    return f"head_t{columns}"


_NAMES = (
    (re.compile(r"prefill_t(?P<t>[1-9]\d{0,6})_c(?P<c>\d{1,8})"), Kind.PREFILL),
    (re.compile(r"decode_c(?P<c>\d{1,8})"), Kind.DECODE),
    (re.compile(r"head_t(?P<t>[1-9]\d{0,6})"), Kind.HEAD),
)


def signature(config: DecoderConfig, name: str) -> Signature:
    """What a function of that name takes and gives.

    Ports (fp16): the host's, `i00_x [1,D,1,T]`, `i01_cos` and `i02_sin [1,1,dims/2,T]`,
    `i03_mask [1,1,T,C+T]` (what else there is, or is not: `anex.models.feed.host_inputs`),
    then `i04_cache… [1,2·layers·kv_dim,1,C]`; for the head `i00_hidden [1,D,1,T]`.
    Results are `o00_hidden [1,D,1,T]` or `o00_logits… [1,rows,1,T]` for each tile of the
    vocabulary, and `o01_kv… [1,2·layers·kv_dim,1,T]`.

    In `decode_…` T is 1, but ports are `LANE` wide where one column would be
    narrower than 64 bytes: inputs count in their first column (the mask in the first
    C + 1), and results of n channels lie as `[1,n/32,1,32]`, n rounded up to a multiple of 32.

    Raises:
        InputError: No function has such a name, or a width in it is no multiple of 32.
    """
    for pattern, kind in _NAMES:
        if match := pattern.fullmatch(name):
            sizes = {key: int(size) for key, size in match.groupdict().items()}
            if any(size % LANE for size in sizes.values()):
                raise InputError(f"function '{name}' has a width that is no multiple of {LANE}")
            columns, cached = sizes.get("t", 1), sizes.get("c", 0)
            inputs, outputs = _inputs(config, kind, columns, cached), _outputs(config, kind, columns)
            return Signature(name, kind, columns, cached, inputs, outputs)
    raise InputError(f"no function is called '{name}'", hint="prefill_t<T>_c<C>, decode_c<C>, head_t<T>")


def host_ports(config: DecoderConfig, context: int | None = None) -> dict[str, HostInput]:
    """Port → what fills it, in order; `context` as in `anex.models.feed.host_inputs`."""
    inputs = host_inputs(config, context)
    return {f"i{index:02}_{source.name}": source for index, source in enumerate(inputs)}


def caches(config: DecoderConfig) -> tuple[CacheSurface, ...]:
    """The surfaces of the KV cache of a model, under the names of its ports."""
    return cache_surfaces(config, len(host_inputs(config)))


def _inputs(config: DecoderConfig, kind: Kind, columns: int, cached: int) -> tuple[PortInfo, ...]:
    if kind is Kind.HEAD:
        return (PortInfo("i00_hidden", (1, config.dim, 1, columns), Role.HIDDEN),)
    host = [
        PortInfo(port, _widened(source.shape(columns, cached)), Role.HOST)
        for port, source in host_ports(config).items()
    ]
    held = [PortInfo(s.input, (1, s.channels, 1, cached), Role.CACHE) for s in caches(config) if cached]
    return (*host, *held)


def _outputs(config: DecoderConfig, kind: Kind, columns: int) -> tuple[PortInfo, ...]:
    shape = _row if kind is Kind.DECODE else (lambda channels: (1, channels, 1, columns))
    logits = [PortInfo(tile.port, shape(tile.rows), Role.LOGITS) for tile in vocab_tiles(config)]
    if kind is Kind.HEAD:
        return tuple(logits)
    hidden = [PortInfo("o00_hidden", shape(config.dim), Role.HIDDEN)]
    new = [PortInfo(s.output, shape(s.channels), Role.NEW) for s in caches(config)]
    return (*(logits if kind is Kind.DECODE else hidden), *new)


def _widened(shape: Shape) -> Shape:
    return (*shape[:3], padded(shape[3]))


def _row(channels: int) -> Shape:
    """One column of channels as rows of 64 bytes, in the same order."""
    return 1, padded(channels) // LANE, 1, LANE


def read_logits(
    config: DecoderConfig, outputs: Mapping[str, Array], count: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits of the first `count` columns from what a decode or head function returned.

    Returns:
        float32 `[count, vocabulary]`.
    """
    logits = np.empty((count, config.vocab_size), np.float32)
    for tile in vocab_tiles(config):
        array = outputs[tile.port]
        columns = array[0, :, 0] if array.shape[1] == tile.rows else array.reshape(tile.rows, 1)
        logits[:, tile.first : tile.first + tile.count] = columns[: tile.count, :count].T
    if config.multipliers.logits != 1.0:
        logits *= np.float32(config.multipliers.logits)
    if cap := config.multipliers.logit_cap:
        logits = np.tanh(logits / np.float32(cap)) * np.float32(cap)
    return logits
