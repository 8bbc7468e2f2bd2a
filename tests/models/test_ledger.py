"""Nothing of a model file is overlooked: used, neutral with a reason, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
from tiny_llama import TINY, Tiny

from anex.errors import AnexError, InputError, UnsupportedError
from anex.models import Ledger, load_gguf
from anex.models.metadata import from_metadata

MODEL = Tiny("ledger", n_kv_heads=2)

NEUTRAL_KEYS = {
    "general.type": "model",
    "general.name": "Tiny",
    "general.file_type": 1,
    "general.quantization_version": 2,
    "general.sampling.temp": 0.5,
    "general.languages": ["en"],
    "quantize.imatrix.chunks_count": 3,
    "tokenizer.chat_template": "{{ x }}",
    "llama.rope.scaling.finetuned": True,
    "llama.attention.causal": True,
    "llama.attention.scale": 0.0,
    "llama.tensor_data_layout": "Meta AI original pth",
}

FEATURES = {
    "llama.expert_weights_scale": 2.0,
    "llama.attention.causal": False,
    "llama.attention.scale": 0.5,
    "llama.attention.clamp_kqv": 8.0,
    "llama.attention.max_alibi_bias": 8.0,
    "llama.attn_logit_softcapping": 40.0,
    "llama.final_logit_softcapping": 20.0,
    "llama.logit_scale": 0.5,
    "llama.residual_scale": 0.5,
    "llama.embedding_scale": 12.0,
    "llama.nextn_predict_layers": 1,
    "llama.pooling_type": 1,
    "llama.rope.scaling.yarn_ext_factor": 1.0,
    "llama.rope.dimension_sections": [4, 4, 0, 0],
    "llama.tensor_data_layout": "something else",
    "llama.a_key_of_tomorrow": 1,
    "qwen2.block_count": 2,
    "clip.has_text_encoder": False,
    "tokenizer.ggml.a_key_of_tomorrow": 1,
    "general.type": "adapter",
}
"""Keys that llama.cpp computes something with for some model, or that nobody knows."""


def load(folder: Path, keys: dict[str, Any], arrays: dict[str, Any]) -> Ledger:
    with load_gguf(tiny_llama.write_gguf(folder / "model.gguf", keys, arrays)) as file:
        return file.ledger


def test_everything_has_an_account(tmp_path: Path) -> None:
    keys = tiny_llama.metadata(MODEL) | NEUTRAL_KEYS
    arrays = tiny_llama.tensors(MODEL)
    accounts = load(tmp_path, keys, arrays).accounts
    assert {a.name for a in accounts if a.what == "key"} == {"general.architecture", *keys}
    assert {a.name for a in accounts if a.what == "tensor"} == set(arrays)
    assert {a.name for a in accounts if a.status == "neutral"} == set(NEUTRAL_KEYS)
    assert all(a.note for a in accounts)


@pytest.mark.parametrize("key", FEATURES)
def test_a_feature_that_is_missing_is_refused_by_name(tmp_path: Path, key: str) -> None:
    keys = tiny_llama.metadata(MODEL) | {key: FEATURES[key]}
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path, keys, tiny_llama.tensors(MODEL))
    assert f"'{key}'" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "output.bias",
        "blk.0.attn_q_norm.weight",
        "blk.0.attn_sinks.weight",
        "blk.0.attn_q.zero_point",
        "blk.0.ffn_gate_inp.weight",
        "blk.2.attn_norm.weight",
        "token_embd_norm.weight",
        "rope_factors_long.weight",
        "a_tensor_of_tomorrow",
    ],
)
def test_an_unknown_tensor_is_refused_by_name(tmp_path: Path, name: str) -> None:
    arrays = tiny_llama.tensors(MODEL) | {name: np.ones(16, np.float32)}
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path, tiny_llama.metadata(MODEL), arrays)
    assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize(
    "name", [name for name in tiny_llama.tensors(MODEL) if name != "output.weight" and ".1." not in name]
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    arrays = tiny_llama.tensors(MODEL)
    del arrays[name]
    with pytest.raises(InputError) as caught:
        load(tmp_path, tiny_llama.metadata(MODEL), arrays)
    assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in tiny_llama.tensors(MODEL) if ".1." not in name])
def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path, name: str) -> None:
    arrays = tiny_llama.tensors(MODEL)
    right = list(arrays[name].shape)
    wrong = [*right[:-1], right[-1] + 32]
    arrays[name] = np.ones(wrong, np.float32)
    with pytest.raises(InputError) as caught:
        load(tmp_path, tiny_llama.metadata(MODEL), arrays)
    assert f"tensor '{name}' has shape {wrong}, expected {right}" in str(caught.value)


def test_biases_in_some_layers_only_are_refused(tmp_path: Path) -> None:
    arrays = tiny_llama.tensors(MODEL) | {"blk.1.attn_q.bias": np.ones(64, np.float32)}
    with pytest.raises(UnsupportedError, match="'bq' in some layers but not in layer 0"):
        load(tmp_path, tiny_llama.metadata(MODEL), arrays)


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    keys = tiny_llama.metadata(MODEL) | {"tokenizer.ggml.tokens": ["a"] * 95}
    with pytest.raises(InputError, match="95 entries, the embedding table 96 rows"):
        load(tmp_path, keys, tiny_llama.tensors(MODEL))


CHANGED: dict[str, Any] = {
    "llama.context_length": 1024,
    "llama.embedding_length": 128,
    "llama.block_count": 1,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 1,
    "llama.attention.key_length": 32,
    "llama.attention.value_length": 32,
    "llama.attention.layer_norm_rms_epsilon": 0.01,
    "llama.attention.sliding_window": 8,
    "llama.rope.dimension_count": 8,
    "llama.rope.freq_base": 20000.0,
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 3.0,
    "llama.rope.scale_linear": 3.0,
    "llama.rope.scaling.attn_factor": 2.0,
    "llama.vocab_size": 64,
}


@pytest.mark.parametrize("key", sorted({key for model in TINY for key in tiny_llama.metadata(model)} - {
    "tokenizer.ggml.model"
} | set(CHANGED)))  # fmt: skip
def test_every_key_that_is_read_matters(tmp_path: Path, key: str) -> None:
    """Another value gives another config, or tensors that do not fit it: never the same model."""
    keys = {"general.architecture": "llama"} | tiny_llama.metadata(MODEL)
    before = from_metadata(keys, Ledger("file"))
    changed = keys | {key: CHANGED[key]}
    changed.pop("general.architecture")
    try:
        with load_gguf(
            tiny_llama.write_gguf(tmp_path / "x.gguf", changed, tiny_llama.tensors(MODEL))
        ) as file:
            after = file.config
    except AnexError:
        return
    assert after != before
