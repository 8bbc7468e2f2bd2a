"""BERT in float64 numpy, from the paper (Devlin et al. 2019) and its block (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def norm(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gamma + beta


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def bert(config: Mapping[str, Any], tensors: Mapping[str, Array], ids: Sequence[int]) -> Array:
    """Hidden states `[len(ids), D]`."""
    t = {name: array.astype(np.float64) for name, array in tensors.items()}
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def linear(x: Array, name: str) -> Array:
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def normed(x: Array, name: str) -> Array:
        return norm(x, t[f"{name}.weight"], t[f"{name}.bias"], eps)

    def split(x: Array) -> Array:
        return x.reshape(len(ids), heads, -1).swapaxes(0, 1)

    tables = [t[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    x = normed(tables[0][list(ids)] + tables[1][: len(ids)] + tables[2][0], "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        q, k, v = (split(linear(x, f"{at}.attention.self.{name}")) for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (powers / powers.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape)
        x = normed(x + linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        inner = gelu(linear(x, f"{at}.intermediate.dense"))
        x = normed(x + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return x
