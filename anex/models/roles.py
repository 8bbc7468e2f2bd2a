"""What the weights of a decoder are: their roles, shapes, and the constants that are multiplied into them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from anex.models.config import DecoderConfig

FREQ_FACTORS, LONG_FACTORS = "freq_factors", "long_factors"
"""Roles of one divisor per RoPE frequency, and of those for long conversations: config, not blob."""

VOCABULARY = ("embed", "head", "b_head")
"""Roles that are stored in tiles of rows."""

TABLES = ("embed", "positions")
"""Roles whose rows the host looks up."""

QK_NORMS = ("q_norm", "k_norm")

SHAPES: Mapping[str, tuple[str, ...]] = {
    "embed": ("vocab", "dim"),
    "head": ("vocab", "dim"),
    "b_head": ("vocab",),
    "positions": ("context", "dim"),
    "norm": ("dim",),
    "b_norm": ("dim",),
    FREQ_FACTORS: ("rope_pairs",),
    LONG_FACTORS: ("rope_pairs",),
    "attn_norm": ("dim",),
    "b_attn_norm": ("dim",),
    "wq": ("q_dim", "dim"),
    "wk": ("kv_dim", "dim"),
    "wv": ("kv_dim", "dim"),
    "wo": ("dim", "q_dim"),
    "bq": ("q_dim",),
    "bk": ("kv_dim",),
    "bv": ("kv_dim",),
    "bo": ("dim",),
    "q_norm": ("head_dim",),
    "k_norm": ("head_dim",),
    "attn_post_norm": ("dim",),
    "ffn_norm": ("dim",),
    "b_ffn_norm": ("dim",),
    "w_gate": ("ffn_dim", "dim"),
    "w_up": ("ffn_dim", "dim"),
    "w_down": ("dim", "ffn_dim"),
    "b_gate": ("ffn_dim",),
    "b_up": ("ffn_dim",),
    "b_down": ("dim",),
    "router": ("experts", "dim"),
    "experts_gate": ("experts", "ffn_dim", "dim"),
    "experts_up": ("experts", "ffn_dim", "dim"),
    "experts_down": ("experts", "dim", "ffn_dim"),
    "shared_w_gate": ("shared_dim", "dim"),
    "shared_w_up": ("shared_dim", "dim"),
    "shared_w_down": ("dim", "shared_dim"),
    "ffn_post_norm": ("dim",),
}
"""Role → its shape, rows first, in `SIZES`."""

QK_NORM_SHAPES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("q_norm", "heads"): ("n_heads", "head_dim"),
    ("k_norm", "heads"): ("n_kv_heads", "head_dim"),
    ("q_norm", "whole"): ("q_dim",),
    ("k_norm", "whole"): ("kv_dim",),
}
"""The same for norms of queries and keys, by their kind where they do not have one weight for all heads."""

SIZES: Mapping[str, Callable[[DecoderConfig], int]] = {
    "vocab": lambda c: c.vocab_size,
    "dim": lambda c: c.dim,
    "q_dim": lambda c: c.attention.q_dim,
    "kv_dim": lambda c: c.attention.kv_dim,
    "ffn_dim": lambda c: c.mlp.dim,
    "rope_pairs": lambda c: c.rope_dims // 2,
    "context": lambda c: c.context_length,
    "head_dim": lambda c: c.attention.head_dim,
    "n_heads": lambda c: c.attention.n_heads,
    "n_kv_heads": lambda c: c.attention.n_kv_heads,
    "experts": lambda c: c.mlp.experts.count if c.mlp.experts else 0,
    "shared_dim": lambda c: c.mlp.experts.shared_dim if c.mlp.experts else 0,
}


def _residual(c: DecoderConfig, post_norm: str) -> float:
    """What the last layer of a block holds of the residual multiplier: nothing where a norm follows."""
    return 1.0 if post_norm in c.norm.roles else c.multipliers.residual


def _of_queries(c: DecoderConfig) -> float:
    """Queries are scaled, and divided by the soft cap, before they meet the keys."""
    return c.attention.scale / (c.attention.soft_cap or 1.0)


def _normed(c: DecoderConfig, role: str) -> float:
    """sqrt of the entries that a norm of queries or keys goes over."""
    a = c.attention
    return math.sqrt(a.head_dim if a.qk_norm != "whole" else a.q_dim if role == "q_norm" else a.kv_dim)


SCALES: Mapping[str, Callable[[DecoderConfig], float]] = {
    # Norms divide by the root of the sum, not of the mean (see `anex.models.emit.rms_norm`).
    **dict.fromkeys(("attn_norm", "ffn_norm", "norm"), lambda c: math.sqrt(c.dim)),
    **dict.fromkeys(("attn_post_norm", "ffn_post_norm"), lambda c: math.sqrt(c.dim) * c.multipliers.residual),
    # What is scaled before a norm is not scaled after it.
    **dict.fromkeys(("wq", "bq"), lambda c: 1.0 if c.attention.qk_norm else _of_queries(c)),
    "q_norm": lambda c: _normed(c, "q_norm") * _of_queries(c),
    "k_norm": lambda c: _normed(c, "k_norm"),
    **dict.fromkeys(("wo", "bo"), lambda c: _residual(c, "attn_post_norm")),
    **dict.fromkeys(("w_down", "b_down", "shared_w_down"), lambda c: _residual(c, "ffn_post_norm")),
    "experts_down": lambda c: _residual(c, "ffn_post_norm") * (c.mlp.experts.scale if c.mlp.experts else 1.0),
}
"""Role → what its numbers are multiplied with."""

ATTENTION_BIASES, MLP_BIASES = ("bq", "bk", "bv", "bo"), ("b_gate", "b_up", "b_down")
LAYER_NORMS = ("attn_norm", "ffn_norm", "attn_post_norm", "ffn_post_norm")
NORM_BIASES = ("b_attn_norm", "b_ffn_norm")

DENSE = frozenset({"w_gate", "w_up", "w_down", *MLP_BIASES})
ROUTED = frozenset({"router", "experts_gate", "experts_up", "experts_down"})
SHARED = frozenset({"shared_w_gate", "shared_w_up", "shared_w_down"})

GROUPED: Mapping[str, str] = {"experts_gate": "w_gate", "experts_up": "w_up", "experts_down": "w_down"}
"""Roles that are stored in groups of experts, and what a group's are called."""

FLAT = frozenset({*QK_NORMS, *GROUPED})
"""Roles whose first two axes count as rows."""
