"""RoPE as `config.json` spells it, in all the forms that transformers reads.

Old files have `rope_theta` and `rope_scaling` (with `type`, later `rope_type`),
new ones `rope_parameters`, which holds everything and may be nested by kind of
layer.  Every kind comes down to a divisor for each frequency and a magnitude
(transformers 5.24, `modeling_rope_utils.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.formats.gguf import quoted
from anex.models.hf_fields import ConfigReader, Rule, optional, shown
from anex.models.rope import LongRope, Rope

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, as `layer_types` names them."""

Array = np.ndarray[Any, np.dtype[np.float64]]

_POSITIVE = Rule(float, low=1e-6, high=1e6)
_OPTIONAL = optional(float, low=0, high=1e6)
_LENGTH = optional(int, high=2**24)

PARAMETERS: Mapping[str, Rule] = {
    "rope_theta": optional(float, low=1e-3, high=1e12),
    "partial_rotary_factor": optional(float, low=0, high=1),
    "factor": optional(float, low=1e-3, high=1e6),
    "original_max_position_embeddings": _LENGTH,
    "low_freq_factor": _POSITIVE,
    "high_freq_factor": _POSITIVE,
    "attention_factor": _OPTIONAL,
    "beta_fast": _OPTIONAL,
    "beta_slow": _OPTIONAL,
    "mscale": _OPTIONAL,
    "mscale_all_dim": _OPTIONAL,
    "truncate": optional(bool),
    "short_factor": Rule(list),
    "long_factor": Rule(list),
    "alpha": _OPTIONAL,
}
"""What may be said beside `rope_type`; any other name is refused."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one rotary embedding, whatever form they were in.

    Attributes:
        values: By the names of `PARAMETERS`.
        dims: Leading channels of a head that are turned.
        context_length: Positions the model was trained for.
        where: The key, for messages.
    """

    read: ConfigReader
    values: Mapping[str, Any]
    theta: float
    dims: int
    context_length: int
    where: str

    def get(self, name: str, default: Any = None) -> Any:
        """A parameter, checked; `default` where it is missing or null.

        Raises:
            InputError: It is needed and missing, of a wrong type, or out of range.
        """
        rule, value = PARAMETERS[name], self.values.get(name)
        if value is None and (not rule.needed or default is not None):
            return default
        self.read.check(f"{self.where}.{name}", rule, value)
        return value

    def needed(self, name: str) -> Any:
        """The same for a parameter that this kind needs."""
        value = self.get(name)
        if value is None:
            raise InputError(f"'{name}' is missing", where=f"{self.read.ledger.where}: {self.where}")
        return value

    @property
    def original(self) -> int:
        """Positions before the context was stretched."""
        value = self.read.get("rope_original") if "rope_original" in self.read.fields else None
        return int(value or self.get("original_max_position_embeddings") or self.context_length)

    @property
    def frequencies(self) -> Array:
        """Without any scaling, float64 `[dims/2]`."""
        exponents = np.arange(0, self.dims, 2, dtype=np.float64) / self.dims
        return np.asarray(self.theta**-exponents, np.float64)


def _plain(p: Parameters) -> Rope:
    return Rope(p.dims, p.theta)


def _linear(p: Parameters) -> Rope:
    return Rope(p.dims, p.theta, linear_factor=float(p.needed("factor")))


def _dynamic(p: Parameters) -> Rope:
    """Stretches only behind `max_position_embeddings`, where a context of anex never goes (bloc97 2023)."""
    if alpha := p.get("alpha"):
        return Rope(p.dims, p.theta * alpha ** (p.dims / (p.dims - 2)))
    p.needed("factor")
    return Rope(p.dims, p.theta)


def _llama3(p: Parameters) -> Rope:
    """Long waves are stretched, short ones kept, those between blended (Llama 3.1)."""
    factor, low, high = (float(p.needed(f"{name}factor")) for name in ("", "low_freq_", "high_freq_"))
    if not low < high:
        raise InputError(
            f"low_freq_factor {low:g} is not below high_freq_factor {high:g}",
            where=f"{p.read.ledger.where}: {p.where}",
        )
    turns = p.original * p.frequencies / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return Rope(p.dims, p.theta, freq_factors=_divisors(1.0 / ((1.0 - smooth) / factor + smooth)))


def _yarn(p: Parameters) -> Rope:
    """Peng et al. 2023."""
    factor = float(p.get("factor") or p.context_length / p.original)
    if (magnitude := p.get("attention_factor")) is None:
        numerator, denominator = p.get("mscale"), p.get("mscale_all_dim")
        both = numerator and denominator
        magnitude = _mscale(factor, numerator) / _mscale(factor, denominator) if both else _mscale(factor)

    def channel(rotations: float) -> float:
        """The channel whose frequency turns so often in the original context."""
        return p.dims * math.log(p.original / (rotations * 2 * math.pi)) / (2 * math.log(p.theta))

    low, high = channel(p.get("beta_fast") or 32), channel(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, p.dims - 1)
    width = high - low if high != low else 0.001
    stretched = np.clip((np.arange(p.dims // 2) - low) / width, 0.0, 1.0)
    divisors = 1.0 / (stretched / factor + (1.0 - stretched))
    return Rope(p.dims, p.theta, magnitude=float(magnitude), freq_factors=_divisors(divisors))


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _divisors(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _longrope(p: Parameters) -> Rope:
    """Ding et al. 2024; the divisors of a long conversation are those of all its positions."""
    short, long = (_list(p, name) for name in ("short_factor", "long_factor"))
    if (magnitude := p.get("attention_factor")) is None:
        factor = p.get("factor") or p.context_length / p.original
        magnitude = math.sqrt(1 + math.log(factor) / math.log(p.original)) if factor > 1 else 1.0
    return Rope(
        p.dims,
        p.theta,
        magnitude=float(magnitude),
        freq_factors=short,
        long=LongRope(p.original, long),
    )


def _list(p: Parameters, name: str) -> tuple[float, ...]:
    """A divisor for each frequency."""
    values = p.needed(name)
    if len(values) != p.dims // 2 or not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 for value in values
    ):
        where = f"{p.read.ledger.where}: {p.where}.{name}"
        raise InputError(f"{shown(values)} is no list of {p.dims // 2} divisors", where=where)
    return _divisors(np.asarray(values, np.float64))


KINDS: Mapping[str, Callable[[Parameters], Rope]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""`rope_type` → what it makes of the parameters."""


def ropes(read: ConfigReader, head_dim: int, context_length: int) -> dict[str, Rope]:
    """The rotary embeddings of a model by kind of layer; one under `FULL` where all layers share it.

    Raises:
        InputError: A parameter is missing, malformed, or contradicts another.
        UnsupportedError: A kind or a parameter is not known.
    """
    old, new = read.get("rope_scaling"), read.get("rope_parameters")
    if old and new and old != new:
        raise read.error("rope_scaling", f"it contradicts '{read.key('rope_parameters')}'")
    given, where = (old, read.key("rope_scaling")) if old else (new or {}, read.key("rope_parameters"))
    by_kind = "rope_local_theta" in read.fields
    nested = {kind: given[kind] for kind in (FULL, SLIDING) if isinstance(given.get(kind), dict)}
    if nested and (len(nested) < len(given) or not by_kind):
        raise UnsupportedError(f"'{where}' {shown(given)}", where=read.ledger.where)
    many = nested or {FULL: given}
    if by_kind:
        many = {FULL: {}, SLIDING: {}} | many
    thetas = {FULL: "rope_theta", SLIDING: "rope_local_theta"}
    return {
        kind: _rope(
            read, values, f"{where}.{kind}" if nested else where, thetas[kind], head_dim, context_length
        )
        for kind, values in many.items()
    }


def _rope(
    read: ConfigReader,
    values: Mapping[str, Any],
    where: str,
    theta_field: str,
    head_dim: int,
    context_length: int,
) -> Rope:
    kind = values.get("rope_type", values.get("type", "default"))
    if not isinstance(kind, str) or values.get("type", kind) != kind:
        raise InputError(f"{shown(values)} names no kind", where=f"{read.ledger.where}: {where}")
    kind = read.table.get("rope_types", {}).get(kind, kind)
    if kind not in KINDS:
        raise UnsupportedError(
            f"rope_type {quoted(kind)}",
            where=f"{read.ledger.where}: {where}",
            hint=f"known: {', '.join(KINDS)}",
        )
    known = PARAMETERS.keys() - (set() if read.table.get("rope_alpha") else {"alpha"})
    if unknown := sorted(values.keys() - known - {"rope_type", "type"}):
        raise UnsupportedError(f"'{where}.{unknown[0]}'", where=read.ledger.where)
    theta = _one(read, values, where, "rope_theta", theta_field)
    partial = _one(read, values, where, "partial_rotary_factor", "rope_partial")
    partial = 1.0 if partial is None else partial
    dims = int(head_dim * partial)
    if dims < 2 or dims % 2 or (dims != head_dim and "rope_partial" not in read.fields):
        raise UnsupportedError(
            f"{dims} rotated channels in a head of {head_dim}", where=f"{read.ledger.where}: {where}"
        )
    rope = _made(KINDS[kind], Parameters(read, values, float(theta), dims, context_length, where))
    if rope is None:
        raise InputError(f"{shown(values)} gives no frequencies", where=f"{read.ledger.where}: {where}")
    return rope


def _made(kind: Callable[[Parameters], Rope], parameters: Parameters) -> Rope | None:
    """The rotation; None where a formula of its kind has no value for the parameters."""
    try:
        with np.errstate(all="ignore"):
            rope = kind(parameters)
            found = [rope.frequencies, rope.within(2**62).frequencies, np.asarray(rope.magnitude)]
    except (ArithmeticError, ValueError):
        return None
    return rope if all(np.isfinite(values).all() and (values > 0).all() for values in found) else None


def _one(read: ConfigReader, values: Mapping[str, Any], where: str, name: str, field: str) -> Any:
    """A parameter that may stand in the object, beside it, or in both alike."""
    inner = values.get(name)
    if inner is not None:
        read.check(f"{where}.{name}", PARAMETERS[name], inner)
    outer = read.get(field)
    if inner is not None and read.has(field) and inner != outer:
        raise read.error(field, f"{shown(outer)} contradicts '{where}.{name}' {shown(inner)}")
    return outer if inner is None else inner
