"""What is known of the model families: `families.toml` and `gguf.toml`, read once.

A family is the mathematics; a format is where its numbers are written.  What
differs between files of the same family is data of the pair.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def tables() -> dict[str, Any]:
    """The whole of `families.toml` and `gguf.toml`."""
    here = files(__package__)
    texts = (here.joinpath(name).read_text("utf-8") for name in ("families.toml", "gguf.toml"))
    return {key: value for text in texts for key, value in tomllib.loads(text).items()}


def families(format: str = "gguf") -> tuple[str, ...]:
    """Families that anex runs from files of a format, by the name that the file gives them."""
    return tuple(sorted(name for name, family in tables()["family"].items() if format in family))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the weights of a family lie in the files of one format.

    Attributes:
        names: Role → tensor; `{layer}` in a name is the number of the layer.
        fused: Tensor → the roles whose rows it holds one after the other, where a
            file has it instead of their own tensors.
        required: Roles without which there is no such model.
        optional: Roles that a model may have, then in every layer.  A tensor of
            any other role is refused: it would change the mathematics.
        transforms: Role → steps on its rows (`anex.models.weights.TRANSFORMS`), in order.
        scaled: Roles for whose weights the file may have a factor, in a tensor of its own.
        unused: Tensor that has no part in the logits → the reason.
    """

    names: Mapping[str, str]
    fused: Mapping[str, tuple[str, ...]]
    required: frozenset[str]
    optional: frozenset[str]
    transforms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scaled: frozenset[str] = frozenset()
    unused: Mapping[str, str] = field(default_factory=dict)


ROTATED = ("wq", "wk", "bq", "bk", "q_norm", "k_norm")
"""Roles whose rows are channels of heads that turn."""


def recipe(family: str, format: str = "gguf") -> Recipe:
    """The recipe of a known family."""
    maths, own = tables()["family"][family], tables()["family"][family][format]
    common = tables()[format]
    transforms = {role: tuple(steps) for role, steps in own.get("transforms", {}).items()}
    if own.get("interleaved", False):
        transforms |= {role: (*transforms.get(role, ()), "half_split") for role in ROTATED}
    fused = own.get("fused", {}) | common["fused"]
    return Recipe(
        names=common["names"] | own.get("names", {}),
        fused={tensor: tuple(roles) for tensor, roles in fused.items()},
        required=frozenset(maths["required"]),
        optional=frozenset(maths["optional"]),
        transforms=transforms,
        unused=own.get("unused", {}),
        scaled=frozenset(role for name in own.get("scaled", []) for role in common["scaled"][name]),
    )
