"""From the metadata of a GGUF file to the config of a decoder.

What each family reads, ignores and refuses is data (`families.toml`); which
values a field may have is the table `FIELDS` below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import quoted
from anex.models.config import Attention, DecoderConfig, Experts, Local, Mlp, Multipliers, Norm
from anex.models.families import families, tables
from anex.models.ledger import Ledger
from anex.models.rope import LongRope, Rope, Yarn
from anex.models.tokenizer import keys as tokenizer_keys


@dataclass(frozen=True, slots=True)
class Field:
    """Values that one key may have; `default` None means the key must be there."""

    kind: type[int] | type[float] | type[str] | type[bool]
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
    "key_length_local": Field(int, high=4096, default=ABSENT),
    "value_length_local": Field(int, high=4096, default=ABSENT),
    "norm_eps": Field(float, low=1e-14, high=1e-1),
    "layer_norm_eps": Field(float, low=1e-14, high=1e-1),
    "attention_scale": Field(float, low=0, high=1e3, default=0.0),
    "soft_cap": Field(float, low=1e-3, high=1e4, default=ABSENT),
    "logit_cap": Field(float, low=0, high=1e4, default=ABSENT),
    "sliding_window": Field(int, low=0, default=ABSENT),
    "window_every": Field(int, low=0, high=512, default=ABSENT),
    "parallel": Field(bool),
    "embedding_scale": Field(float, low=0, high=1e6, default=0.0),
    "residual_scale": Field(float, low=0, high=1e6, default=0.0),
    "logit_scale": Field(float, low=0, high=1e6, default=0.0),
    "n_experts": Field(int, low=0, high=4096, default=0),
    "n_used": Field(int, low=0, high=4096, default=0),
    "expert_dim": Field(int, low=0, high=2**20, default=0, per_layer=True),
    "shared_dim": Field(int, low=0, high=2**20, default=0),
    "rope_dims": Field(int, high=4096, default=ABSENT),
    "rope_dims_local": Field(int, high=4096, default=ABSENT),
    "rope_theta": Field(float, low=1.001, high=1e12, default=10000.0),
    "rope_theta_local": Field(float, low=1.001, high=1e12, default=ABSENT),
    "rope_scaling": Field(str, default="linear"),
    "rope_factor": Field(float, low=0, high=1e6, default=0.0),
    "rope_factor_old": Field(float, low=0, high=1e6, default=0.0),
    "rope_attn_factor": Field(float, low=1e-6, high=1e6, default=1.0),
    "rope_context": Field(int, high=2**24, default=ABSENT),
    "rope_finetuned": Field(bool, default=True),
}

_MIN_ROOT = 2.0**-14
"""Smallest normal number of fp16."""

_MIN_FACTOR = 1e-3
"""Positions divided by less lose their meaning; 0 stands for no factor."""


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
        keys = self._format["keys"]
        wanted = ["all", self.maths["norm"]]
        has = {"local": self.windowed, "experts": self.maths.get("experts"), "rotary": self.rotary}
        wanted += [kind for kind, there in has.items() if there]
        suffixes = [*self.table.get("keys", ()), *(suffix for kind in wanted for suffix in keys[kind])]
        self.fields = {self._format["fields"][suffix] for suffix in suffixes}

    @property
    def rotary(self) -> bool:
        """Whether the family turns queries and keys."""
        return bool(self.maths["rotary"] != "none")

    @property
    def windowed(self) -> bool:
        """Whether some layers of the family may have a window that others do not have."""
        return "rope" in self.maths.get("local", {})

    def key(self, field: str) -> str:
        """The key that holds a field, whether the family reads it or not."""
        return self._key_of[field]

    def has(self, field: str) -> bool:
        """Whether the file has a field that the family reads."""
        return field in self.fields and self.key(field) in self.metadata

    def error(self, field: str, what: str) -> InputError:
        return InputError(what, where=f"{self.ledger.where}: {self.key(field)}")

    def get(self, field: str, default: Any = None) -> Any:
        """The value of a field, checked against `FIELDS`.

        Args:
            default: Used where the file has no such key, and neither table has a default.
        """
        rule, key = FIELDS[field], self.key(field)
        if not self.has(field):
            if field in self.table.get("defaults", {}):
                return self.table["defaults"][field]
            if rule.default is None and default is None:
                raise InputError(f"the key '{key}' is missing", where=self.ledger.where)
            return default if rule.default in (None, ABSENT) else rule.default
        value = self.metadata[key]
        if rule.per_layer and isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
            value = self._same_in_every_layer(field, value)
        self.check(field, value)
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

    def check(self, rule_of: str, value: Any, field: str = "") -> None:
        """Refuse a value that is not what a field may be; `field` where its key has another name."""
        rule, field = FIELDS[rule_of], field or rule_of
        fitting = (int, float) if rule.kind is float else rule.kind
        if not isinstance(value, fitting) or (isinstance(value, bool) and rule.kind is not bool):
            raise self.error(field, f"{shown(value)} is no {rule.kind.__name__}")
        if not isinstance(value, (str, bool)) and not rule.low <= value <= rule.high:
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
        tables = [self.table.get("neutral", {}), self._format["unread"]]
        tables += [] if self.windowed else [self._format["unlocal"]]
        tables += [] if self.rotary else [self._format["unrotated"]]
        known = {f"{self.family}.{k}": v for table in tables for k, v in table.items()}
        known |= self._format["neutral"]
        return next((reason for pattern, reason in known.items() if fnmatchcase(key, pattern)), None)

    def _demand(self, key: str, value: Any, wanted: Any) -> None:
        allowed = wanted if isinstance(wanted, list) else [wanted]
        values = np.asarray(value).tolist() if isinstance(value, np.ndarray) else value
        entries = values if isinstance(values, (list, tuple)) else [values]
        if not all(any(_same(entry, one) for one in allowed) for entry in entries):
            only = " or ".join(map(str, allowed)) or "an empty list"
            raise UnsupportedError(
                f"metadata key '{key}' = {shown(value)}", where=self.ledger.where, hint=f"only {only} is"
            )
        self.ledger.neutral("key", key, f"{shown(value)} leaves the model as it is")


def _same(value: Any, wanted: Any) -> bool:
    """Whether a value of a file is what a table says; numbers of files are float32."""
    if isinstance(value, (bool, str)) or isinstance(wanted, (bool, str)):
        return type(value) is type(wanted) and bool(value == wanted)
    if not isinstance(value, (int, float)):
        return False
    with np.errstate(over="ignore"):
        return bool(value == wanted or np.float32(value) == np.float32(wanted))


def from_metadata(metadata: Mapping[str, Any], ledger: Ledger) -> DecoderConfig:
    """The config that a GGUF file's metadata describes, every key accounted for.

    What only the tensors tell (tied head, biases, norms, frequency factors and, where
    the key is missing, the vocabulary) is filled in by `anex.models.weights`.

    Raises:
        InputError: A key is missing, of a wrong type or out of range.
        UnsupportedError: The family, a key or a value is not supported.
    """
    read = Reader(metadata, ledger)
    dim = read.get("dim")
    n_layers, context = read.get("n_layers"), read.get("context_length")
    attention = _attention(read, dim)
    rope = _rope(read, attention.head_dim, context)
    rope, local, window = _layers(read, n_layers, rope)
    config = DecoderConfig(
        family=read.family,
        n_layers=n_layers,
        dim=dim,
        vocab_size=read.get("vocab_size", 0),
        context_length=context,
        norm=_norm(read, dim),
        attention=replace(attention, window=window),
        mlp=_mlp(read),
        rope=rope,
        multipliers=_multipliers(read, n_layers, dim),
        local=local,
        parallel=read.get("parallel") if "parallel" in read.fields else read.maths.get("parallel", False),
    )
    read.close()
    return config


def _norm(read: Reader, dim: int) -> Norm:
    field = {"rms": "norm_eps", "layer": "layer_norm_eps"}[read.maths["norm"]]
    eps = float(read.get(field))
    if math.sqrt(eps * dim) < _MIN_ROOT:
        raise UnsupportedError(
            f"'{read.key(field)}' {eps:g} with {dim} channels",
            where=read.ledger.where,
            hint=f"it counts as sqrt({eps:g} · {dim}), which is below fp16's smallest normal number",
        )
    return Norm(eps, kind=read.maths["norm"])


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
        scale=_scale(read, dim, n_heads, head_dim),
        qk_norm=read.maths.get("qk_norm", ""),
        qk_norm_late=read.maths.get("qk_norm_late", False),
        soft_cap=float(read.get("soft_cap", 0.0)),
    )


GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose scores are scaled as if all of `dim` were heads; no key says so."""


def _scale(read: Reader, dim: int, n_heads: int, head_dim: int) -> float:
    stated = float(read.get("attention_scale"))
    if read.family not in GEMMA_27B:
        return stated or 1.0 / math.sqrt(head_dim)
    wide = read.get("n_layers") == GEMMA_27B[read.family]
    scale = 1.0 / math.sqrt(dim // n_heads if wide else head_dim)
    if stated and not math.isclose(stated, scale, rel_tol=1e-6):
        raise UnsupportedError(
            f"'{read.key('attention_scale')}' {stated:g}", where=read.ledger.where, hint=f"only {scale:g} is"
        )
    return scale


def _head_dim(read: Reader, dim: int, n_heads: int) -> int:
    length: int = read.get("key_length", dim // n_heads)
    if not read.has("key_length") and dim % n_heads:
        raise read.error("n_heads", f"{dim} channels cannot be split into {n_heads} heads")
    value_length = read.get("value_length", dim // n_heads)
    for field, other in (
        ("value_length", value_length),
        ("key_length_local", read.get("key_length_local", length)),
        ("value_length_local", read.get("value_length_local", length)),
    ):
        if other != length:
            raise UnsupportedError(
                f"'{read.key(field)}' {other} beside a key length of {length}", where=read.ledger.where
            )
    if length % 2:
        raise read.error("n_heads", f"a head of {length} channels has no pairs to rotate")
    return length


def _mlp(read: Reader) -> Mlp:
    dim, count = read.get("ffn_dim"), read.get("n_experts")
    activation, gated = read.maths.get("activation", "silu"), read.maths.get("gated", True)
    used, own = read.get("n_used"), read.get("expert_dim")
    shared = read.get("shared_dim")
    if not count:
        for field, value in (("n_used", used), ("expert_dim", own), ("shared_dim", shared)):
            if value:
                raise read.error(field, f"{value} in a model without experts")
        return Mlp(dim, activation, gated=gated)
    if not 0 < used <= count:
        raise read.error("n_used", f"{used} of {count} experts are used")
    if "expert_dim" in read.fields:
        dim = own or dim // used
    normalised = read.maths.get("normalised", True)
    experts = Experts(count, used, normalised=normalised, shared_dim=shared)
    return Mlp(dim, activation, gated=gated, experts=experts)


def _minicpm(n_layers: int, dim: int) -> dict[str, float]:
    """What files had before there were keys for it."""
    return {
        "embedding_scale": 12.0,
        "residual_scale": 1.4 / math.sqrt(n_layers),
        "logit_scale": 256.0 / dim,
    }


SCALES: Mapping[str, Callable[[int, int], dict[str, float]]] = {"minicpm": _minicpm}
"""Family → its multipliers where the file does not have their keys, from its layers and its width."""


def _multipliers(read: Reader, n_layers: int, dim: int) -> Multipliers:
    """Zero means "not set"."""
    defaults = SCALES[read.family](n_layers, dim) if read.family in SCALES else {}

    def stated(field: str) -> float:
        value = read.get(field) if read.has(field) else defaults.get(field, 0.0)
        return float(value) or 1.0

    logits = stated("logit_scale")
    return Multipliers(
        embedding=math.sqrt(dim) if read.maths.get("embedding") == "root" else stated("embedding_scale"),
        residual=stated("residual_scale"),
        logits=1.0 / logits if read.maths.get("logits") == "divided" else logits,
        logit_cap=float(read.get("logit_cap", 0.0)),
    )


# --- rotation -----------------------------------------------------------------


def _linear_factor(read: Reader) -> float:
    """Zero means "not set", and the old key only counts where the new one is missing."""
    factors = {name: float(read.get(name)) for name in ("rope_factor", "rope_factor_old")}
    for name, factor in factors.items():
        if 0 < factor < _MIN_FACTOR:
            raise read.error(name, f"{factor} is below {_MIN_FACTOR}")
    return factors["rope_factor" if read.has("rope_factor") else "rope_factor_old"] or 1.0


def _unscaled(read: Reader, rope: Rope, context: int) -> Rope:
    """The factors are read, so that a file with a bad one is refused, and do not count."""
    _linear_factor(read)
    return rope


def _linear(read: Reader, rope: Rope, context: int) -> Rope:
    return replace(rope, linear_factor=_linear_factor(read))


def _yarn(read: Reader, rope: Rope, context: int) -> Rope:
    """Turned channels grow with the logarithm of the factor (Peng et al. 2023, eq. 22)."""
    factor = _linear_factor(read)
    growth = 1.0 + 0.1 * math.log(factor) if factor > 1.0 else 1.0
    return replace(rope, linear_factor=factor, magnitude=rope.magnitude * growth, yarn=Yarn(context))


def _long(read: Reader, rope: Rope, context: int) -> Rope:
    """The divisors are tensors; `anex.models.source` reads them."""
    if "long_factors" not in read.maths["optional"]:
        raise UnsupportedError("RoPE scaling 'longrope'", where=read.ledger.where)
    return _linear(read, rope, context)


ROPE_SCALINGS: Mapping[str, Callable[[Reader, Rope, int], Rope]] = {
    "none": _unscaled,
    "linear": _linear,
    "yarn": _yarn,
    "longrope": _long,
}
"""Kind of RoPE scaling → the scaled rotation of a model that once had `context` positions."""


def _rope(read: Reader, head_dim: int, context: int) -> Rope | None:
    if not read.rotary or not read.get("rope_finetuned"):
        return None
    dims = read.get("rope_dims", head_dim)
    if dims > head_dim or dims % 2 or (dims != head_dim and read.maths["rotary"] != "partial"):
        raise read.error("rope_dims", f"{dims} rotated channels in a head of {head_dim}")
    if (other := read.get("rope_dims_local", dims)) != dims:
        raise UnsupportedError(
            f"'{read.key('rope_dims_local')}' {other} beside {dims}", where=read.ledger.where
        )
    scaling = read.get("rope_scaling")
    if scaling not in ROPE_SCALINGS:
        raise UnsupportedError(f"RoPE scaling {quoted(scaling)}", where=read.ledger.where)
    original = read.get("rope_context", context)
    long = LongRope(original, ()) if "long_factors" in read.maths["optional"] else None
    plain = Rope(
        dims, float(read.get("rope_theta")), magnitude=float(read.get("rope_attn_factor")), long=long
    )
    return ROPE_SCALINGS[scaling](read, plain, original)


def _same_rope(rope: Rope, theta: float | None) -> Rope:
    return replace(rope, theta=theta or rope.theta)


def _unstretched(rope: Rope, theta: float | None) -> Rope:
    return replace(_same_rope(rope, theta), linear_factor=1.0)


def _plain(rope: Rope, theta: float | None) -> Rope:
    return Rope(rope.dims, rope.theta)


LOCAL_ROPES: Mapping[str, Callable[[Rope, float | None], Rope]] = {
    "same": _same_rope,
    "unstretched": _unstretched,
    "plain": _plain,
    "only": _same_rope,
}
"""Rotation of layers with a window, from that of the model and their own base; with `only` no other turns."""


def _layers(read: Reader, n_layers: int, rope: Rope | None) -> tuple[Rope | None, Local | None, int | None]:
    """Rotation, layers that differ, and window: (of most layers, the others, of most layers)."""
    spec = read.maths.get("local")
    window = read.get("sliding_window", 0) or None
    if spec is None:
        return rope, None, window
    theta = read.get("rope_theta_local", 0.0) or None
    flags = _window_layers(read, n_layers, spec["every"])
    if spec.get("unrotated"):
        return rope, Local(frozenset(flags[False]), window, None), window
    if window is None or rope is None or n_layers != spec.get("layers", n_layers):
        return rope, None, None
    if rope.yarn and spec["rope"] == "unstretched":
        raise UnsupportedError(
            "RoPE scaling 'yarn' with a rotation for each kind of layer", where=read.ledger.where
        )
    local = Local(frozenset(flags[True]), window, LOCAL_ROPES[spec["rope"]](rope, theta))
    return (None if spec["rope"] == "only" else rope), local, None


def _window_layers(read: Reader, n_layers: int, every: int) -> dict[bool, list[int]]:
    """Layers with (True) and without a window: all but each `every`-th have one, or as the file lists."""
    key = read.key("window_pattern")
    value: Any = read.metadata.get(key) if "window_pattern" in read.fields else None
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
        listed = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if len(listed) != n_layers or any(not isinstance(e, int) or e not in (0, 1) for e in listed):
            raise read.error("window_pattern", f"{shown(value)} is no 0 or 1 for each of {n_layers} layers")
        local = [bool(entry) for entry in listed]
    else:
        if value is not None:
            read.check("window_every", value, "window_pattern")
            every = value
        local = [every == 0 or i % every < every - 1 for i in range(n_layers)]
    if value is not None:
        read.ledger.used("key", key, "window_pattern")
    return {flag: [i for i in range(n_layers) if local[i] is flag] for flag in (True, False)}
