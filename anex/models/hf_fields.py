"""Reads `config.json` of a transformers checkpoint: which key is which field, and what became of each key.

Tables (`hf.toml`, `hf_models.toml`) say what a model type reads, ignores and refuses; which
values a field may have is `RULES` below.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import quoted
from anex.models.ledger import Ledger

Kind = type[int] | type[float] | type[str] | type[bool] | type[list[Any]] | type[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Values that a field may have.

    Attributes:
        low: Smallest number.
        high: Largest number.
        needed: The key has to be there, unless the model type has a default.
        null: null stands for None.
    """

    kind: Kind
    low: float = 1
    high: float = 2**31
    needed: bool = True
    null: bool = False


def optional(kind: Kind, low: float = 1, high: float = 2**31) -> Rule:
    """A field that may be missing or null."""
    return Rule(kind, low, high, needed=False, null=True)


_FACTOR = Rule(float, low=-1e6, high=1e6)

RULES: Mapping[str, Rule] = {
    "n_layers": Rule(int, high=512),
    "dim": Rule(int, high=32752),  # the sum inside RMSNorm stays below the engine's 2**15 cliff
    "ffn_dim": Rule(int, high=2**20, null=True),
    "context_length": Rule(int, high=2**24),
    "vocab_size": Rule(int, high=2**24),
    "n_heads": Rule(int, high=4096),
    "n_kv_heads": optional(int, high=4096),
    "head_dim": optional(int, high=4096),
    "norm_eps": Rule(float, low=1e-14, high=1e-1),
    "activation": Rule(str),
    "tied": Rule(bool),
    "window": optional(int),
    "use_window": Rule(bool),
    "max_window_layers": Rule(int, low=0, high=2**31),
    "window_pattern": optional(int, high=512),
    "layer_types": optional(list),
    "no_rope_layers": optional(list),
    "no_rope_interval": Rule(int, high=512),
    "rope_theta": optional(float, low=1e-3, high=1e12),
    "rope_local_theta": optional(float, low=1e-3, high=1e12),
    "rope_scaling": optional(dict),
    "rope_parameters": optional(dict),
    "rope_original": optional(int, high=2**24),
    "rope_partial": optional(float, low=0, high=1),
    "parallel": Rule(bool),
    "n_experts": Rule(int, high=4096),
    "n_used": Rule(int, high=4096),
    "normalised": Rule(bool),
    "embedding_scale": _FACTOR,
    "residual_scale": _FACTOR,
    "attention_scale": _FACTOR,
    "query_scalar": Rule(float, low=1e-6, high=1e6),
    "logit_scale": _FACTOR,
    "logit_divisor": Rule(float, low=1e-6, high=1e6),
    "score_cap": optional(float, low=1e-3, high=1e4),
    "logit_cap": optional(float, low=1e-3, high=1e4),
}


@cache
def tables() -> dict[str, Any]:
    """The whole of `hf.toml` and `hf_models.toml`."""
    folder = files(__package__)
    texts = (folder.joinpath(name).read_text("utf-8") for name in ("hf.toml", "hf_models.toml"))
    return {name: table for text in texts for name, table in tomllib.loads(text).items()}


def model_types() -> tuple[str, ...]:
    """The values of `model_type` that anex runs."""
    return tuple(sorted(tables()["model"]))


@cache
def table(model_type: str) -> dict[str, Any]:
    """The tables of one model type, with what it takes over from others."""
    own: dict[str, Any] = tables()["model"][model_type]
    merged = dict(table(own["like"])) if "like" in own else {}
    for name, value in own.items():
        if isinstance(value, dict):
            both = merged.get(name, {}) | value
            merged[name] = {key: entry for key, entry in both.items() if entry not in ("", [])}
        else:
            merged[name] = value
    return merged


def shown(value: Any) -> str:
    """A JSON value, short enough for one line of a message."""
    if isinstance(value, str):
        return quoted(value)
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


class ConfigReader:
    """Reads the keys of one config and settles their accounts.

    Args:
        config: The object in `config.json`.
        ledger: Receives the account of every key.

    Attributes:
        table: The tables of its model type.

    Raises:
        InputError: There is no `model_type`.
        UnsupportedError: The model type, or the class named by `architectures`, is not known.
    """

    def __init__(self, config: Mapping[str, Any], ledger: Ledger) -> None:
        self.config = config
        self.ledger = ledger
        model_type = config.get("model_type")
        if not isinstance(model_type, str):
            raise InputError("'model_type' is missing or no text", where=ledger.where)
        if model_type not in model_types():
            raise UnsupportedError(
                f"model_type {quoted(model_type)}",
                where=ledger.where,
                hint=f"known: {', '.join(model_types())}",
            )
        self.table = table(model_type)
        ledger.used("key", "model_type", "family")
        self._check_class()
        self._key_of = self._keys()

    def _check_class(self) -> None:
        """A class of another name computes something else with the same weights."""
        named, known = self.config.get("architectures"), self.table["architectures"]
        if named is not None and (not isinstance(named, list) or any(name not in known for name in named)):
            raise UnsupportedError(
                f"architectures {shown(named)}", where=self.ledger.where, hint=f"only {', '.join(known)}"
            )
        if "architectures" in self.config:
            self.ledger.used("key", "architectures", "family")

    def _keys(self) -> dict[str, str]:
        """Field → its key; of two names of one key, that which the file has."""
        found: dict[str, str] = {}
        for key, field in self.table["keys"].items():
            other = found.get(field)
            if other is not None and other in self.config and key in self.config:
                if self.config[key] != self.config[other]:
                    raise InputError(f"'{key}' and '{other}' differ", where=self.ledger.where)
                self.ledger.used("key", key, field)
            elif other is None or key in self.config:
                found[field] = key
        return found

    @property
    def fields(self) -> Collection[str]:
        """What the model type reads."""
        return self._key_of.keys()

    def key(self, field: str) -> str:
        """The key that holds a field."""
        return self._key_of.get(field, field)

    def has(self, field: str) -> bool:
        """Whether the file states a field that the model type reads."""
        return field in self._key_of and self.config.get(self._key_of[field]) is not None

    def error(self, field: str, what: str) -> InputError:
        """What to raise about the value of a field."""
        return InputError(what, where=f"{self.ledger.where}: {self.key(field)}")

    def refused(self, field: str) -> UnsupportedError:
        """What to raise about a value that is well-formed, but nothing that anex computes."""
        key = self.key(field)
        return UnsupportedError(f"'{key}' = {shown(self.config.get(key))}", where=self.ledger.where)

    def get(self, field: str) -> Any:
        """The value of a field, checked against `RULES`; None where there is none and none is needed.

        Raises:
            InputError: It is missing, of a wrong type, or out of range.
        """
        rule, key = RULES[field], self._key_of.get(field)
        default = self.table.get("defaults", {}).get(field)
        if key is None or key not in self.config:
            if default is None and rule.needed:
                raise InputError(f"the key '{self.key(field)}' is missing", where=self.ledger.where)
            return default
        value = self.config[key]
        if not (value is None and rule.null):
            self.check(key, rule, value)
        self.ledger.used("key", key, field)
        return value

    def check(self, key: str, rule: Rule, value: Any) -> None:
        """Whether a value follows a rule.

        Raises:
            InputError: It does not.
        """
        fitting = (int, float) if rule.kind is float else rule.kind
        where = f"{self.ledger.where}: {key}"
        if not isinstance(value, fitting) or (isinstance(value, bool) and rule.kind is not bool):
            raise InputError(f"{shown(value)} is no {rule.kind.__name__}", where=where)
        if isinstance(value, (int, float)) and not (
            isinstance(value, bool) or rule.low <= value <= rule.high
        ):
            raise InputError(f"{value} is not between {rule.low:g} and {rule.high:g}", where=where)

    def switched(self) -> frozenset[str]:
        """Roles that not every model of the family has and this one does, the head apart."""
        roles = set(self.table.get("always", ()))
        for key, behind in self.table.get("switches", {}).items():
            default = self.table.get("defaults", {}).get(key, False)
            value = self.config.get(key, default)
            self.check(key, Rule(bool), value)
            if key in self.config:
                self.ledger.used("key", key, "switch")
            if value:
                roles |= set(behind)
        return frozenset(roles)

    def close(self) -> None:
        """Account for every key that nothing read.

        Raises:
            UnsupportedError: A key is unknown, or switches on a feature that is missing.
        """
        for key in self.table["keys"]:
            if key in self.config and not self.ledger.knows("key", key):
                self.ledger.neutral("key", key, "without effect beside the other keys")
        only = tables()["only"] | self.table.get("only", {})
        neutral = tables()["neutral"] | self.table.get("neutral", {})
        for key, value in self.config.items():
            if self.ledger.knows("key", key):
                continue
            if key in only:
                self._demand(key, value, only[key])
                continue
            reason = next((why for pattern, why in neutral.items() if fnmatchcase(key, pattern)), None)
            if reason is not None:
                self.ledger.neutral("key", key, reason)
        self.ledger.close("key", self.config)

    def _demand(self, key: str, value: Any, allowed: list[Any]) -> None:
        spelt = {json.dumps(entry) for entry in allowed} | {
            entry for entry in allowed if entry in ("null", "{}", "[]")
        }
        if json.dumps(value) not in spelt:
            method = value.get("quant_method") if isinstance(value, dict) else None
            what = f"'{key}' {quoted(method)}" if isinstance(method, str) else f"'{key}' = {shown(value)}"
            raise UnsupportedError(
                what, where=self.ledger.where, hint=f"only {' or '.join(sorted(spelt))} is"
            )
        self.ledger.neutral("key", key, f"{shown(value)} leaves the model as it is")
