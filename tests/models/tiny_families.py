"""Tiny random models of every decoder family as GGUF files, the same ones on every machine.

As in `tiny_llama`, whose tokens and positions they share.  Sizes are chosen so
that the constants of a model are powers of two: weights that are fp16 numbers
stay so when these are multiplied in, and conversion loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tiny_llama
from tiny_llama import Arrays

DIM, FFN, VOCAB, CONTEXT = 64, 96, 96, 512

QKV, QKVO = ("attn_q", "attn_k", "attn_v"), ("attn_q", "attn_k", "attn_v", "attn_output")
PRE, POST = ("attn_norm", "ffn_norm"), ("post_attention_norm", "post_ffw_norm")


@dataclass(frozen=True)
class Family:
    """One model.

    Attributes:
        norms: Of each layer.
        layer_norm: LayerNorm instead of RMSNorm; `norm_biases`: it adds a bias.
        biases: Linear layers that add one.
        qk_norm: Norms of queries and keys: head, heads (a weight for each) or whole.
        fused: Queries, keys and values are one tensor; `fused_up`: so are gate and up.
        experts: (how many, used, width of each, width of the shared one).
        tables: More tensors, by name, as lists of numbers.
        keys: More metadata, without the prefix.
        gelu: llama.cpp computes this activation from a table of fp16 numbers.
        peak: Gain of queries and keys.
    """

    name: str
    arch: str
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    norms: tuple[str, ...] = PRE
    layer_norm: bool = False
    norm_biases: bool = False
    gated: bool = True
    biases: tuple[str, ...] = ()
    qk_norm: str = ""
    fused: bool = False
    fused_up: bool = False
    tied: bool = False
    head_bias: bool = False
    positions: bool = False
    experts: tuple[int, int, int, int] | None = None
    gelu: bool = False
    peak: float = 2.0
    tables: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The tokens of the golden run."""
        return _rng(self.name + " ids").integers(0, VOCAB, tiny_llama.TOKENS)


ALL_LINEAR = (*QKVO, "ffn_up", "ffn_down")
LAYER = {"layer_norm": True, "norm_biases": True}
GELU = {"gated": False, "gelu": True}
WIDE = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 64}
WIDE_KEYS = {"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64}
STRETCHED = (1.0, 1.125, 1.5, 2.0, 4.0, 4.0, 8.0, 8.0)
SHORT, LONG = (1.0, 1.0, 1.25, 1.5), (1.0, 2.0, 4.0, 16.0)

FAMILIES = (
    Family("qwen2", "qwen2", biases=QKV, tied=True),
    Family("qwen2_head_bias", "qwen2", n_kv_heads=4, head_bias=True),
    Family(
        "qwen2_yarn",
        "qwen2",
        biases=QKV,
        keys={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
    ),
    Family("qwen3", "qwen3", **WIDE, qk_norm="head", keys=WIDE_KEYS),
    Family("gemma", "gemma", **WIDE, gelu=True, tied=True, keys=WIDE_KEYS),
    Family(
        "gemma2",
        "gemma2",
        n_layers=3,
        norms=(*PRE, *POST),
        gelu=True,
        tied=True,
        keys={
            "attention.sliding_window": 24,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 2.0,
            "rope.freq_base_swa": 500.0,
        },
    ),
    Family(
        "gemma3",
        "gemma3",
        n_layers=3,
        norms=(*PRE, *POST),
        qk_norm="head",
        gelu=True,
        tied=True,
        keys={
            "attention.sliding_window": 24,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 5000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    Family("gemma3_no_window", "gemma3", norms=(*PRE, *POST), qk_norm="head", gelu=True),
    Family(
        "phi3_long",
        "phi3",
        fused=True,
        fused_up=True,
        tables={"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG},
        keys={
            "rope.dimension_count": 8,
            "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": 1.25,
            "rope.scaling.original_context_length": 128,
        },
    ),
    Family(
        "phi3_short",
        "phi3",
        n_kv_heads=4,
        fused=True,
        fused_up=True,
        tables={"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG},
        keys={"rope.dimension_count": 8, "rope.scaling.original_context_length": 512},
    ),
    Family(
        "phi2",
        "phi2",
        n_kv_heads=4,
        norms=("attn_norm",),
        biases=ALL_LINEAR,
        head_bias=True,
        keys={"rope.dimension_count": 8},
        **LAYER,
        **GELU,
    ),
    Family(
        "gpt2",
        "gpt2",
        n_kv_heads=4,
        biases=ALL_LINEAR,
        fused=True,
        positions=True,
        tied=True,
        **LAYER,
        **GELU,
    ),
    Family(
        "starcoder", "starcoder", n_kv_heads=1, biases=ALL_LINEAR, fused=True, positions=True, **LAYER, **GELU
    ),
    Family(
        "starcoder2",
        "starcoder2",
        biases=ALL_LINEAR,
        tied=True,
        keys={"rope.freq_base": 1e5},
        **LAYER,
        **GELU,
    ),
    Family(
        "gptneox",
        "gptneox",
        n_kv_heads=4,
        biases=ALL_LINEAR,
        fused=True,
        keys={"rope.dimension_count": 4, "use_parallel_residual": True},
        **LAYER,
        **GELU,
    ),
    Family(
        "gptneox_sequential",
        "gptneox",
        n_kv_heads=4,
        biases=ALL_LINEAR,
        fused=True,
        keys={"rope.dimension_count": 4, "use_parallel_residual": False},
        **LAYER,
        **GELU,
    ),
    Family("olmo2", "olmo2", n_kv_heads=4, norms=POST, qk_norm="whole"),
    Family(
        "olmo3",
        "olmo2",
        n_kv_heads=4,
        norms=POST,
        qk_norm="whole",
        keys={
            "attention.sliding_window": 24,
            "attention.sliding_window_pattern": (True, False),
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.attn_factor": 1.25,
            "rope.scaling.original_context_length": 64,
        },
    ),
    Family(
        "granite",
        "granite",
        tied=True,
        biases=("attn_output", "ffn_up"),
        keys={
            "attention.scale": 0.125,
            "embedding_scale": 4.0,
            "residual_scale": 0.5,
            "logit_scale": 8.0,
        },
    ),
    Family("granite_unrotated", "granite", keys={"logit_scale": 2.0, "rope.scaling.finetuned": False}),
    Family(
        "granitemoe",
        "granitemoe",
        tied=True,
        experts=(6, 2, 48, 32),
        keys={"residual_scale": 0.5, "logit_scale": 4.0, "expert_shared_feed_forward_length": 32},
    ),
    Family("mixtral", "llama", experts=(4, 2, 48, 0), peak=1.5),
    Family(
        "qwen3moe",
        "qwen3moe",
        qk_norm="head",
        experts=(8, 3, 32, 0),
        keys={"expert_feed_forward_length": 32},
    ),
    Family("smollm3", "smollm3", n_layers=4, tied=True),
    Family(
        "stablelm",
        "stablelm",
        biases=QKV,
        layer_norm=True,
        norm_biases=True,
        keys={"rope.dimension_count": 4},
    ),
    Family(
        "stablelm_parallel",
        "stablelm",
        norms=("attn_norm",),
        qk_norm="heads",
        layer_norm=True,
        norm_biases=True,
        keys={"rope.dimension_count": 4},
    ),
    Family(
        "command_r", "command-r", norms=("attn_norm",), layer_norm=True, tied=True, keys={"logit_scale": 0.25}
    ),
    Family(
        "cohere2",
        "cohere2",
        norms=("attn_norm",),
        layer_norm=True,
        tied=True,
        keys={
            "logit_scale": 0.25,
            "attention.sliding_window": 24,
            "attention.sliding_window_pattern": (True, False),
        },
    ),
    Family("glm4", "glm4", norms=(*PRE, *POST), biases=QKV, fused_up=True, keys={"rope.dimension_count": 8}),
    Family("chatglm", "chatglm", biases=QKV, fused=True, fused_up=True, keys={"rope.dimension_count": 8}),
    Family("exaone", "exaone", tables={"rope_freqs.weight": STRETCHED}),
    Family(
        "exaone4", "exaone4", norms=POST, qk_norm="head", tied=True, tables={"rope_freqs.weight": STRETCHED}
    ),
    Family("ernie4_5", "ernie4_5", tied=True),
    Family("seed_oss", "seed_oss", norms=("attn_norm", "post_attention_norm"), biases=QKV),
    Family("hunyuan", "hunyuan-dense", qk_norm="head", tied=True),
    Family("arcee", "arcee", gated=False),
    Family(
        "nemotron",
        "nemotron",
        gated=False,
        layer_norm=True,
        norm_biases=True,
        keys={"rope.dimension_count": 8},
    ),
    Family("internlm2", "internlm2"),
    Family("xverse", "xverse", n_kv_heads=4),
    Family("olmoe", "olmoe", n_kv_heads=4, qk_norm="whole", experts=(6, 2, 32, 0)),
    Family(
        "minicpm",
        "minicpm",
        tied=True,
        keys={"embedding_scale": 4.0, "residual_scale": 0.5, "logit_scale": 4.0},
    ),
    Family("mistral3", "mistral3", tables={"rope_freqs.weight": STRETCHED}),
    Family("maincoder", "maincoder", qk_norm="head"),
    Family("pangu", "pangu-embedded", biases=QKVO),
    Family("jais2", "jais2", gated=False, biases=ALL_LINEAR, **LAYER),
    Family("orion", "orion", layer_norm=True, norm_biases=True),
)


def _rng(seed: str) -> np.random.Generator:
    return np.random.default_rng(list(seed.encode()))


def metadata(model: Family) -> dict[str, Any]:
    """The keys of the file, without `general.architecture`."""
    eps = "layer_norm_epsilon" if model.layer_norm else "layer_norm_rms_epsilon"
    own = {
        "context_length": CONTEXT,
        "embedding_length": DIM,
        "block_count": model.n_layers,
        "feed_forward_length": model.experts[2] if model.experts else FFN,
        "attention.head_count": model.n_heads,
        "attention.head_count_kv": model.n_kv_heads,
        f"attention.{eps}": 1e-5,
        "vocab_size": VOCAB,
        **(
            {"expert_count": model.experts[0], "expert_used_count": model.experts[1]} if model.experts else {}
        ),
        **model.keys,
    }
    return {"tokenizer.ggml.model": "none"} | {f"{model.arch}.{key}": value for key, value in own.items()}


def tensors(model: Family) -> Arrays:
    """Every tensor of the file, rows first."""
    rng = _rng(model.name)
    q, kv = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim

    def matrix(*shape: int, gain: float = 1.0) -> Any:
        numbers = rng.standard_normal(shape) * (gain / np.sqrt(shape[-1]))
        return numbers.astype(np.float16).astype(np.float32)

    def vector(*shape: int, mean: float = 1.0) -> Any:
        return (mean + 0.25 * rng.standard_normal(shape)).astype(np.float16).astype(np.float32)

    def normed(name: str) -> Arrays:
        bias = {f"{name}.bias": vector(DIM, mean=0.0)} if model.norm_biases else {}
        return {f"{name}.weight": vector(DIM), **bias}

    out: Arrays = {"token_embd.weight": matrix(VOCAB, DIM, gain=4.0), **normed("output_norm")}
    if not model.tied:
        out["output.weight"] = matrix(VOCAB, DIM, gain=2.0)
    if model.head_bias:
        out["output.bias"] = vector(VOCAB, mean=0.0)
    if model.positions:
        out["position_embd.weight"] = matrix(CONTEXT, DIM, gain=4.0)
    out |= {name: np.asarray(numbers, np.float32) for name, numbers in model.tables.items()}
    for i in range(model.n_layers):
        # Large queries and keys make attention sharp, so that a wrong position shows.
        linear = {
            "attn_q": matrix(q, DIM, gain=model.peak),
            "attn_k": matrix(kv, DIM, gain=model.peak),
            "attn_v": matrix(kv, DIM),
            "attn_output": matrix(DIM, q),
        }
        linear |= _feed_forward(model, matrix)
        biases = {name: vector(linear[name].shape[0], mean=0.0) for name in model.biases}
        for part in (linear, biases):
            if model.fused and "attn_q" in part:
                part["attn_qkv"] = np.concatenate([part.pop(name) for name in QKV])
        if model.fused_up:
            linear["ffn_up"] = np.concatenate([linear.pop("ffn_gate"), linear["ffn_up"]])
        layer = {f"{name}.weight": value for name, value in linear.items()}
        layer |= {f"{name}.bias": value for name, value in biases.items()}
        for norm in model.norms:
            layer |= normed(norm)
        for name, heads in (("q", model.n_heads), ("k", model.n_kv_heads)) if model.qk_norm else ():
            shapes = {
                "head": (model.head_dim,),
                "heads": (heads, model.head_dim),
                "whole": (heads * model.head_dim,),
            }
            layer[f"attn_{name}_norm.weight"] = vector(*shapes[model.qk_norm])
        out |= {f"blk.{i}.{name}": value for name, value in layer.items()}
    return out


def _feed_forward(model: Family, matrix: Any) -> Arrays:
    if model.experts is None:
        gate = {"ffn_gate": matrix(FFN, DIM)} if model.gated else {}
        return {**gate, "ffn_up": matrix(FFN, DIM), "ffn_down": matrix(DIM, FFN)}
    count, _, width, shared = model.experts
    found = {
        "ffn_gate_inp": matrix(count, DIM, gain=2.0),
        "ffn_gate_exps": matrix(count, width, DIM),
        "ffn_up_exps": matrix(count, width, DIM),
        "ffn_down_exps": matrix(count, DIM, width),
    }
    if shared:
        found |= {"ffn_gate_shexp": matrix(shared, DIM), "ffn_up_shexp": matrix(shared, DIM)}
        found["ffn_down_shexp"] = matrix(DIM, shared)
    return found


def make(folder: Path, model: Family) -> Path:
    """Write a tiny model to `folder/name.gguf`."""
    path = folder / f"{model.name}.gguf"
    return tiny_llama.write_gguf(path, metadata(model), tensors(model), model.arch)


MUTATED = (
    "gemma2", "gemma3", "granite", "granitemoe", "olmo3", "phi3_long", "qwen2_yarn", "qwen3moe",
    "gptneox", "cohere2", "gpt2", "stablelm", "command_r", "mixtral",
)  # fmt: skip
"""Models whose keys are changed one by one."""

MUTATIONS: tuple[tuple[str, Any], ...] = (
    ("context_length", 256),
    ("vocab_size", 64),
    ("embedding_length", 128),
    ("block_count", 1),
    ("feed_forward_length", 64),
    ("attention.head_count", 2),
    ("attention.head_count_kv", 1),
    ("attention.key_length", 32),
    ("attention.value_length", 32),
    ("attention.layer_norm_rms_epsilon", 0.01),
    ("attention.layer_norm_epsilon", 0.01),
    ("attention.scale", 0.5),
    ("attention.sliding_window", 9),
    ("attention.sliding_window_pattern", 3),
    ("attn_logit_softcapping", 2.0),
    ("final_logit_softcapping", 1.0),
    ("embedding_scale", 2.0),
    ("residual_scale", 0.25),
    ("logit_scale", 3.0),
    ("use_parallel_residual", False),
    ("expert_count", 3),
    ("expert_used_count", 1),
    ("expert_feed_forward_length", 16),
    ("expert_shared_feed_forward_length", 16),
    ("expert_weights_scale", 2.0),
    ("rope.dimension_count", 2),
    ("rope.freq_base", 777.0),
    ("rope.freq_base_swa", 55.0),
    ("rope.scaling.type", "none"),
    ("rope.scaling.type", "linear"),
    ("rope.scaling.type", "yarn"),
    ("rope.scaling.type", "longrope"),
    ("rope.scaling.factor", 3.0),
    ("rope.scale_linear", 3.0),
    ("rope.scaling.attn_factor", 2.0),
    ("rope.scaling.original_context_length", 40),
    ("rope.scaling.finetuned", False),
)
"""Keys, without the prefix, and another value of each."""

MUTATED_TOKENS = 60
"""Tokens of a run with a changed key; the logits of the last two are stored."""


def mutated(folder: Path, model: Family, key: str, value: Any) -> Path:
    """Write a model with one key changed, or added."""
    keys = metadata(model) | {f"{model.arch}.{key}": value}
    return tiny_llama.write_gguf(folder / "mutated.gguf", keys, tensors(model), model.arch)
