"""From the metadata of a GGUF file to the config of a decoder.

What each family reads, ignores and refuses is data (`families.toml`); which
values a field may have is the table `FIELDS` below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import quoted
from anex.models.config import Attention, DecoderConfig, Mlp, Norm
from anex.models.families import families, tables
from anex.models.ledger import Ledger
from anex.models.rope import Rope
from anex.models.tokenizer import keys as tokenizer_keys


@dataclass(frozen=True, slots=True)
class Field:
    """Values that one key may have; `default` None means the key must be there."""

    kind: type[int] | type[float] | type[str]
    low: float = 1
    high: float = 2**31
    default: Any = None
    per_layer: bool = False


ABSENT = object()

FIELDS: Mapping[str, Field] = {
    "n_layers": Field(int, high=512),
    "dim": Field(int, high=32752),  # the sum inside RMSNorm stays below the engine's 2**15 cliff
    "ffn_dim": Field(int, high=2**20, per_layer=True),
    "context_length": Field(int, high=2**24),
    "vocab_size": Field(int, high=2**24, default=ABSENT),
    "n_heads": Field(int, high=4096, per_layer=True),
    "n_kv_heads": Field(int, high=4096, default=ABSENT, per_layer=True),
    "key_length": Field(int, high=4096, default=ABSENT),
    "value_length": Field(int, high=4096, default=ABSENT),
    "norm_eps": Field(float, low=1e-14, high=1e-1),
    "sliding_window": Field(int, low=0, default=0),
    "rope_dims": Field(int, high=4096, default=ABSENT),
    "rope_theta": Field(float, low=1e-3, high=1e12, default=10000.0),
    "rope_scaling": Field(str, default="linear"),
    "rope_factor": Field(float, low=0, high=1e6, default=0.0),
    "rope_factor_old": Field(float, low=0, high=1e6, default=0.0),
    "rope_attn_factor": Field(float, low=1e-6, high=1e6, default=1.0),
}

_MIN_ROOT = 2.0**-14
"""Smallest normal number of fp16."""


def shown(value: Any) -> str:
    """A value of a file, short enough for one line of a message."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (Sequence, np.ndarray)):
        return f"an array of {len(value)}"
    return repr(value)


class Reader:
    """Reads the keys of one family from metadata and settles their accounts.

    Args:
        metadata: Key to value, as `GGUFFile.metadata` gives it.
        ledger: Receives the account of every key.

    Raises:
        UnsupportedError: The architecture is not known.
        InputError: The file does not name one.
    """

    def __init__(self, metadata: Mapping[str, Any], ledger: Ledger) -> None:
        self.metadata = metadata
        self.ledger = ledger
        arch = metadata.get("general.architecture")
        if not isinstance(arch, str):
            raise InputError("'general.architecture' is missing or no string", where=ledger.where)
        if arch not in families():
            raise UnsupportedError(
                f"architecture {quoted(arch)}", where=ledger.where, hint=f"known: {', '.join(families())}"
            )
        ledger.used("key", "general.architecture", "family")
        self.family = arch
        self.maths: dict[str, Any] = tables()["family"][arch]
        self.table: dict[str, Any] = self.maths["gguf"]
        self._format: dict[str, Any] = tables()["gguf"]
        self._key_of = {name: f"{arch}.{suffix}" for suffix, name in self._format["fields"].items()}
        self._reads = {self._format["fields"][suffix] for suffix in self.table["keys"]}

    def key(self, field: str) -> str:
        """The key that holds a field, whether the family reads it or not."""
        return self._key_of[field]

    def has(self, field: str) -> bool:
        """Whether the file has a field that the family reads."""
        return field in self._reads and self.key(field) in self.metadata

    def error(self, field: str, what: str) -> InputError:
        return InputError(what, where=f"{self.ledger.where}: {self.key(field)}")

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field, checked against `FIELDS`.

        Args:
            default: Used where the file has no such key and the table has no default.
        """
        rule, key = FIELDS[field], self.key(field)
        if not self.has(field):
            if rule.default is None and default is None:
                raise InputError(f"the key '{key}' is missing", where=self.ledger.where)
            return default if rule.default in (None, ABSENT) else rule.default
        value = self.metadata[key]
        if rule.per_layer and isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
            value = self._same_in_every_layer(field, value)
        self._check(field, rule, value)
        self.ledger.used("key", key, field)
        return value

    def _same_in_every_layer(self, field: str, value: Any) -> Any:
        """The one number of a list with one number for each layer."""
        layers = self.get("n_layers")
        if len(value) != layers:
            raise self.error(field, f"the list has {len(value)} entries for {layers} layers")
        if any(not isinstance(entry, (int, float, np.number)) for entry in value):
            raise self.error(field, "the list holds something else than numbers")
        distinct = set(np.asarray(value).tolist())
        if len(distinct) > 1:
            raise UnsupportedError(
                f"'{self.key(field)}' that differs between layers", where=self.ledger.where
            )
        return distinct.pop()

    def _check(self, field: str, rule: Field, value: Any) -> None:
        fitting = (int, float) if rule.kind is float else rule.kind
        if not isinstance(value, fitting) or isinstance(value, bool):
            raise self.error(field, f"{shown(value)} is no {rule.kind.__name__}")
        if not isinstance(value, str) and not rule.low <= value <= rule.high:
            raise self.error(field, f"{value} is not between {rule.low:g} and {rule.high:g}")

    def close(self) -> None:
        """Account for every key that no field reads.

        Raises:
            UnsupportedError: A key is unknown, or switches on a feature that is missing.
        """
        prefix = self.family + "."
        demanded = self._format["only"] | {prefix + k: v for k, v in self._format["off"].items()}
        for key, value in self.metadata.items():
            if self.ledger.knows("key", key):
                continue
            if key in demanded:
                self._demand(key, value, demanded[key])
            elif key in tokenizer_keys.CONSUMED:
                self.ledger.used("key", key, "tokenizer")
            elif reason := self._neutral(key):
                self.ledger.neutral("key", key, reason)
        self.ledger.close("key", self.metadata)

    def _neutral(self, key: str) -> str | None:
        """Why a key does not matter; None where no table says that it does not."""
        if key.startswith(tokenizer_keys.PREFIX):
            return tokenizer_keys.neutral_reason(key)
        own = {f"{self.family}.{k}": v for k, v in self.table.get("neutral", {}).items()}
        known: Mapping[str, str] = own | self._format["neutral"]
        return next((reason for pattern, reason in known.items() if fnmatchcase(key, pattern)), None)

    def _demand(self, key: str, value: Any, wanted: Any) -> None:
        if isinstance(value, np.ndarray) or value != wanted:
            raise UnsupportedError(
                f"metadata key '{key}' = {shown(value)}", where=self.ledger.where, hint=f"only {wanted} is"
            )
        self.ledger.neutral("key", key, f"{wanted} leaves the model as it is")


def from_metadata(metadata: Mapping[str, Any], ledger: Ledger) -> DecoderConfig:
    """The config that a GGUF file's metadata describes, every key accounted for.

    What only the tensors tell (tied head, biases, frequency factors and, where
    the key is missing, the vocabulary) is filled in by `anex.models.weights`.

    Raises:
        InputError: A key is missing, of a wrong type or out of range.
        UnsupportedError: The family, a key or a value is not supported.
    """
    read = Reader(metadata, ledger)
    dim = read.get("dim")
    attention = _attention(read, dim)
    config = DecoderConfig(
        family=read.family,
        n_layers=read.get("n_layers"),
        dim=dim,
        vocab_size=read.get("vocab_size", 0),
        context_length=read.get("context_length"),
        norm=_norm(read, dim),
        attention=attention,
        mlp=Mlp(read.get("ffn_dim")),
        rope=_rope(read, attention.head_dim),
    )
    read.close()
    return config


def _norm(read: Reader, dim: int) -> Norm:
    eps = float(read.get("norm_eps"))
    if math.sqrt(eps * dim) < _MIN_ROOT:
        raise UnsupportedError(
            f"'{read.key('norm_eps')}' {eps:g} with {dim} channels",
            where=read.ledger.where,
            hint=f"it counts as sqrt({eps:g} · {dim}), which is below fp16's smallest normal number",
        )
    return Norm(eps)


def _attention(read: Reader, dim: int) -> Attention:
    n_heads = read.get("n_heads")
    n_kv_heads = read.get("n_kv_heads", n_heads)
    if n_heads % n_kv_heads:
        raise read.error("n_kv_heads", f"{n_heads} heads cannot share {n_kv_heads} key heads")
    head_dim = _head_dim(read, dim, n_heads)
    return Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        window=read.get("sliding_window") or None,
    )


def _head_dim(read: Reader, dim: int, n_heads: int) -> int:
    length: int = read.get("key_length", dim // n_heads)
    if not read.has("key_length") and dim % n_heads:
        raise read.error("n_heads", f"{dim} channels cannot be split into {n_heads} heads")
    value_length = read.get("value_length", dim // n_heads)
    if value_length != length:
        raise UnsupportedError(
            f"'{read.key('value_length')}' {value_length} beside a key length of {length}",
            where=read.ledger.where,
        )
    if length % 2:
        raise read.error("n_heads", f"a head of {length} channels has no pairs to rotate")
    return length


def _linear_factor(read: Reader) -> float:
    """Zero means "not set", and the old key only counts where the new one is missing."""
    factor, old_factor = read.get("rope_factor"), read.get("rope_factor_old")
    return float((factor if read.has("rope_factor") else old_factor) or 1.0)


def _no_factor(read: Reader) -> float:
    """The factors are read, so that a file with a bad one is refused, and do not count."""
    _linear_factor(read)
    return 1.0


ROPE_SCALINGS: Mapping[str, Callable[[Reader], float]] = {"none": _no_factor, "linear": _linear_factor}
"""Kind of RoPE scaling → what positions are divided by."""


def _rope(read: Reader, head_dim: int) -> Rope:
    dims = read.get("rope_dims", head_dim)
    if dims > head_dim or dims % 2 or (dims != head_dim and not read.maths["partial_rotary"]):
        raise read.error("rope_dims", f"{dims} rotated channels in a head of {head_dim}")
    scaling = read.get("rope_scaling")
    if scaling not in ROPE_SCALINGS:
        raise UnsupportedError(f"RoPE scaling {quoted(scaling)}", where=read.ledger.where)
    return Rope(
        dims=dims,
        theta=float(read.get("rope_theta")),
        linear_factor=ROPE_SCALINGS[scaling](read),
        magnitude=float(read.get("rope_attn_factor")),
    )
