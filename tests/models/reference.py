"""The llama decoder in float64 numpy, written from the papers and from nothing of anex.

Touvron et al. 2023 (pre-norm, SwiGLU), Su et al. 2021 (RoPE on interleaved
pairs), Ainslie et al. 2023 (GQA), Jiang et al. 2023 (sliding window).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Reference:
    """One model; `logits(ids)` gives `[len(ids), vocabulary]` in float64.

    Args:
        arrays: Tensors under their GGUF names, rows first.
        frequencies: Angle per position of each rotated pair.
        rope_dims: Leading channels of a head that turn.
        window: Columns that a query sees, itself included.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        *,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int,
        norm_eps: float,
        frequencies: Array,
        magnitude: float = 1.0,
        window: int | None = None,
    ) -> None:
        self.arrays = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
        self.n_layers, self.n_heads, self.n_kv_heads = n_layers, n_heads, n_kv_heads
        self.eps, self.frequencies, self.magnitude, self.window = norm_eps, frequencies, magnitude, window

    def logits(self, ids: Array) -> Array:
        x = self.arrays["token_embd.weight"][ids]
        for i in range(self.n_layers):
            x = x + self.attention(i, self.norm(x, f"blk.{i}.attn_norm"))
            x = x + self.feed_forward(i, self.norm(x, f"blk.{i}.ffn_norm"))
        head = self.arrays.get("output.weight", self.arrays["token_embd.weight"])
        return self.norm(x, "output_norm") @ head.T

    def norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.arrays[f"{name}.weight"]

    def linear(self, x: Array, name: str) -> Array:
        return x @ self.arrays[f"{name}.weight"].T + self.arrays.get(f"{name}.bias", 0.0)

    def qkv(self, i: int, x: Array) -> list[Array]:
        fused = f"blk.{i}.attn_qkv"
        if f"{fused}.weight" not in self.arrays:
            return [self.linear(x, f"blk.{i}.attn_{part}") for part in "qkv"]
        joined = self.linear(x, fused)
        head = joined.shape[1] // (self.n_heads + 2 * self.n_kv_heads)
        return np.split(joined, [self.n_heads * head, (self.n_heads + self.n_kv_heads) * head], axis=1)

    def rope(self, x: Array) -> Array:
        """Turns channels 2j and 2j+1 of `[T, heads, head_dim]` as one complex number."""
        pairs = len(self.frequencies)
        angle = np.arange(x.shape[0])[:, None] * self.frequencies[None, :]
        turn = self.magnitude * np.exp(1j * angle)[:, None, :]
        turned = (x[..., 0 : 2 * pairs : 2] + 1j * x[..., 1 : 2 * pairs : 2]) * turn
        out = x.copy()
        out[..., 0 : 2 * pairs : 2], out[..., 1 : 2 * pairs : 2] = turned.real, turned.imag
        return out

    def attention(self, i: int, x: Array) -> Array:
        count = x.shape[0]
        q, k, v = self.qkv(i, x)
        q = self.rope(q.reshape(count, self.n_heads, -1))
        k = self.rope(k.reshape(count, self.n_kv_heads, -1))
        v = v.reshape(count, self.n_kv_heads, -1)
        distance = np.arange(count)[:, None] - np.arange(count)[None, :]
        hidden = (distance < 0) | (distance >= (self.window or count))
        heads = []
        for h in range(self.n_heads):
            shared = h // (self.n_heads // self.n_kv_heads)
            scores = q[:, h] @ k[:, shared].T / np.sqrt(q.shape[-1])
            scores[hidden] = -np.inf
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(p / p.sum(axis=1, keepdims=True) @ v[:, shared])
        return self.linear(np.concatenate(heads, axis=1), f"blk.{i}.attn_output")

    def feed_forward(self, i: int, x: Array) -> Array:
        gate, up = self.linear(x, f"blk.{i}.ffn_gate"), self.linear(x, f"blk.{i}.ffn_up")
        return self.linear(gate / (1.0 + np.exp(-gate)) * up, f"blk.{i}.ffn_down")


def nmse(found: Array, expected: Array) -> float:
    """Normalised mean squared error."""
    return float(np.sum((found - expected) ** 2) / np.sum(expected**2))
