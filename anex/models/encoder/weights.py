"""The weights of an encoder: which tensors of a file they are, and how they get into the blob.

A weight is called by its role, `l0_` and so on before it: `l0_wq`, `embed_norm`.  The tables
of embeddings stay fp32: the host adds their rows before the one rounding to fp16.
What the program would multiply with a constant is multiplied into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anex.errors import InputError
from anex.mil import BlobWriter, DType, Literal, TensorType
from anex.models.encoder.config import EncoderConfig, Learned
from anex.models.encoder.tables import Table, matching
from anex.models.ledger import Ledger
from anex.models.tensors import TensorDescription, TensorSource, check_numbers
from anex.models.weights import CHUNK_BYTES, Progress

Array = np.ndarray[Any, np.dtype[Any]]

TABLES = ("word", "position", "segment")
"""Roles that the host reads."""

SHAPES: Mapping[str, tuple[str, ...]] = {
    "word": ("vocab", "dim"),
    "position": ("positions", "dim"),
    "segment": ("segments", "dim"),
    **dict.fromkeys(("embed_norm", "embed_norm_b", "norm", "norm_b"), ("dim",)),
    **dict.fromkeys(("attn_norm", "attn_norm_b", "ffn_norm", "ffn_norm_b"), ("dim",)),
    **dict.fromkeys(("wq", "wk", "wv", "wo"), ("dim", "dim")),
    **dict.fromkeys(("bq", "bk", "bv", "bo", "b_down"), ("dim",)),
    **dict.fromkeys(("w_up", "w_gate"), ("ffn_dim", "dim")),
    **dict.fromkeys(("b_up", "b_gate"), ("ffn_dim",)),
    "w_down": ("dim", "ffn_dim"),
}
"""Role → its shape, rows first, in `_SIZES`."""

_SIZES: Mapping[str, Callable[[EncoderConfig], int]] = {
    "vocab": lambda c: c.vocab_size,
    "positions": lambda c: c.positions.rows if isinstance(c.positions, Learned) else 0,
    "segments": lambda c: c.segments,
    "dim": lambda c: c.dim,
    "ffn_dim": lambda c: c.ffn_dim,
}

_SCALES: Mapping[str, Callable[[EncoderConfig], float]] = {
    # A norm divides by the root of the sum, not of the mean (see `anex.models.encoder.graph.layer_norm`).
    **dict.fromkeys(("embed_norm", "attn_norm", "ffn_norm", "norm"), lambda c: math.sqrt(c.dim)),
    **dict.fromkeys(("wq", "bq"), lambda c: 1.0 / math.sqrt(c.head_dim)),
}
"""Role → what its numbers are multiplied with."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight comes from: rows `first … first + shape[0] - 1` of a tensor."""

    role: str
    tensor: str
    first: int
    shape: tuple[int, ...]


def resolve(
    config: EncoderConfig, table: Table, tensors: Mapping[str, TensorDescription], ledger: Ledger
) -> tuple[EncoderConfig, dict[str, Source]]:
    """Find the tensor of every weight; a file that does not say how large its vocabulary is, shows it.

    Raises:
        InputError: A tensor is missing or has the wrong shape.
        UnsupportedError: A tensor is not part of the model that anex computes.
    """
    prefix = next((p for p in table.prefixes if p + table.names["word"] in tensors), table.prefixes[0])
    word = tensors.get(prefix + table.names["word"])
    if not config.vocab_size and word is not None and word.shape:
        config = replace(config, vocab_size=int(word.shape[0]))
    find = _Finder(config, table, tensors, ledger, prefix)
    for role in SHAPES:
        find(role)
    for name in tensors:
        if not ledger.knows("tensor", name) and (
            reason := matching(table.neutral_tensors, name)
            or matching(table.neutral_tensors, name[len(prefix) :])
        ):
            ledger.neutral("tensor", name, reason)
    ledger.close("tensor", tensors)
    return config, find.sources


class _Finder:
    def __init__(
        self,
        config: EncoderConfig,
        table: Table,
        tensors: Mapping[str, TensorDescription],
        ledger: Ledger,
        prefix: str,
    ) -> None:
        self.config = config
        self.table = table
        self.tensors = tensors
        self.ledger = ledger
        self.prefix = prefix
        self.sources: dict[str, Source] = {}
        self._fused = {role: (name, roles) for name, roles in table.fused.items() for role in roles}

    def __call__(self, role: str) -> None:
        """A role of the family, once or in every layer."""
        name, _ = self._fused.get(role, (self.table.names.get(role, ""), ()))
        if "{layer}" in name:
            for layer in range(self.config.n_layers):
                self._find(role, f"l{layer}_{role}", name.format(layer=layer))
        elif name and not (role == "segment" and not self.config.segments):
            self._find(role, role, name)

    def _find(self, role: str, weight: str, name: str) -> None:
        shape = tuple(_SIZES[size](self.config) for size in SHAPES[role])
        _, roles = self._fused.get(role, ("", (role,)))
        rows = [_SIZES[SHAPES[other][0]](self.config) for other in roles]
        tensor = self._present(self.prefix + name)
        if tensor is None:
            # The first layer of a family whose embeddings are normalised may do without its norm; others not.
            if role in self.table.optional and not (role == "attn_norm" and not weight.startswith("l0_")):
                return
            raise InputError(f"tensor '{self.prefix}{name}' is missing", where=self.ledger.where)
        check_numbers(tensor, self.tensors[tensor], self.ledger.where)
        found, expected = tuple(self.tensors[tensor].shape), (sum(rows), *shape[1:])
        if found != expected:
            raise InputError(
                f"tensor '{tensor}' has shape {list(found)}, expected {list(expected)}",
                where=self.ledger.where,
            )
        self.ledger.used("tensor", tensor, ", ".join(roles))
        self.sources[weight] = Source(role, tensor, sum(rows[: roles.index(role)]), shape)

    def _present(self, name: str) -> str | None:
        """The name under which the file has a tensor."""
        aliases = [name.removesuffix(e) + a for e, a in self.table.aliases.items() if name.endswith(e)]
        return next((n for n in (name, *aliases) if n in self.tensors), None)


def weight_types(sources: Mapping[str, Source]) -> dict[str, TensorType]:
    """Weight → its type in the blob: tables `[rows, D]`, matrices 1×1 kernels, vectors `[1, C, 1, 1]`."""

    def type_of(source: Source) -> TensorType:
        if source.role in TABLES:
            return TensorType(DType.FP32, source.shape)
        rows, *rest = source.shape
        return TensorType(DType.FP16, (rows, *rest, 1, 1) if rest else (1, rows, 1, 1))

    return {name: type_of(source) for name, source in sources.items()}


def write_blob(
    file: TensorSource,
    config: EncoderConfig,
    sources: Mapping[str, Source],
    writer: BlobWriter,
    progress: Progress | None = None,
) -> dict[str, Literal]:
    """Stream every weight into a blob; returns weight → literal.

    Raises:
        InputError: A number of a tensor is not finite, or does not fit fp16.
        ResourceError: The disk refuses.
    """
    weights: dict[str, Literal] = {}
    types = weight_types(sources)
    total, done = sum(type.nbytes for type in types.values()), 0
    for name, type in types.items():
        pieces = _pieces(file, config, sources[name], type.dtype)
        weights[name] = Literal(type, writer.add_chunks(type.dtype, type.size, pieces))
        done += type.nbytes
        if progress is not None:
            progress("convert", done, total)
    return weights


def _pieces(file: TensorSource, config: EncoderConfig, source: Source, dtype: DType) -> Iterator[Array]:
    """The numbers of a weight in order, a few rows at a time, each rounded once."""
    scale = np.float64(_SCALES[source.role](config) if source.role in _SCALES else 1.0)
    rows, last = source.shape[0], source.first + source.shape[0]
    if len(source.shape) == 1:
        yield _rounded(file.array(source.tensor, np.float32)[source.first : last] * scale, source, dtype)
        return
    step = max(1, CHUNK_BYTES // (4 * source.shape[1]))
    for start in range(source.first, source.first + rows, step):
        piece = file.rows(source.tensor, start, min(start + step, last), np.float32)
        yield _rounded(piece * scale, source, dtype)


def _rounded(numbers: Array, source: Source, dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float32 if dtype is DType.FP32 else np.float16)
    if not np.isfinite(rounded).all():
        raise InputError(
            f"tensor '{source.tensor}' has a number that is not finite, or is beyond float16 "
            f"once the constants of the model are multiplied in"
        )
    return rounded
