"""Tiny random encoders as folders of transformers, whose weights fp16 and the blob hold exactly.

The golden generator (tools/goldens/encoder.py) makes the very same folders.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anex.models.encoder.tables import table

Array = np.ndarray[Any, np.dtype[Any]]

DIM, HEADS, FFN, LAYERS, VOCABULARY, POSITIONS = 64, 4, 96, 3, 96, 80
"""sqrt(DIM) and sqrt(DIM / HEADS) are powers of two: what is multiplied into weights stays exact."""

IDS = [2, 17, 40, 5, 88, 23, 23, 61, 3]
LONG = [2, *((np.arange(62) * 37 + 11) % 80 + 10).tolist(), 3]
"""For the families; a mutation is told by 30 tokens, which fit the function that is compiled anyway."""
SHORTER = [*LONG[:29], 3]
PADDED = [2, 17, 1, 40, 1, 3]
"""Has the padding token of RoBERTa as a token of its own."""

_BERT = {
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": FFN,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "pad_token_id": 0,
}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "bert": _BERT,
    "roberta": {**_BERT, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
    "distilbert": {
        "dim": DIM,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "hidden_dim": FFN,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "activation": "gelu",
        "pad_token_id": 0,
    },
    "modernbert": {
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "local_attention": 16,
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
}

MUTATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bert heads": ("bert", {"num_attention_heads": 1}),
    "bert eps": ("bert", {"layer_norm_eps": 0.09}),
    "bert gelu_new": ("bert", {"hidden_act": "gelu_new"}),
    "bert relu": ("bert", {"hidden_act": "relu"}),
    "bert silu": ("bert", {"hidden_act": "silu"}),
    "bert layers": ("bert", {"num_hidden_layers": 1}),
    "bert old names": ("bert", {"num_hidden_layers": 1}),
    "roberta padding": ("roberta", {"pad_token_id": 4}),
    "distilbert relu": ("distilbert", {"activation": "relu"}),
    "modernbert window": ("modernbert", {"local_attention": 6}),
    "modernbert every": ("modernbert", {"global_attn_every_n_layers": 1}),
    "modernbert theta": ("modernbert", {"global_rope_theta": 50.0}),
    "modernbert local theta": ("modernbert", {"local_rope_theta": 50.0}),
    "modernbert silu": ("modernbert", {"hidden_activation": "silu"}),
    "modernbert eps": ("modernbert", {"norm_eps": 0.05}),
    "modernbert parameters": (
        "modernbert",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 70.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            }
        },
    ),
}
"""Case → a family and the keys that are changed in its config; transformers' result changes with each."""

WORDS = ["the", "rain", "in", "spain", "stays", "main", "##ly", "plain", "##s", "a", "dog", "cat", "!", "."]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
VOCAB += [f"w{i}" for i in range(VOCABULARY - len(VOCAB))]


def config(case: str) -> dict[str, Any]:
    """The config.json of a family or of a mutation."""
    family, changes = MUTATIONS.get(case, (case, {}))
    return {"model_type": family, **CONFIGS[family], **changes}


def tensors(case: str) -> dict[str, Array]:
    """Tensor → numbers, the same for a name in all cases; float32."""
    values = config(case)
    known = table("hf", values["model_type"])
    layers = values.get("num_hidden_layers", values.get("n_layers"))
    vectors, matrices = _shapes(values)
    found: dict[str, Array] = {}
    patterns = {name: (role,) for role, name in known.names.items()} | dict(known.fused)
    for pattern, roles in patterns.items():
        if values["model_type"] == "modernbert" and (pattern.endswith("bias")):
            continue
        for layer in range(layers) if "{layer}" in pattern else [0]:
            if pattern == "layers.{layer}.attn_norm.weight" and not layer:
                continue
            name = pattern.format(layer=layer)
            parts = [vectors.get(role) or matrices[role] for role in roles]
            found[name] = _numbers(name, (sum(p[0] for p in parts), *parts[0][1:]))
    return found


def _shapes(values: Mapping[str, Any]) -> tuple[dict[str, tuple[int]], dict[str, tuple[int, int]]]:
    vectors = {f"{role}{end}": (DIM,) for role in ("embed_norm", "attn_norm", "ffn_norm", "norm")
               for end in ("", "_b")}  # fmt: skip
    vectors |= {"bq": (DIM,), "bk": (DIM,), "bv": (DIM,), "bo": (DIM,), "b_down": (DIM,), "b_up": (FFN,)}
    matrices = dict.fromkeys(("wq", "wk", "wv", "wo"), (DIM, DIM))
    matrices |= {"w_up": (FFN, DIM), "w_gate": (FFN, DIM), "w_down": (DIM, FFN), "word": (VOCABULARY, DIM)}
    matrices |= {"position": (POSITIONS, DIM), "segment": (values.get("type_vocab_size", 1), DIM)}
    return {**vectors, "b_gate": (FFN,)}, matrices


def _numbers(name: str, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    numbers = rng.standard_normal(shape)
    if len(shape) == 1:
        numbers = 0.2 * numbers + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)
    elif "embeddings" not in name:
        numbers *= 2.0 / np.sqrt(shape[1])
    return numbers.astype(np.float16).astype(np.float32)


def tokenizer_json() -> dict[str, Any]:
    """BERT's WordPiece over `VOCAB`, as the tokenizers library writes it."""
    special = {"CLS": 2, "SEP": 3}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i, "content": VOCAB[i], "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
            for i in range(5)
        ],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                f"[{k}]": {"id": f"[{k}]", "ids": [i], "tokens": [f"[{k}]"]} for k, i in special.items()
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {token: i for i, token in enumerate(VOCAB)},
        },
    }  # fmt: skip


def write(folder: Path, case: str = "bert", **changes: Any) -> Path:
    """A model folder; `changes` are keys of config.json, None takes one away."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    values = {k: v for k, v in {**config(case), **changes}.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    held = tensors(case)
    if case == "bert old names":
        held = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
            for name, x in held.items()
        }
    save_file(held, folder / "model.safetensors")
    return folder


def write_sentence(folder: Path, *, mode: str = "mean_tokens", **pooling: Any) -> Path:
    """The same with the files of sentence-transformers."""
    write(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": DIM, f"pooling_mode_{mode}": True, **pooling}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    limits = {"max_seq_length": 40, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder
