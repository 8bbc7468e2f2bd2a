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
from anex.models.layout import ExpertGroup, Tile, expert_groups, vocab_tiles
from anex.models.ledger import Ledger
from anex.models.roles import (
    ATTENTION_BIASES,
    DENSE,
    FLAT,
    GROUPED,
    LAYER_NORMS,
    MLP_BIASES,
    NORM_BIASES,
    QK_NORM_SHAPES,
    QK_NORMS,
    ROUTED,
    SCALES,
    SHAPES,
    SHARED,
    SIZES,
    TABLES,
    VOCABULARY,
)
from anex.models.rope import half_split_rows
from anex.models.tensors import TensorDescription, TensorSource, check_numbers

if TYPE_CHECKING:
    from anex.mil import BlobWriter

Array = np.ndarray[Any, np.dtype[Any]]
Half = np.ndarray[Any, np.dtype[np.float16]]
Progress = Callable[[str, int, int], None]
"""Called with a stage (`convert`: bytes, `compile`: functions), what is done and what there is to do."""

CHUNK_BYTES = 8 << 20
"""Weights are held in pieces of about this size."""


def _half_split(rows: Array, config: DecoderConfig) -> Array:
    """Rows of whole heads, from pairs (2j, 2j+1) to pairs (j, j + dims/2)."""
    head_dim = config.attention.head_dim
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    turned: Array = heads[:, half_split_rows(config.rope_dims, head_dim)]
    return turned.reshape(rows.shape)


def _plus_one(rows: Array, config: DecoderConfig) -> Array:
    """For norms that the file stores as their distance from 1."""
    return rows + np.float32(1)


TRANSFORMS: Mapping[str, Callable[[Array, DecoderConfig], Array]] = {
    "half_split": _half_split,
    "plus_one": _plus_one,
}
"""Steps on rows that a recipe names.  `transpose` is one more: the file has rows and columns exchanged."""

TRANSPOSE = "transpose"

SCALE, INPUT_SCALE = ".scale", ".input_scale"
"""How the names of factors of a weight, and of activations that are quantised, end in GGUF."""

NEEDS_SCALE = "NVFP4"
"""Storage whose numbers mean nothing without their factor."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight comes from: rows `first … first + shape[0] - 1` of a tensor, and their transforms.

    Attributes:
        scale: Tensor of one factor for the weight, or one for each expert; none if empty.
    """

    role: str
    tensor: str
    first: int
    shape: tuple[int, ...]
    transforms: tuple[str, ...] = ()
    scale: str = ""


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
    finder.pass_over()
    ledger.close("tensor", tensors)
    return finder.completed(), finder.sources


class _Finder:
    def __init__(
        self, config: DecoderConfig, tensors: Mapping[str, TensorDescription], ledger: Ledger, plan: Recipe
    ) -> None:
        self.tensors = tensors
        self.ledger = ledger
        self.plan = plan
        self.sources: dict[str, Source] = {}
        experts = config.mlp.experts
        routed = ROUTED | (SHARED if experts and experts.shared_dim else frozenset())
        self.required = (plan.required - DENSE) | routed if experts else plan.required
        self.wanted = self.required | (plan.optional - DENSE if experts else plan.optional)
        embed = tensors.get(plan.names["embed"])
        if config.vocab_size == 0 and embed is not None:
            config = replace(config, vocab_size=int(embed.shape[0]) if embed.shape else 0)
        if config.vocab_size == 0 and embed is not None:
            raise InputError("the embedding table has no rows", where=ledger.where)
        self.config = config

    def find_all(self, role: str) -> None:
        """A role of the family, once or in every layer."""
        if role not in self.wanted:
            return
        tensor = self.plan.names[role]
        if "{layer}" not in tensor:
            self.find(role, role, tensor, 0)
            return
        for i in range(self.config.n_layers):
            self.find(role, f"l{i}_{role}", tensor.format(layer=i), i)

    def find(self, role: str, name: str, tensor: str, layer: int) -> None:
        stored = self._shape(role)
        first, whole, note = 0, stored, role
        if fused := self._fused(role, stored, layer):
            tensor, first, whole, note = fused
        if tensor not in self.tensors:
            if role not in self.required:
                return
            raise InputError(f"tensor '{tensor}' {list(stored)} is missing", where=self.ledger.where)
        transforms = self.plan.transforms.get(role, ())
        self._check(tensor, tuple(reversed(whole)) if TRANSPOSE in transforms else whole)
        self.ledger.used("tensor", tensor, note)
        # Heads of a norm and experts lie one after the other.
        shape = stored if len(stored) == 1 or role not in FLAT else _flat(stored)
        self.sources[name] = Source(role, tensor, first, shape, transforms, self._scale(role, tensor))

    def _shape(self, role: str) -> tuple[int, ...]:
        names = QK_NORM_SHAPES.get((role, self.config.attention.qk_norm), SHAPES[role])
        return tuple(SIZES[size](self.config) for size in names)

    def _scale(self, role: str, tensor: str) -> str:
        """The tensor with the factor of a weight, if the file has one and it counts."""
        scale = tensor.rpartition(".")[0] + SCALE
        if scale not in self.tensors or role not in self.plan.scaled:
            return ""
        each = SIZES["experts"](self.config) if role in GROUPED else 1
        self._check(scale, (each,))
        self.ledger.used("tensor", scale, f"factor of {role}")
        return scale

    def pass_over(self) -> None:
        """Account for tensors without a part in the logits, and factors that no weight of the family has."""
        for tensor in self.plan.unused.keys() & self.tensors.keys():
            self.ledger.neutral("tensor", tensor, self.plan.unused[tensor])
        for tensor in self.tensors:
            if tensor.endswith((SCALE, INPUT_SCALE)) and not self.ledger.knows("tensor", tensor):
                weight = self.tensors.get(tensor.rpartition(".")[0] + ".weight")
                if weight is None or weight.storage != NEEDS_SCALE:
                    self.ledger.neutral("tensor", tensor, "llama.cpp reads it and does not use it")

    def completed(self) -> DecoderConfig:
        """The config with what only tensors tell."""
        config = self.config

        def present(roles: tuple[str, ...]) -> frozenset[str]:
            return frozenset(role for role in roles if self.in_every_layer(role))

        def weights(roles: tuple[str, ...]) -> frozenset[str]:
            return frozenset("w" + role.removeprefix("b") for role in present(roles))

        norms, biased = present(LAYER_NORMS), present(NORM_BIASES)
        biased |= {"b_norm"} & self.sources.keys()
        shared = "ffn_norm" in self.plan.optional and "ffn_norm" not in norms
        normed = present(QK_NORMS)
        if len(normed) == 1:
            raise UnsupportedError(f"a norm of one of queries and keys ({normed})", where=self.ledger.where)
        attention = replace(
            config.attention,
            biases=weights(ATTENTION_BIASES),
            qk_norm=config.attention.qk_norm if normed else "",
        )
        return replace(
            config,
            tied="head" not in self.sources,
            head_bias="b_head" in self.sources,
            positions=config.context_length if "positions" in self.sources else 0,
            parallel=config.parallel or shared,
            norm=replace(
                config.norm, roles=norms, biases=frozenset(role.removeprefix("b_") for role in biased)
            ),
            attention=attention,
            mlp=replace(config.mlp, biases=weights(MLP_BIASES)),
        )

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
        check_numbers(tensor, self.tensors[tensor], self.ledger.where)
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
                rows = [self._shape(other)[0] for other in roles]
                first = sum(rows[: roles.index(role)])
                return tensor, first, (sum(rows), *shape[1:]), ", ".join(roles)
        return None


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[0] * shape[1], *shape[2:]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the blob: rows `start … stop - 1` of a weight, zeros after them.

    Attributes:
        group: Experts whose columns are joined, where the rows are those of each of them.
    """

    source: Source
    type: TensorType
    start: int
    stop: int
    group: ExpertGroup | None = None


def records(config: DecoderConfig, sources: Mapping[str, Source]) -> dict[str, Record]:
    """Name → record, in the order of the blob.

    Matrices are 1×1 kernels and vectors `[1, C, 1, 1]`, all fp16; the rows of
    a table of embeddings stay rows.
    """
    found: dict[str, Record] = {}
    for name, source in sources.items():
        if source.role in VOCABULARY:
            for tile in vocab_tiles(config):
                type = _tile_type(config, source.role, tile)
                found[name + tile.number] = Record(source, type, tile.first, tile.first + tile.count)
        elif source.role in GROUPED:
            prefix = name.removesuffix(source.role)
            for group in expert_groups(SIZES["experts"](config), config.mlp.dim):
                found[f"{prefix}e{group.number}_{GROUPED[source.role]}"] = _grouped(config, source, group)
        else:
            type = TensorType(DType.FP16, _dims(config, source))
            found[name] = Record(source, type, 0, source.shape[0])
    return found


def _dims(config: DecoderConfig, source: Source) -> tuple[int, ...]:
    rows, *rest = source.shape
    if source.role in QK_NORMS and config.attention.qk_norm != "whole":
        return 1, rows // config.attention.head_dim, config.attention.head_dim, 1
    if source.role in TABLES:
        return source.shape
    return (rows, *rest, 1, 1) if rest else (1, rows, 1, 1)


def _grouped(config: DecoderConfig, source: Source, group: ExpertGroup) -> Record:
    """The record of a group of experts: one below the other, or, of the last layer, side by side."""
    inner, dim = group.count * config.mlp.dim, config.dim
    if source.role == "experts_down":
        return Record(source, TensorType(DType.FP16, (dim, inner, 1, 1)), 0, dim, group)
    first = group.first * config.mlp.dim
    return Record(source, TensorType(DType.FP16, (inner, dim, 1, 1)), first, first + inner)


def tied_heads(config: DecoderConfig) -> dict[str, tuple[str, TensorType]]:
    """Name of each tile of a tied head → the tile of the embedding table it is, and its own type."""
    if not config.tied:
        return {}
    return {
        f"head{tile.number}": (f"embed{tile.number}", _tile_type(config, "head", tile))
        for tile in vocab_tiles(config)
    }


def _tile_type(config: DecoderConfig, role: str, tile: Tile) -> TensorType:
    shapes = {
        "embed": (tile.rows, config.dim),
        "head": (tile.rows, config.dim, 1, 1),
        "b_head": (1, tile.rows, 1, 1),
    }
    return TensorType(DType.FP16, shapes[role])


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
        InputError: A value of a tensor is not finite, or does not fit fp16.
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
    columns = record.type.size // record.type.dims[0] if record.group else math.prod(source.shape[1:])
    scale = SCALES[source.role](config) if source.role in SCALES else 1.0
    steps = [TRANSFORMS[name] for name in source.transforms if name != TRANSPOSE]
    # A number that only moves is rounded once, by the reader; others are computed in float64 before.
    exact = scale == 1.0 and not source.scale and all(step is _half_split for step in steps)
    read = _reader(file, config, record, np.float16 if exact else np.float32)
    # Whole heads, so that rows can change places within one.
    step = max(1, CHUNK_BYTES // (2 * columns * head_dim)) * head_dim
    for start in range(record.start, record.stop, step):
        piece = read(start, min(start + step, record.stop))
        for transform in steps:
            piece = transform(piece, config)
        if not np.isfinite(piece).all():
            raise InputError(f"tensor '{source.tensor}' has a number that is not finite (NaN or infinity)")
        yield piece if exact else _halved(piece * np.float64(scale), source)
    if missing := record.type.size - (record.stop - record.start) * columns:
        yield np.zeros(missing, np.float16)


def _reader(
    file: TensorSource, config: DecoderConfig, record: Record, dtype: Any
) -> Callable[[int, int], Array]:
    """Reads rows of a record, times the factor that the file has for them."""
    source, group = record.source, record.group
    plain = _rows(file, source, dtype) if group is None else _side_by_side(file, config, source, group, dtype)
    if not source.scale:
        return plain
    factors = file.array(source.scale, np.float32).reshape(-1).astype(np.float64)
    if group is not None:
        by_column = np.repeat(factors[group.first : group.first + group.count], config.mlp.dim)
        return lambda start, stop: plain(start, stop) * by_column
    by_row = np.repeat(factors, source.shape[0] // len(factors))
    axes = (...,) + (None,) * (len(source.shape) - 1)
    return lambda start, stop: plain(start, stop) * by_row[start:stop][axes]


def _rows(file: TensorSource, source: Source, dtype: Any) -> Callable[[int, int], Array]:
    """Rows of a weight; a vector and a transposed matrix come from the whole tensor."""
    if len(source.shape) > 1 and TRANSPOSE not in source.transforms:
        return lambda start, stop: file.rows(source.tensor, start + source.first, stop + source.first, dtype)
    whole = file.array(source.tensor, dtype)
    whole = whole.T if TRANSPOSE in source.transforms else whole.reshape(-1)
    return lambda start, stop: whole[start + source.first : stop + source.first]


def _side_by_side(
    file: TensorSource, config: DecoderConfig, source: Source, group: ExpertGroup, dtype: Any
) -> Callable[[int, int], Array]:
    """Rows of several experts, joined: `[experts, D, F]` of the file → rows of `[D, experts · F]`."""
    dim, experts = config.dim, range(group.first, group.first + group.count)

    def read(start: int, stop: int) -> Array:
        rows = [file.rows(source.tensor, e * dim + start, e * dim + stop, dtype) for e in experts]
        return np.concatenate(rows, axis=1)

    return read


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
