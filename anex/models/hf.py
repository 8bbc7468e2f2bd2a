"""From `config.json` of a transformers checkpoint to the config of a decoder and the places of its weights.

Here the file decides everything: which biases there are, whether the head is
tied, which layers look how far.  A tensor that the config does not speak of, or
one that it speaks of and that is missing, ends the load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anex.errors import UnsupportedError
from anex.formats.gguf import quoted
from anex.models.config import Attention, DecoderConfig, Experts, Mlp, Multipliers, Norm
from anex.models.families import tables as family_tables
from anex.models.hf_fields import ConfigReader
from anex.models.hf_layers import layers, two_kinds
from anex.models.hf_tensors import recipe, regrouped, settle
from anex.models.ledger import Ledger
from anex.models.roles import ATTENTION_BIASES, MLP_BIASES
from anex.models.tensors import TensorSource
from anex.models.weights import Source, resolve

MIN_ROOT = 2.0**-14
"""Smallest normal number of fp16."""


def from_config(
    content: Mapping[str, Any], file: TensorSource, ledger: Ledger
) -> tuple[DecoderConfig, TensorSource, dict[str, Source]]:
    """The decoder that `config.json` describes and where its weights lie, every key and tensor accounted for.

    Returns:
        The config, the tensors as the sources name them, and name of each weight → source.

    Raises:
        InputError: A key or tensor is missing, of a wrong type, shape or value.
        UnsupportedError: The model type, a key, a value or a tensor is not known.
    """
    read = ConfigReader(content, ledger)
    config, tied, switched = _config(read), read.get("tied"), read.switched()
    read.close()
    plan = recipe(read, file.tensors, _roles(read, config, tied, switched))
    settle(read, file, plan, tied)
    source, plan = regrouped(read, file, config, plan)
    config, sources = resolve(config, source.tensors, ledger, plan)
    return config, source, sources


STATED = frozenset({"head", "b_head", *ATTENTION_BIASES, *MLP_BIASES})
"""Roles of which `config.json` says whether there are any."""


def _roles(read: ConfigReader, config: DecoderConfig, tied: bool, switched: frozenset[str]) -> frozenset[str]:
    """Exactly the weights that the config speaks of."""
    roles = frozenset(_maths(read)["required"]) - STATED | switched
    if not config.parallel:
        roles |= set(read.table.get("unless_parallel", ()))
    return roles if tied else roles | {"head"}


def _maths(read: ConfigReader) -> dict[str, Any]:
    """The mathematics of the family."""
    found: dict[str, Any] = family_tables()["family"][read.table["family"]]
    return found


def _config(read: ConfigReader) -> DecoderConfig:
    n_layers, dim, context_length = (read.get(name) for name in ("n_layers", "dim", "context_length"))
    maths = _maths(read)
    attention = _attention(read, dim, maths)
    main, local = two_kinds(read, layers(read, n_layers, attention.head_dim, context_length))
    return DecoderConfig(
        family=read.table["family"],
        n_layers=n_layers,
        dim=dim,
        vocab_size=read.get("vocab_size"),
        context_length=context_length,
        norm=_norm(read, dim, maths["norm"]),
        attention=replace(attention, window=main[0]),
        mlp=_mlp(read, dim, gated=maths.get("gated", True)),
        rope=main[1],
        multipliers=_multipliers(read, dim),
        local=local,
        parallel=_parallel(read, maths),
    )


def _norm(read: ConfigReader, dim: int, kind: str) -> Norm:
    eps = float(read.get("norm_eps"))
    if math.sqrt(eps * dim) < MIN_ROOT:
        raise UnsupportedError(
            f"'{read.key('norm_eps')}' {eps:g} with {dim} channels",
            where=read.ledger.where,
            hint=f"it counts as sqrt({eps:g} · {dim}), which is below fp16's smallest normal number",
        )
    return Norm(eps, kind)


def _parallel(read: ConfigReader, maths: Mapping[str, Any]) -> bool:
    return bool(read.get("parallel") if "parallel" in read.fields else maths.get("parallel"))


def _mlp(read: ConfigReader, dim: int, gated: bool) -> Mlp:
    ffn_dim = read.get("ffn_dim") or dim * read.table.get("ffn_factor", 0)
    if not ffn_dim:
        raise read.error("ffn_dim", "null is no int")
    return Mlp(ffn_dim, activation=_activation(read), gated=gated, experts=_experts(read))


def _experts(read: ConfigReader) -> Experts | None:
    if "n_experts" not in read.fields:
        return None
    count, used = read.get("n_experts"), read.get("n_used")
    if used > count:
        raise read.error("n_used", f"{used} of {count} experts")
    normalised = read.get("normalised") if "normalised" in read.fields else True
    return Experts(count, used, normalised=normalised)


def _attention(read: ConfigReader, dim: int, maths: Mapping[str, Any]) -> Attention:
    n_heads = read.get("n_heads")
    n_kv_heads = read.get("n_kv_heads") or n_heads
    if n_heads % n_kv_heads:
        raise read.error("n_kv_heads", f"{n_heads} heads cannot share {n_kv_heads} key heads")
    head_dim = read.get("head_dim")
    if head_dim is None:
        if dim % n_heads:
            raise read.error("n_heads", f"{dim} channels cannot be split into {n_heads} heads")
        head_dim = dim // n_heads
    if head_dim % 2:
        raise read.error("head_dim", f"a head of {head_dim} channels has no pairs to rotate")
    return Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        scale=_scale(read, head_dim),
        qk_norm=maths.get("qk_norm", ""),
        qk_norm_late=maths.get("qk_norm_late", False),
        soft_cap=float(read.get("score_cap") or 0.0) if "score_cap" in read.fields else 0.0,
    )


def _scale(read: ConfigReader, head_dim: int) -> float:
    """Of the scores: as the file says, or by the width that queries are said to have."""
    if "attention_scale" in read.fields:
        return float(read.get("attention_scale"))
    return 1.0 / math.sqrt(read.get("query_scalar") if "query_scalar" in read.fields else head_dim)


ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_erf",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "relu": "relu",
    "relu2": "relu_squared",
}
"""transformers' name → the decoder's."""


def _activation(read: ConfigReader) -> str:
    name = read.get("activation")
    name = read.table.get("activations", {}).get(name, name)
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"activation {quoted(name)}",
            where=f"{read.ledger.where}: {read.key('activation')}",
            hint=f"known: {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[name]


def _multipliers(read: ConfigReader, dim: int) -> Multipliers:
    def factor(field: str) -> float:
        return float(read.get(field)) if field in read.fields else 1.0

    scaled = read.table.get("embedding") == "sqrt_dim"
    return Multipliers(
        embedding=math.sqrt(dim) if scaled else factor("embedding_scale"),
        residual=factor("residual_scale"),
        logits=factor("logit_scale") / factor("logit_divisor"),
        logit_cap=float(read.get("logit_cap") or 0.0) if "logit_cap" in read.fields else 0.0,
    )
