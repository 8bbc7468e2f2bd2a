"""Tiny random models of the llama family as GGUF files, the same ones on every machine.

`tools/goldens/llama.py` runs llama.cpp on them and stores its logits; the tests
make them again and compare.  Weights are F32, but what anex stores of them is
exactly representable in fp16: for q that is `w / sqrt(head_dim)`, for a norm
`gamma · sqrt(dim)`.  So conversion loses nothing, unless a model says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

TOKENS = 290
"""Tokens of a golden run: `PROMPT` at once, the others one by one, across the rung of 256."""

PROMPT = 250

POSITIONS = (0, 1, 31, 32, 127, 128, 200, 249, 250, 251, 255, 256, 257, 270, 289)
"""Columns whose logits are stored."""


@dataclass(frozen=True)
class Tiny:
    """One model.

    Attributes:
        peak: Gain of queries and keys; scores have about its square as standard deviation.
        exact: Conversion to fp16 loses nothing.
        biases: Roles of the linear layers that add one.
        keys: More metadata, without the prefix `llama.`.
    """

    name: str
    n_layers: int = 2
    dim: int = 64
    n_heads: int = 4
    n_kv_heads: int = 4
    head_dim: int = 16
    ffn_dim: int = 96
    vocab_size: int = 96
    norm_eps: float = 1e-5
    peak: float = 2.0
    exact: bool = True
    tied: bool = False
    fused_qkv: bool = False
    biases: tuple[str, ...] = ()
    freq_factors: tuple[float, ...] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def ids(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The tokens of the golden run."""
        return _rng(self.name + " ids").integers(0, self.vocab_size, TOKENS)


ALL_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

LLAMA3 = (1.0, 1.0, 1.0, 1.375, 2.5, 6.25, 8.0, 8.0)
"""Divisors in the manner of Llama 3.1: high frequencies kept, low ones stretched eightfold."""

TINY = (
    Tiny("dense", vocab_size=97),
    Tiny(
        "gqa_tied", n_layers=3, dim=96, n_heads=6, n_kv_heads=2, tied=True, keys={"rope.freq_base": 100000.0}
    ),
    Tiny("mqa_tied_odd", n_kv_heads=1, vocab_size=101, tied=True, norm_eps=1e-6),
    Tiny("biases", n_kv_heads=2, biases=ALL_BIASES),
    Tiny(
        "wide_heads",
        head_dim=24,
        n_kv_heads=2,
        keys={"attention.key_length": 24, "attention.value_length": 24},
    ),
    Tiny("head_80", dim=160, n_heads=2, n_kv_heads=1, head_dim=80, peak=4.0),
    Tiny("head_128", dim=256, n_heads=2, n_kv_heads=2, head_dim=128, peak=4.0, norm_eps=1e-6),
    Tiny("linear", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    Tiny("linear_old_key", keys={"rope.scale_linear": 2.0}),
    Tiny("scaling_off", keys={"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    Tiny("magnitude", keys={"rope.scaling.attn_factor": 1.25}),
    Tiny("llama3", n_kv_heads=2, freq_factors=LLAMA3, keys={"rope.freq_base": 500000.0}),
    Tiny("fused_qkv", n_kv_heads=2, fused_qkv=True, biases=("attn_q", "attn_k", "attn_v")),
)


def _rng(seed: str) -> np.random.Generator:
    return np.random.default_rng(list(seed.encode()))


def metadata(model: Tiny) -> dict[str, Any]:
    """The keys of the file, without `general.architecture`."""
    own = {
        "context_length": 512,
        "embedding_length": model.dim,
        "block_count": model.n_layers,
        "feed_forward_length": model.ffn_dim,
        "attention.head_count": model.n_heads,
        "attention.head_count_kv": model.n_kv_heads,
        "attention.layer_norm_rms_epsilon": model.norm_eps,
        "rope.dimension_count": model.head_dim,
        "vocab_size": model.vocab_size,
        **model.keys,
    }
    return {"tokenizer.ggml.model": "none"} | {f"llama.{key}": value for key, value in own.items()}


def tensors(model: Tiny) -> Arrays:
    """Every tensor of the file, rows first."""
    rng = _rng(model.name)

    def stored(values: Any, scale: float) -> Any:
        """Numbers near `values` that are exact in fp16 once they are multiplied with `scale`."""
        if not model.exact:
            return values.astype(np.float32)
        return ((values * scale).astype(np.float16) / np.float64(scale)).astype(np.float32)

    def matrix(rows: int, columns: int, gain: float = 1.0, scale: float = 1.0) -> Any:
        return stored(rng.standard_normal((rows, columns)) * (gain / np.sqrt(columns)), scale)

    def vector(size: int, mean: float, scale: float = 1.0) -> Any:
        return stored(mean + 0.25 * rng.standard_normal(size), scale)

    q_scale, norm_scale = 1.0 / np.sqrt(model.head_dim), np.sqrt(model.dim)

    out: Arrays = {"token_embd.weight": matrix(model.vocab_size, model.dim, 4.0)}
    out["output_norm.weight"] = vector(model.dim, 1.0, norm_scale)
    if not model.tied:
        out["output.weight"] = matrix(model.vocab_size, model.dim, 2.0)
    for i in range(model.n_layers):
        # Large queries and keys make attention sharp, so that a wrong position shows.
        matrices = {
            "attn_q": matrix(model.q_dim, model.dim, model.peak, q_scale),
            "attn_k": matrix(model.kv_dim, model.dim, model.peak),
            "attn_v": matrix(model.kv_dim, model.dim),
            "attn_output": matrix(model.dim, model.q_dim),
            "ffn_gate": matrix(model.ffn_dim, model.dim),
            "ffn_up": matrix(model.ffn_dim, model.dim),
            "ffn_down": matrix(model.dim, model.ffn_dim),
        }
        biases = {
            name: vector(matrices[name].shape[0], 0.0, q_scale if name == "attn_q" else 1.0)
            for name in model.biases
        }
        if model.fused_qkv:
            parts = ("attn_q", "attn_k", "attn_v")
            matrices["attn_qkv"] = np.concatenate([matrices.pop(name) for name in parts])
            if biases:
                biases["attn_qkv"] = np.concatenate([biases.pop(name) for name in parts])
        for norm in ("attn_norm", "ffn_norm"):
            out[f"blk.{i}.{norm}.weight"] = vector(model.dim, 1.0, norm_scale)
        out |= {f"blk.{i}.{name}.weight": value for name, value in matrices.items()}
        out |= {f"blk.{i}.{name}.bias": value for name, value in biases.items()}
    if model.freq_factors:
        out["rope_freqs.weight"] = np.asarray(model.freq_factors, np.float32)
    return out


def write_gguf(
    path: Path,
    keys: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]],
    arch: str = "llama",
) -> Path:
    """Write a GGUF file with the `gguf` package; Python ints become uint32, floats float32."""
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in keys.items():
        add.get(type(value), writer.add_array)(key, value)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make(folder: Path, model: Tiny) -> Path:
    """Write a tiny model to `folder/name.gguf`."""
    return write_gguf(folder / f"{model.name}.gguf", metadata(model), tensors(model))
