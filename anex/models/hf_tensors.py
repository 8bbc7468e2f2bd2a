"""The tensors of a checkpoint: what they are called, which hold nothing, and how rows lie in other orders.

Two things of checkpoints have no other form in a recipe, so the file is seen
through `Regrouped`: experts are a tensor each, and GPT-NeoX writes queries,
keys and values of each head together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from anex.errors import InputError
from anex.models.config import DecoderConfig
from anex.models.families import ROTATED, Recipe
from anex.models.hf_fields import ConfigReader, tables
from anex.models.tensors import TensorDescription, TensorSource

Array = np.ndarray[Any, np.dtype[Any]]

BASE = "model."
"""Begins the names of all tensors but the head's, unless the checkpoint was saved without a head."""


def recipe(read: ConfigReader, tensors: Mapping[str, TensorDescription], roles: frozenset[str]) -> Recipe:
    """Where the weights of these roles lie, all of them required."""
    table = read.table
    names: dict[str, str] = tables()["names"] | table.get("names", {})
    fused: dict[str, list[str]] = table.get("fused", {})
    prefix = table.get("prefix", BASE)
    if names["embed"] not in tensors and names["embed"].removeprefix(prefix) in tensors:
        names = {role: name.removeprefix(prefix) for role, name in names.items()}
        fused = {name.removeprefix(prefix): inside for name, inside in fused.items()}
    transforms = {role: tuple(steps) for role, steps in table.get("transforms", {}).items()}
    if table.get("interleaved", False):
        transforms |= {role: (*transforms.get(role, ()), "half_split") for role in ROTATED}
    return Recipe(
        names=names,
        fused={tensor: tuple(inside) for tensor, inside in fused.items()},
        required=roles,
        optional=frozenset(),
        transforms=transforms,
    )


def settle(read: ConfigReader, file: TensorSource, plan: Recipe, tied: bool) -> None:
    """Account for the tensors that hold nothing of the model.

    Raises:
        InputError: The head is said to be tied, and is not.
    """
    patterns = tables()["tensors"] | read.table.get("tensors", {})
    for name in file.tensors:
        reason = next((why for pattern, why in patterns.items() if fnmatchcase(name, pattern)), None)
        if reason is not None:
            read.ledger.neutral("tensor", name, reason)
    head, embed = plan.names["head"], plan.names["embed"]
    if not tied or head not in file.tensors or embed not in file.tensors:
        return
    if not _equal(file, head, embed):
        # Versions of transformers do not agree on what counts then.
        raise InputError(
            f"tensor '{head}' is not '{embed}', though '{read.key('tied')}' says so",
            where=read.ledger.where,
            hint=f"set '{read.key('tied')}' to what the model was trained with",
        )
    read.ledger.neutral("tensor", head, "the same numbers as the embedding table")


def _equal(file: TensorSource, one: str, other: str) -> bool:
    shape = tuple(file.tensors[one].shape)
    if shape != tuple(file.tensors[other].shape) or len(shape) != 2:
        return False
    step = max(1, (4 << 20) // max(1, shape[1]))
    pieces = ((start, min(start + step, shape[0])) for start in range(0, shape[0], step))
    return all(np.array_equal(file.rows(one, *piece), file.rows(other, *piece)) for piece in pieces)


# --- rows in another order --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `first … first + count - 1` of a tensor."""

    tensor: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that is made of rows of others, one block after the other."""

    name: str
    shape: tuple[int, ...]
    storage: str
    nbytes: int
    blocks: tuple[Block, ...]


class Regrouped:
    """The tensors of a file, with some made of others in their place; see `TensorSource`.

    Args:
        file: Closed with this.
        made: What takes the place of the tensors that it is made of.
    """

    def __init__(self, file: TensorSource, made: Sequence[Made]) -> None:
        self._file = file
        self._made = {tensor.name: tensor for tensor in made}
        used = {block.tensor for tensor in made for block in tensor.blocks}
        kept: dict[str, TensorDescription] = {n: t for n, t in file.tensors.items() if n not in used}
        self.tensors: Mapping[str, TensorDescription] = MappingProxyType({**kept, **self._made})

    @property
    def files(self) -> Sequence[Path]:
        return self._file.files

    @property
    def nbytes(self) -> int:
        return self._file.nbytes

    def rows(self, tensor: str, start: int, stop: int, dtype: npt.DTypeLike = np.float32) -> Array:
        if tensor not in self._made:
            return self._file.rows(tensor, start, stop, dtype)
        pieces = [
            self._file.rows(name, first, last, dtype)
            for name, first, last in _within(self._made[tensor].blocks, start, stop)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def array(self, tensor: str, dtype: npt.DTypeLike = np.float32) -> Array:
        made = self._made.get(tensor)
        if made is None:
            return self._file.array(tensor, dtype)
        if len(made.shape) > 1:
            return self.rows(tensor, 0, math.prod(made.shape[:-1]), dtype).reshape(made.shape)
        whole = {block.tensor: self._file.array(block.tensor, dtype) for block in made.blocks}
        return np.concatenate([whole[b.tensor][b.first : b.first + b.count] for b in made.blocks])

    def fingerprint(self) -> bytes:
        return self._file.fingerprint()

    def close(self) -> None:
        self._file.close()


def _within(blocks: Sequence[Block], start: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """(tensor, first row, one past the last) of rows `start … stop - 1` of all blocks together."""
    before = 0
    for block in blocks:
        first, last = max(start - before, 0), min(stop - before, block.count)
        if first < last:
            yield block.tensor, block.first + first, block.first + last
        before += block.count


def regrouped(
    read: ConfigReader, file: TensorSource, config: DecoderConfig, plan: Recipe
) -> tuple[TensorSource, Recipe]:
    """The file as a recipe can name its tensors, and that recipe.

    Raises:
        InputError: Tensors that belong together differ in shape.
    """
    made: list[Made] = []
    names = dict(plan.names)
    for pattern, roles in read.table.get("per_head", {}).items():
        for index, role in enumerate(roles):
            names[role] = f"{pattern}: {role}"
            made += _of_layers(read, file, config, names[role], _heads(config, pattern, index, len(roles)))
    experts = config.mlp.experts
    for role, (pattern, part, parts) in read.table.get("experts", {}).items() if experts else ():
        names[role] = pattern.replace("{expert}", "*") + (f": {role}" if parts > 1 else "")
        made += _of_layers(read, file, config, names[role], _experts(config, pattern, part, parts))
    if not made:
        return file, plan
    return Regrouped(file, made), Recipe(names, plan.fused, plan.required, plan.optional, plan.transforms)


Parts = Sequence[tuple[str, int, int]]
"""(tensor with `{layer}` in its name, first row, rows)."""


def _heads(config: DecoderConfig, pattern: str, index: int, roles: int) -> Parts:
    size = config.attention.head_dim
    return [(pattern, (head * roles + index) * size, size) for head in range(config.attention.n_heads)]


def _experts(config: DecoderConfig, pattern: str, part: int, parts: int) -> Parts:
    """Each expert's tensor, or its rows of one that holds all; `parts` roles share the rows of an expert."""
    assert config.mlp.experts is not None
    down = part < 0
    rows = config.dim if down else config.mlp.dim
    each = "{expert}" in pattern
    return [
        (
            pattern.replace("{expert}", str(expert)),
            (0 if each else expert * rows * parts) + max(part, 0) * rows,
            rows,
        )
        for expert in range(config.mlp.experts.count)
    ]


def _of_layers(
    read: ConfigReader, file: TensorSource, config: DecoderConfig, name: str, parts: Parts
) -> Iterator[Made]:
    """The tensor of each layer; where a part is missing the recipe says so."""
    for layer in range(config.n_layers):
        blocks = tuple(Block(tensor.format(layer=layer), first, count) for tensor, first, count in parts)
        if any(block.tensor not in file.tensors for block in blocks):
            continue
        shapes = {block.tensor: tuple(file.tensors[block.tensor].shape) for block in blocks}
        first = shapes[blocks[0].tensor]
        rows = sum(block.count for block in blocks)
        stored = {
            tensor: shape[0] if len(shape) == 1 else math.prod(shape[:-1]) for tensor, shape in shapes.items()
        }
        for block in blocks:
            if shapes[block.tensor][1:] != first[1:] or block.first + block.count > stored[block.tensor]:
                raise InputError(
                    f"tensor '{block.tensor}' has shape {list(shapes[block.tensor])}, "
                    f"expected rows {block.first} to {block.first + block.count}",
                    where=read.ledger.where,
                )
            read.ledger.used("tensor", block.tensor, "with others of its kind")
        width = () if len(first) == 1 else (first[-1],)
        shape = (
            (len(blocks), rows // len(blocks), *width) if "*" in name or len(first) == 3 else (rows, *width)
        )
        nbytes = sum(file.tensors[b.tensor].nbytes * b.count // stored[b.tensor] for b in blocks)
        storage = file.tensors[blocks[0].tensor].storage
        yield Made(name.format(layer=layer), shape, storage, nbytes, blocks)
