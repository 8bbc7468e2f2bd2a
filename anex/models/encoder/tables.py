"""What is known of the encoder families: `encoders.toml`, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import quoted
from anex.models.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Table:
    """A family in the files of one format; see `encoders.toml`.

    Attributes:
        keys: Key of the file → field.
        prefixes: What may stand before every name of a tensor; a file has one of them.
        names: Role → tensor; `{layer}` in a name is the number of the layer.
        fused: Tensor → the roles whose rows it holds one after the other.
        aliases: End of a name → another one that files have instead.
        optional: Roles without which there is still such a model.
        neutral_tensors: Pattern of a tensor → why it does not matter.
    """

    family: str
    keys: Mapping[str, str]
    defaults: Mapping[str, Any]
    only: Mapping[str, list[Any]]
    neutral: Mapping[str, str]
    prefixes: tuple[str, ...]
    names: Mapping[str, str]
    fused: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str]
    optional: frozenset[str]
    neutral_tensors: Mapping[str, str]
    norm_first: bool


@cache
def _document() -> dict[str, Any]:
    text = files("anex.models.encoder").joinpath("encoders.toml").read_text("utf-8")
    return tomllib.loads(text)


def families(format: str) -> Mapping[str, str]:
    """Name that a file of a format gives its family → table."""
    found: Mapping[str, str] = _document()[format]["families"]
    return found


def table(format: str, name: str) -> Table:
    """The table of a known family."""
    whole = _document()[format]
    own = whole[families(format)[name]]
    base = whole[own["like"]] if "like" in own else {}

    def both(part: str) -> dict[str, Any]:
        merged: dict[str, Any] = {**base.get(part, {}), **own.get(part, {})}
        return merged

    return Table(
        family=families(format)[name],
        keys=both("keys"),
        defaults=both("defaults"),
        only=whole["only"] | both("only"),
        neutral=whole["neutral"] | both("neutral"),
        prefixes=tuple(own["prefixes"]),
        names=both("names"),
        fused={tensor: tuple(roles) for tensor, roles in both("fused").items()},
        aliases=both("aliases"),
        optional=frozenset((base | own).get("optional", ())),
        neutral_tensors=both("neutral_tensors"),
        norm_first=own.get("norm_first", False),
    )


def matching(patterns: Mapping[str, str], name: str) -> str | None:
    """What a table says for a name, by its patterns; None where nothing fits."""
    return next((reason for pattern, reason in patterns.items() if fnmatchcase(name, pattern)), None)


@dataclass(frozen=True, slots=True)
class Rule:
    """Values that a field may have."""

    kind: type[int] | type[float] | type[str] | type[list[Any]] | type[dict[str, Any]]
    low: float = 1
    high: float = 2**31


RULES: Mapping[str, Rule] = {
    "dim": Rule(int, high=32752),  # the sums inside the norms stay below the engine's 2**15 cliff
    "n_layers": Rule(int, high=512),
    "n_heads": Rule(int, high=4096),
    "ffn_dim": Rule(int, high=2**20),
    "vocab_size": Rule(int, low=0, high=2**24),
    "position_rows": Rule(int, high=2**20),
    "longest": Rule(int, high=2**20),
    "segments": Rule(int, low=0, high=2**16),
    "padding": Rule(int, low=0, high=2**20),
    "pooling_type": Rule(int, low=-1, high=100),
    "activation": Rule(str),
    "eps": Rule(float, low=1e-14, high=1e-1),
    "rope_theta": Rule(float, low=1e-3, high=1e12),
    "local_rope_theta": Rule(float, low=1e-3, high=1e12),
    "local_attention": Rule(int, low=2, high=2**20),
    "global_every": Rule(int, high=512),
    "layer_types": Rule(list),
    "rope_parameters": Rule(dict),
}


def read_fields(values: Mapping[str, Any], table: Table, ledger: Ledger) -> dict[str, Any]:
    """Every field of a family, and the account of every key.

    Raises:
        InputError: A key is missing, of a wrong type or out of range.
        UnsupportedError: A key is unknown, or switches on what anex does not compute.
    """
    fields = dict(table.defaults)
    for key, field in table.keys.items():
        if key in values:
            fields[field] = _checked(key, values[key], RULES[field], ledger.where)
            ledger.used("key", key, field)
        elif field not in fields:
            raise InputError(f"the key '{key}' is missing", where=ledger.where)
    for key, value in values.items():
        if key in table.only:
            if _plain(value) not in table.only[key]:
                wanted = " or ".join(map(str, table.only[key]))
                raise UnsupportedError(
                    f"'{key}' {_shown(value)}", where=ledger.where, hint=f"only {wanted} is"
                )
            ledger.neutral("key", key, f"{_plain(value)} leaves the model as it is")
        elif not ledger.knows("key", key) and (reason := matching(table.neutral, key)):
            ledger.neutral("key", key, reason)
    return fields


def _checked(key: str, value: Any, rule: Rule, where: str) -> Any:
    kinds = (int, float) if rule.kind is float else rule.kind
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InputError(f"'{key}' is {_shown(value)}, no {rule.kind.__name__}", where=where)
    if isinstance(value, (int, float)) and not rule.low <= value <= rule.high:
        raise InputError(f"'{key}' {value} is not between {rule.low:g} and {rule.high:g}", where=where)
    return value


def _plain(value: Any) -> Any:
    """A value as `only` lists write it; TOML has no null, and an empty table would be a table."""
    return "null" if value is None else "{}" if value == {} and isinstance(value, dict) else value


def _shown(value: Any) -> str:
    """A value of a file, short enough for one line of a message."""
    if isinstance(value, str):
        return quoted(value)
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__} of {len(value)}"
