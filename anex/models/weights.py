"""The weights of a decoder: which tensors of a file they are, and how they get into the blob.

Every weight has a role, which is also the name of its constant in a program:
`embed`, `head`, `norm`, and per layer `l0_attn_norm`, `l0_wq`, `l0_bq` ….
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.mil import DType, Literal, TensorType
from anex.models.config import DecoderConfig
from anex.models.layout import padded_vocab
from anex.models.ledger import Ledger
from anex.models.rope import half_split_rows

if TYPE_CHECKING:
    from anex.formats.gguf import GGUFFile
    from anex.mil import BlobWriter

Half = np.ndarray[Any, np.dtype[np.float16]]
Progress = Callable[[int, int], None]
"""Called with the bytes written so far and in all."""

CHUNK_BYTES = 8 << 20
"""Weights are held in pieces of about this size."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One kind of weight.

    Attributes:
        tensor: Its name in a GGUF file; `{i}` is the layer.
        sizes: Its shape there (rows first), as fields of the config.
        optional: A bias, which a model has in every layer or in none.
    """

    role: str
    tensor: str
    sizes: tuple[str, ...]
    optional: bool = False


GLOBAL = (
    Spec("embed", "token_embd.weight", ("vocab_size", "dim")),
    Spec("norm", "output_norm.weight", ("dim",)),
    Spec("head", "output.weight", ("vocab_size", "dim"), optional=True),
)

LAYER = (
    Spec("attn_norm", "blk.{i}.attn_norm.weight", ("dim",)),
    Spec("wq", "blk.{i}.attn_q.weight", ("q_dim", "dim")),
    Spec("wk", "blk.{i}.attn_k.weight", ("kv_dim", "dim")),
    Spec("wv", "blk.{i}.attn_v.weight", ("kv_dim", "dim")),
    Spec("wo", "blk.{i}.attn_output.weight", ("dim", "q_dim")),
    Spec("ffn_norm", "blk.{i}.ffn_norm.weight", ("dim",)),
    Spec("w_gate", "blk.{i}.ffn_gate.weight", ("ffn_dim", "dim")),
    Spec("w_up", "blk.{i}.ffn_up.weight", ("ffn_dim", "dim")),
    Spec("w_down", "blk.{i}.ffn_down.weight", ("dim", "ffn_dim")),
    Spec("bq", "blk.{i}.attn_q.bias", ("q_dim",), optional=True),
    Spec("bk", "blk.{i}.attn_k.bias", ("kv_dim",), optional=True),
    Spec("bv", "blk.{i}.attn_v.bias", ("kv_dim",), optional=True),
    Spec("bo", "blk.{i}.attn_output.bias", ("dim",), optional=True),
    Spec("b_gate", "blk.{i}.ffn_gate.bias", ("ffn_dim",), optional=True),
    Spec("b_up", "blk.{i}.ffn_up.bias", ("ffn_dim",), optional=True),
    Spec("b_down", "blk.{i}.ffn_down.bias", ("dim",), optional=True),
)

ROTATED = frozenset({"wq", "wk", "bq", "bk"})
"""Roles whose rows are brought into the half-split order of RoPE."""

FREQ_FACTORS = "rope_freqs.weight"
"""Tensor with one divisor per RoPE frequency."""

QKV = ("wq", "wk", "wv"), ("bq", "bk", "bv")
"""Roles that a file may also hold as rows of one `attn_qkv` tensor, in this order."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight comes from: rows `first … first + shape[0] - 1` of a tensor."""

    spec: Spec
    tensor: str
    first: int
    shape: tuple[int, ...]


class _Tensor(Protocol):
    """What `resolve` needs to know of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def resolve(
    config: DecoderConfig, tensors: Mapping[str, _Tensor], ledger: Ledger
) -> tuple[DecoderConfig, dict[str, Source]]:
    """Find the tensor of every role and complete the config with what tensors tell.

    Returns:
        The config with `vocab_size`, `tied` and `biases`, and role → source.
        A tied head has no source of its own.

    Raises:
        InputError: A tensor is missing or has the wrong shape.
        UnsupportedError: A tensor is not part of the model that anex computes.
    """
    finder = _Finder(config, tensors, ledger)
    if config.vocab_size == 0 and "token_embd.weight" in tensors:
        finder.config = replace(config, vocab_size=int(tensors["token_embd.weight"].shape[0]))
    for spec in GLOBAL:
        finder.find(spec, spec.role, 0)
    for spec in LAYER:
        for i in range(config.n_layers):
            finder.find(spec, f"l{i}_{spec.role}", i)
    if FREQ_FACTORS in tensors:
        finder.check(FREQ_FACTORS, (config.rope.dims // 2,))
        ledger.used("tensor", FREQ_FACTORS, "rope.freq_factors")
    ledger.close("tensor", tensors)
    biases = [spec.role for spec in LAYER if spec.optional and finder.in_every_layer(spec.role)]
    return (
        replace(
            finder.config,
            tied="head" not in finder.sources,
            biases=frozenset("w" + role.removeprefix("b") for role in biases),
        ),
        finder.sources,
    )


class _Finder:
    def __init__(self, config: DecoderConfig, tensors: Mapping[str, _Tensor], ledger: Ledger) -> None:
        self.config = config
        self.tensors = tensors
        self.ledger = ledger
        self.sources: dict[str, Source] = {}

    def find(self, spec: Spec, name: str, layer: int) -> None:
        shape = self.shape(spec)
        tensor, first, whole, note = spec.tensor.format(i=layer), 0, shape, spec.role
        if tensor not in self.tensors and (fused := self._fused(spec, layer)):
            tensor, first, whole = fused
            note = "q, k and v"
        if tensor not in self.tensors:
            if spec.optional:
                return
            raise InputError(f"tensor '{tensor}' {list(shape)} is missing", where=self.ledger.where)
        self.check(tensor, whole)
        self.ledger.used("tensor", tensor, note)
        self.sources[name] = Source(spec, tensor, first, shape)

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

    def shape(self, spec: Spec) -> tuple[int, ...]:
        return tuple(getattr(self.config, size) for size in spec.sizes)

    def check(self, tensor: str, expected: tuple[int, ...]) -> None:
        found = tuple(self.tensors[tensor].shape)
        if found != expected:
            raise InputError(
                f"tensor '{tensor}' has shape {list(found)}, expected {list(expected)}",
                where=self.ledger.where,
            )

    def _fused(self, spec: Spec, layer: int) -> tuple[str, int, tuple[int, ...]] | None:
        for roles, suffix in zip(QKV, ("weight", "bias"), strict=True):
            tensor = f"blk.{layer}.attn_qkv.{suffix}"
            if spec.role not in roles or tensor not in self.tensors:
                continue
            rows = [self.config.q_dim, self.config.kv_dim, self.config.kv_dim]
            first = sum(rows[: roles.index(spec.role)])
            return tensor, first, (sum(rows), *self.shape(spec)[1:])
        return None


def literal_types(config: DecoderConfig, sources: Mapping[str, Source]) -> dict[str, TensorType]:
    """Role → the type under which programs use a weight, in the order of the blob.

    Matrices are 1×1 kernels, vectors `[1, C, 1, 1]`, all fp16.  A tied head
    comes last; it is the embedding table under another shape.
    """
    vocab = padded_vocab(config)
    special = {"embed": (vocab, config.dim), "head": (vocab, config.dim, 1, 1)}

    def shape(role: str, source: Source) -> tuple[int, ...]:
        if role in special:
            return special[role]
        return (1, *source.shape, 1, 1) if len(source.shape) == 1 else (*source.shape, 1, 1)

    shapes = {role: shape(role, source) for role, source in sources.items()}
    shapes |= {"head": special["head"]} if config.tied else {}
    return {role: TensorType(DType.FP16, dims) for role, dims in shapes.items()}


def write_blob(
    gguf: GGUFFile,
    config: DecoderConfig,
    sources: Mapping[str, Source],
    writer: BlobWriter,
    progress: Progress | None = None,
) -> dict[str, Literal]:
    """Stream every weight into a blob as fp16; returns role → literal.

    A tied head is the embedding table under another shape: the same bytes.

    Raises:
        InputError: A value of a tensor does not fit fp16.
        ResourceError: The disk refuses.
    """
    weights: dict[str, Literal] = {}
    types = literal_types(config, sources)
    total = sum(types[role].nbytes for role in sources)
    done = 0
    for role, source in sources.items():
        type = types[role]
        ref = writer.add_chunks(DType.FP16, type.size, _pieces(gguf, config, source, type.size))
        weights[role] = Literal(type, ref)
        done += type.nbytes
        if progress is not None:
            progress(done, total)
    if config.tied:
        weights["head"] = Literal(types["head"], weights["embed"].data)
    return weights


def _pieces(gguf: GGUFFile, config: DecoderConfig, source: Source, size: int) -> Iterator[Half]:
    """The elements of one weight in order, a few rows at a time, zeros after the last."""
    shuffle = half_split_rows(config.rope, config.head_dim) if source.spec.role in ROTATED else None
    rows, columns = source.shape[0], int(np.prod(source.shape[1:]))
    step = max(1, CHUNK_BYTES // (2 * columns * config.head_dim)) * config.head_dim
    for start in range(0, rows, step):
        piece = _rows(gguf, source, start, min(start + step, rows))
        if shuffle is not None:
            piece = piece.reshape(-1, config.head_dim, columns)[:, shuffle]
        yield piece
    if missing := size - rows * columns:
        yield np.zeros(missing, np.float16)


def _rows(gguf: GGUFFile, source: Source, start: int, stop: int) -> Half:
    """Rows of a matrix, or elements of a vector, as fp16."""
    start, stop = start + source.first, stop + source.first
    if len(source.shape) == 1:
        return gguf.array(source.tensor, np.float16)[start:stop]
    return gguf.rows(source.tensor, start, stop, np.float16)
