"""From the metadata of a GGUF file to the numbers that define a decoder.

What each family reads, ignores and refuses is data (`families.toml`); which
values a field may have is the table `FIELDS` below.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.models.ledger import Ledger
from anex.models.rope import Rope
from anex.models.tokenizer import keys as tokenizer_keys


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer, with the names of the literature.

    Attributes:
        family: GGUF architecture that the file names.
        dim: Width of the residual stream.
        ffn_dim: Width inside the gated feed-forward network.
        context_length: Positions the model was trained for.
        vocab_size: Rows of the embedding table.
        norm_eps: Added to the mean square inside RMSNorm.
        sliding_window: Columns a query sees, itself included; None is all.
        tied: The output head is the embedding table.
        biases: Linear layers that add one, by role: wq wk wv wo w_gate w_up w_down.
    """

    family: str
    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: Rope
    sliding_window: int | None = None
    tied: bool = False
    biases: frozenset[str] = frozenset()

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Channels of one layer's keys, or values."""
        return self.n_kv_heads * self.head_dim


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


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("families.toml").read_text("utf-8"))


def families() -> tuple[str, ...]:
    """GGUF architectures that anex runs."""
    return tuple(sorted(_tables()["family"]))


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
        if arch not in _tables()["family"]:
            raise UnsupportedError(
                f"architecture '{arch}'", where=ledger.where, hint=f"known: {', '.join(families())}"
            )
        ledger.used("key", "general.architecture", "family")
        self.family = arch
        self.table: dict[str, Any] = _tables()["family"][arch]
        self._key_of = {_tables()["fields"][suffix]: f"{arch}.{suffix}" for suffix in self.table["keys"]}

    def key(self, field: str) -> str:
        """The key that holds a field, for messages."""
        return self._key_of[field]

    def error(self, field: str, what: str) -> InputError:
        return InputError(what, where=f"{self.ledger.where}: {self.key(field)}")

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field, checked against `FIELDS`.

        Args:
            default: Used where the file has no such key and the table has no default.
        """
        rule = FIELDS[field]
        key = self._key_of.get(field)
        if key is None or key not in self.metadata:
            if rule.default is None and default is None:
                raise InputError(f"the key '{key}' is missing", where=self.ledger.where)
            return default if rule.default in (None, ABSENT) else rule.default
        value = self._checked(field, rule, self.metadata[key])
        self.ledger.used("key", key, field)
        return value

    def _checked(self, field: str, rule: Field, value: Any) -> Any:
        if rule.per_layer and isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
            distinct = set(np.asarray(value).tolist())
            if len(distinct) > 1:
                raise UnsupportedError(
                    f"'{self.key(field)}' that differs between layers", where=self.ledger.where
                )
            if not distinct:
                raise self.error(field, "the list is empty")
            (value,) = distinct
        fitting = (int, float) if rule.kind is float else rule.kind
        if not isinstance(value, fitting) or isinstance(value, bool):
            raise self.error(field, f"{value!r} is no {rule.kind.__name__}")
        if not isinstance(value, str) and not rule.low <= value <= rule.high:
            raise self.error(field, f"{value} is not between {rule.low:g} and {rule.high:g}")
        return value

    def close(self) -> None:
        """Account for every key that no field reads.

        Raises:
            UnsupportedError: A key is unknown, or switches on a feature that is missing.
        """
        prefix = self.family + "."
        demanded = _tables()["only"] | {prefix + k: v for k, v in _tables()["off"].items()}
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
        known: Mapping[str, str] = own | _tables()["neutral"]
        return next((reason for pattern, reason in known.items() if fnmatchcase(key, pattern)), None)

    def _demand(self, key: str, value: Any, wanted: Any) -> None:
        if isinstance(value, np.ndarray) or value != wanted:
            raise UnsupportedError(
                f"metadata key '{key}' = {value}", where=self.ledger.where, hint=f"only {wanted} is"
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
    dim, n_heads = read.get("dim"), read.get("n_heads")
    n_kv_heads = read.get("n_kv_heads", n_heads)
    if n_heads % n_kv_heads:
        raise read.error("n_kv_heads", f"{n_heads} heads cannot share {n_kv_heads} key heads")
    head_dim = _head_dim(read, dim, n_heads)
    config = DecoderConfig(
        family=read.family,
        n_layers=read.get("n_layers"),
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ffn_dim=read.get("ffn_dim"),
        vocab_size=read.get("vocab_size", 0),
        context_length=read.get("context_length"),
        norm_eps=float(read.get("norm_eps")),
        rope=_rope(read, head_dim),
        sliding_window=read.get("sliding_window") or None,
    )
    read.close()
    return config


def _head_dim(read: Reader, dim: int, n_heads: int) -> int:
    length: int = read.get("key_length", dim // n_heads)
    if read.key("key_length") not in read.metadata and dim % n_heads:
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


def _rope(read: Reader, head_dim: int) -> Rope:
    dims = read.get("rope_dims", head_dim)
    if dims > head_dim or dims % 2 or (dims != head_dim and not read.table["partial_rotary"]):
        raise read.error("rope_dims", f"{dims} rotated channels in a head of {head_dim}")
    scaling = read.get("rope_scaling")
    if scaling not in ("none", "linear"):
        raise UnsupportedError(f"RoPE scaling '{scaling}'", where=read.ledger.where)
    factor, old_factor = read.get("rope_factor"), read.get("rope_factor_old")
    # Zero means "not set", and the old key only counts where the new one is missing.
    written = factor if read.key("rope_factor") in read.metadata else old_factor
    return Rope(
        dims=dims,
        theta=float(read.get("rope_theta")),
        linear_factor=float(written or 1.0) if scaling == "linear" else 1.0,
        magnitude=float(read.get("rope_attn_factor")),
        interleaved=read.table["rope_pairs"] == "interleaved",
    )
