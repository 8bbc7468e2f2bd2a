"""The weights of a decoder: which tensors of a file they are, and how they get into the blob.

Every weight has a role: `embed`, `head`, `norm`, and per layer `attn_norm`,
`wq`, `bq` ….  Its constant in a program is called `l0_wq`, `norm`, or, because
the vocabulary is stored in tiles, `head0`, `head1` ….

What the program would multiply with a constant is multiplied into the weights
before their single rounding to fp16: as an fp16 literal, 1/sqrt(head_dim) or
sqrt(D) would be off by up to 2⁻¹² in the same direction everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.mil import DType, Literal, TensorType
from anex.models.config import DecoderConfig
from anex.models.families import Recipe, recipe
from anex.models.layout import Tile, vocab_tiles
from anex.models.ledger import Ledger
from anex.models.rope import half_split_rows
from anex.models.tensors import TensorDescription, TensorSource

if TYPE_CHECKING:
    from anex.mil import BlobWriter

Array = np.ndarray[Any, np.dtype[Any]]
Half = np.ndarray[Any, np.dtype[np.float16]]
Progress = Callable[[str, int, int], None]
"""Called with a stage (`convert`: bytes, `compile`: functions), what is done and what there is to do."""

CHUNK_BYTES = 8 << 20
"""Weights are held in pieces of about this size."""

FREQ_FACTORS = "freq_factors"
"""Role of one divisor per RoPE frequency: goes into the config, not into the blob."""

VOCABULARY = ("embed", "head")
"""Roles that are stored in tiles of rows."""

SHAPES: Mapping[str, tuple[str, ...]] = {
    "embed": ("vocab", "dim"),
    "head": ("vocab", "dim"),
    "norm": ("dim",),
    FREQ_FACTORS: ("rope_pairs",),
    "attn_norm": ("dim",),
    "wq": ("q_dim", "dim"),
    "wk": ("kv_dim", "dim"),
    "wv": ("kv_dim", "dim"),
    "wo": ("dim", "q_dim"),
    "bq": ("q_dim",),
    "bk": ("kv_dim",),
    "bv": ("kv_dim",),
    "bo": ("dim",),
    "ffn_norm": ("dim",),
    "w_gate": ("ffn_dim", "dim"),
    "w_up": ("ffn_dim", "dim"),
    "w_down": ("dim", "ffn_dim"),
    "b_gate": ("ffn_dim",),
    "b_up": ("ffn_dim",),
    "b_down": ("dim",),
}
"""Role → its shape, rows first, in `SIZES`."""

SIZES: Mapping[str, Callable[[DecoderConfig], int]] = {
    "vocab": lambda c: c.vocab_size,
    "dim": lambda c: c.dim,
    "q_dim": lambda c: c.attention.q_dim,
    "kv_dim": lambda c: c.attention.kv_dim,
    "ffn_dim": lambda c: c.mlp.dim,
    "rope_pairs": lambda c: c.rope.dims // 2,
}

SCALES: Mapping[str, Callable[[DecoderConfig], float]] = {
    # RMSNorm divides by the root of the sum, not of the mean (see `anex.models.decoder.rms_norm`).
    **dict.fromkeys(("attn_norm", "ffn_norm", "norm"), lambda c: math.sqrt(c.dim)),
    **dict.fromkeys(("wq", "bq"), lambda c: c.attention.scale),
    **dict.fromkeys(("wo", "bo", "w_down", "b_down"), lambda c: c.multipliers.residual),
}
"""Role → what its numbers are multiplied with."""

ATTENTION_BIASES, MLP_BIASES = ("bq", "bk", "bv", "bo"), ("b_gate", "b_up", "b_down")


def _half_split(rows: Array, config: DecoderConfig) -> Array:
    """Rows of whole heads, from pairs (2j, 2j+1) to pairs (j, j + dims/2)."""
    head_dim = config.attention.head_dim
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    return heads[:, half_split_rows(config.rope.dims, head_dim)].reshape(rows.shape)


def _plus_one(rows: Array, config: DecoderConfig) -> Array:
    """For norms that the file stores as their distance from 1."""
    return rows + np.float32(1)


TRANSFORMS: Mapping[str, Callable[[Array, DecoderConfig], Array]] = {
    "half_split": _half_split,
    "plus_one": _plus_one,
}
"""Steps on rows that a recipe names.  `transpose` is one more: the file has rows and columns exchanged."""

TRANSPOSE = "transpose"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight comes from: rows `first … first + shape[0] - 1` of a tensor, and their transforms."""

    role: str
    tensor: str
    first: int
    shape: tuple[int, ...]
    transforms: tuple[str, ...] = ()


def resolve(
    config: DecoderConfig,
    tensors: Mapping[str, TensorDescription],
    ledger: Ledger,
    plan: Recipe | None = None,
) -> tuple[DecoderConfig, dict[str, Source]]:
    """Find the tensor of every role and complete the config with what tensors tell.

    Args:
        plan: By default that of the config's family in GGUF.

    Returns:
        The config with `vocab_size`, `tied` and `biases`, and name → source.
        A tied head has no source of its own.

    Raises:
        InputError: A tensor is missing or has the wrong shape.
        UnsupportedError: A tensor is not part of the model that anex computes.
    """
    finder = _Finder(config, tensors, ledger, plan or recipe(config.family))
    for role in SHAPES:
        finder.find_all(role)
    ledger.close("tensor", tensors)

    def biases(roles: tuple[str, ...]) -> frozenset[str]:
        return frozenset("w" + role.removeprefix("b") for role in roles if finder.in_every_layer(role))

    config = finder.config
    return (
        replace(
            config,
            tied="head" not in finder.sources,
            attention=replace(config.attention, biases=biases(ATTENTION_BIASES)),
            mlp=replace(config.mlp, biases=biases(MLP_BIASES)),
        ),
        finder.sources,
    )


class _Finder:
    def __init__(
        self, config: DecoderConfig, tensors: Mapping[str, TensorDescription], ledger: Ledger, plan: Recipe
    ) -> None:
        self.tensors = tensors
        self.ledger = ledger
        self.plan = plan
        self.sources: dict[str, Source] = {}
        embed = tensors.get(plan.names["embed"])
        if config.vocab_size == 0 and embed is not None:
            config = replace(config, vocab_size=int(embed.shape[0]) if embed.shape else 0)
        if config.vocab_size == 0 and embed is not None:
            raise InputError("the embedding table has no rows", where=ledger.where)
        self.config = config

    def find_all(self, role: str) -> None:
        """A role of the family, once or in every layer."""
        if role not in self.plan.required | self.plan.optional:
            return
        tensor = self.plan.names[role]
        if "{layer}" not in tensor:
            self.find(role, role, tensor, 0)
            return
        for i in range(self.config.n_layers):
            self.find(role, f"l{i}_{role}", tensor.format(layer=i), i)

    def find(self, role: str, name: str, tensor: str, layer: int) -> None:
        shape = tuple(SIZES[size](self.config) for size in SHAPES[role])
        first, whole, note = 0, shape, role
        if tensor not in self.tensors and (fused := self._fused(role, shape, layer)):
            tensor, first, whole, note = fused
        if tensor not in self.tensors:
            if role in self.plan.optional:
                return
            raise InputError(f"tensor '{tensor}' {list(shape)} is missing", where=self.ledger.where)
        transforms = self.plan.transforms.get(role, ())
        self._check(tensor, tuple(reversed(whole)) if TRANSPOSE in transforms else whole)
        self.ledger.used("tensor", tensor, note)
        self.sources[name] = Source(role, tensor, first, shape, transforms)

    def in_every_layer(self, role: str) -> bool:
        """Whether the layers have an optional weight; all or none must."""
        layers = range(self.config.n_layers)
        missing = [i for i in layers if f"l{i}_{role}" not in self.sources]
        if missing and len(missing) < len(layers):
            raise UnsupportedError(
                f"a model that has '{role}' in some layers but not in layer {missing[0]}",
                where=self.ledger.where,
            )
        return not missing

    def _check(self, tensor: str, expected: tuple[int, ...]) -> None:
        found = tuple(self.tensors[tensor].shape)
        if found != expected:
            raise InputError(
                f"tensor '{tensor}' has shape {list(found)}, expected {list(expected)}",
                where=self.ledger.where,
            )

    def _fused(
        self, role: str, shape: tuple[int, ...], layer: int
    ) -> tuple[str, int, tuple[int, ...], str] | None:
        """(tensor, first row, its whole shape, note) where rows of a role lie among others'."""
        for pattern, roles in self.plan.fused.items():
            tensor = pattern.format(layer=layer)
            if role in roles and tensor in self.tensors:
                rows = [SIZES[SHAPES[other][0]](self.config) for other in roles]
                first = sum(rows[: roles.index(role)])
                return tensor, first, (sum(rows), *shape[1:]), ", ".join(roles)
        return None


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the blob: rows `start … stop - 1` of a weight, zeros after them."""

    source: Source
    type: TensorType
    start: int
    stop: int


def records(config: DecoderConfig, sources: Mapping[str, Source]) -> dict[str, Record]:
    """Name → record, in the order of the blob.

    Matrices are 1×1 kernels and vectors `[1, C, 1, 1]`, all fp16; the rows of
    a tile of the embedding table stay rows.
    """
    found: dict[str, Record] = {}
    for name, source in sources.items():
        rows, *rest = source.shape
        if source.role in VOCABULARY:
            for tile in vocab_tiles(config):
                type = _tile_type(config, source.role, tile)
                found[name + tile.number] = Record(source, type, tile.first, tile.first + tile.count)
            continue
        dims = (rows, *rest, 1, 1) if rest else (1, rows, 1, 1)
        found[name] = Record(source, TensorType(DType.FP16, dims), 0, rows)
    return found


def tied_heads(config: DecoderConfig) -> dict[str, tuple[str, TensorType]]:
    """Name of each tile of a tied head → the tile of the embedding table it is, and its own type."""
    if not config.tied:
        return {}
    return {
        f"head{tile.number}": (f"embed{tile.number}", _tile_type(config, "head", tile))
        for tile in vocab_tiles(config)
    }


def _tile_type(config: DecoderConfig, role: str, tile: Tile) -> TensorType:
    kernel = (1, 1) if role == "head" else ()
    return TensorType(DType.FP16, (tile.rows, config.dim, *kernel))


def literal_types(config: DecoderConfig, sources: Mapping[str, Source]) -> dict[str, TensorType]:
    """Name → the type under which programs use a weight; a tied head comes last."""
    stored = {name: record.type for name, record in records(config, sources).items()}
    return stored | {name: type for name, (_, type) in tied_heads(config).items()}


def write_blob(
    file: TensorSource,
    config: DecoderConfig,
    sources: Mapping[str, Source],
    writer: BlobWriter,
    progress: Progress | None = None,
) -> dict[str, Literal]:
    """Stream every weight into a blob as fp16; returns name → literal.

    A tied head is the embedding table under another shape: the same bytes.

    Raises:
        InputError: A value of a tensor does not fit fp16.
        ResourceError: The disk refuses.
    """
    weights: dict[str, Literal] = {}
    all_records = records(config, sources)
    total = sum(record.type.nbytes for record in all_records.values())
    done = 0
    for name, record in all_records.items():
        ref = writer.add_chunks(DType.FP16, record.type.size, _pieces(file, config, record))
        weights[name] = Literal(record.type, ref)
        done += record.type.nbytes
        if progress is not None:
            progress("convert", done, total)
    for name, (tile, type) in tied_heads(config).items():
        weights[name] = Literal(type, weights[tile].data)
    return weights


def _pieces(file: TensorSource, config: DecoderConfig, record: Record) -> Iterator[Half]:
    """The elements of one record in order, a few rows at a time, zeros after the last."""
    source, head_dim = record.source, config.attention.head_dim
    columns = math.prod(source.shape[1:])
    scale = SCALES[source.role](config) if source.role in SCALES else 1.0
    steps = [TRANSFORMS[name] for name in source.transforms if name != TRANSPOSE]
    # A number that only moves is rounded once, by the reader; others are computed in float64 before.
    exact = scale == 1.0 and all(step is _half_split for step in steps)
    read = _reader(file, source, np.float16 if exact else np.float32)
    # Whole heads, so that rows can change places within one.
    step = max(1, CHUNK_BYTES // (2 * columns * head_dim)) * head_dim
    for start in range(record.start, record.stop, step):
        piece = read(start, min(start + step, record.stop))
        for transform in steps:
            piece = transform(piece, config)
        yield piece if exact else _halved(piece * np.float64(scale), source)
    if missing := record.type.size - (record.stop - record.start) * columns:
        yield np.zeros(missing, np.float16)


def _reader(file: TensorSource, source: Source, dtype: Any) -> Callable[[int, int], Array]:
    """Reads rows of a weight; a vector and a transposed matrix come from the whole tensor."""
    if len(source.shape) > 1 and TRANSPOSE not in source.transforms:
        return lambda start, stop: file.rows(source.tensor, start + source.first, stop + source.first, dtype)
    whole = file.array(source.tensor, dtype).T
    return lambda start, stop: whole[start + source.first : stop + source.first]


def _halved(numbers: Array, source: Source) -> Half:
    """Rounded to fp16, if they fit."""
    with np.errstate(over="ignore"):
        halves: Half = numbers.astype(np.float16)
    if np.isinf(halves).any():
        raise InputError(
            f"a number of tensor '{source.tensor}' is beyond the range of float16 "
            f"once the constants of the model are multiplied in"
        )
    return halves
