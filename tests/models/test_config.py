"""From metadata to a config: what is read, what may be there, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny_llama

from anex.errors import AnexError, InputError, UnsupportedError
from anex.models.config import DecoderConfig, families, from_metadata
from anex.models.ledger import Ledger
from anex.models.rope import Rope

MISSING = object()

BASE = {"general.architecture": "llama"} | tiny_llama.metadata(tiny_llama.Tiny("base", n_kv_heads=2))


def read(**changes: Any) -> DecoderConfig:
    """The config of a small model with some keys changed; `__` stands for a dot."""
    metadata = dict(BASE)
    for name, value in changes.items():
        key = name.replace("__", ".")
        if not key.startswith(("general.", "tokenizer.")):
            key = f"llama.{key}"
        if value is MISSING:
            del metadata[key]
        else:
            metadata[key] = value
    return from_metadata(metadata, Ledger("file"))


def test_every_field() -> None:
    assert read() == DecoderConfig(
        family="llama",
        n_layers=2,
        dim=64,
        n_heads=4,
        n_kv_heads=2,
        head_dim=16,
        ffn_dim=96,
        vocab_size=96,
        context_length=512,
        norm_eps=1e-5,
        rope=Rope(16, interleaved=True),
    )


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"attention__head_count_kv": MISSING}, "n_kv_heads", 4),
        ({"attention__head_count_kv": np.array([2, 2])}, "n_kv_heads", 2),
        ({"feed_forward_length": (96, 96)}, "ffn_dim", 96),
        ({"rope__dimension_count": MISSING}, "head_dim", 16),
        ({"vocab_size": MISSING}, "vocab_size", 0),
        ({"attention__sliding_window": 24}, "sliding_window", 24),
        ({"attention__sliding_window": 0}, "sliding_window", None),
        (
            {"attention__key_length": 24, "attention__value_length": 24, "rope__dimension_count": 24},
            "head_dim",
            24,
        ),
    ],
)
def test_defaults_and_forms(changes: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(read(**changes), field) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope__freq_base": 5e5}, {"theta": 5e5}),
        ({"rope__scaling__factor": 4.0}, {"linear_factor": 4.0}),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {"linear_factor": 4.0}),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {"linear_factor": 1.0}),
        ({"rope__scaling__factor": 0.0}, {"linear_factor": 1.0}),
        ({"rope__scale_linear": 2.0}, {"linear_factor": 2.0}),
        # The old key only counts where the new one is missing, even if that says "not set".
        ({"rope__scale_linear": 2.0, "rope__scaling__factor": 4.0}, {"linear_factor": 4.0}),
        ({"rope__scale_linear": 2.0, "rope__scaling__factor": 0.0}, {"linear_factor": 1.0}),
        ({"rope__scaling__attn_factor": 1.25}, {"magnitude": 1.25}),
    ],
)
def test_rope_as_llama_cpp_reads_it(changes: dict[str, Any], expected: dict[str, float]) -> None:
    rope = read(**changes).rope
    assert {name: getattr(rope, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"general__architecture": MISSING}, InputError, "general.architecture"),
        ({"general__architecture": 3}, InputError, "general.architecture"),
        ({"general__architecture": "gpt2"}, UnsupportedError, "gpt2"),
        ({"general__type": "adapter"}, UnsupportedError, "general.type"),
        ({"block_count": MISSING}, InputError, "llama.block_count"),
        ({"block_count": 0}, InputError, "llama.block_count"),
        ({"block_count": 513}, InputError, "llama.block_count"),
        ({"block_count": "2"}, InputError, "llama.block_count"),
        ({"block_count": True}, InputError, "llama.block_count"),
        ({"block_count": 2.0}, InputError, "llama.block_count"),
        ({"embedding_length": 65}, InputError, "llama.attention.head_count"),
        ({"embedding_length": 32768}, InputError, "llama.embedding_length"),
        ({"attention__layer_norm_rms_epsilon": MISSING}, InputError, "layer_norm_rms_epsilon"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, InputError, "layer_norm_rms_epsilon"),
        ({"attention__layer_norm_rms_epsilon": 0.0}, InputError, "layer_norm_rms_epsilon"),
        ({"attention__head_count_kv": 3}, InputError, "4 heads cannot share 3"),
        ({"attention__head_count_kv": np.array([2, 4])}, UnsupportedError, "differs between layers"),
        ({"attention__head_count_kv": ()}, InputError, "empty"),
        ({"feed_forward_length": "wide"}, InputError, "feed_forward_length"),
        ({"attention__key_length": 24, "rope__dimension_count": 24}, UnsupportedError, "value_length"),
        ({"attention__value_length": 24}, UnsupportedError, "value_length"),
        ({"rope__dimension_count": 8}, InputError, "rope.dimension_count"),
        ({"rope__scaling__type": "yarn"}, UnsupportedError, "yarn"),
        ({"rope__scaling__type": "longrope"}, UnsupportedError, "longrope"),
        ({"rope__scaling__type": 3}, InputError, "rope.scaling.type"),
        ({"rope__freq_base": float("inf")}, InputError, "rope.freq_base"),
    ],
)
def test_refused(changes: dict[str, Any], error: type[AnexError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)


def test_families() -> None:
    assert families() == ("llama",)
