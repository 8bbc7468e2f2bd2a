"""From metadata to a config: what is read, what may be there, and what is refused."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import tiny_llama
from hypothesis import given
from hypothesis import strategies as st

from anex.errors import AnexError, InputError, UnsupportedError
from anex.models.config import Attention, DecoderConfig, Mlp, Norm
from anex.models.families import families
from anex.models.ledger import Ledger
from anex.models.metadata import Reader, from_metadata
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
        vocab_size=96,
        context_length=512,
        norm=Norm(1e-5),
        attention=Attention(n_heads=4, n_kv_heads=2, head_dim=16, scale=0.25),
        mlp=Mlp(96),
        rope=Rope(16),
    )


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"attention__head_count_kv": MISSING}, "attention.n_kv_heads", 4),
        ({"attention__head_count_kv": np.array([2, 2])}, "attention.n_kv_heads", 2),
        ({"feed_forward_length": (96, 96)}, "mlp.dim", 96),
        ({"rope__dimension_count": MISSING}, "attention.head_dim", 16),
        ({"vocab_size": MISSING}, "vocab_size", 0),
        ({"attention__sliding_window": 24}, "attention.window", 24),
        ({"attention__sliding_window": 0}, "attention.window", None),
        (
            {"attention__key_length": 24, "attention__value_length": 24, "rope__dimension_count": 24},
            "attention.head_dim",
            24,
        ),
    ],
)
def test_defaults_and_forms(changes: dict[str, Any], field: str, expected: Any) -> None:
    assert attrgetter(field)(read(**changes)) == expected


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
        ({"general__architecture": "mamba"}, UnsupportedError, "mamba"),
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
        ({"attention__head_count_kv": ()}, InputError, "0 entries for 2 layers"),
        ({"attention__head_count": np.array([4, 4, 4])}, InputError, "3 entries for 2 layers"),
        ({"attention__head_count": np.array([4])}, InputError, "1 entries for 2 layers"),
        (
            {"attention__head_count": (np.array([4]), np.array([4]))},
            InputError,
            "something else than numbers",
        ),
        ({"attention__head_count": np.array([[4, 4], [4, 4]])}, InputError, "something else than numbers"),
        ({"attention__head_count": np.array([4.0, 4.0])}, InputError, "no int"),
        ({"attention__head_count": np.array([True, True])}, InputError, "something else than numbers"),
        ({"feed_forward_length": (np.array([96]), np.array([96, 96]))}, InputError, "something else"),
        ({"feed_forward_length": ("96", "96")}, InputError, "something else than numbers"),
        ({"block_count": np.array([2, 2])}, InputError, "an array of 2 is no int"),
        ({"general__architecture": "x" * 10**6}, UnsupportedError, r"architecture 'x{77}\.\.\.'"),
        ({"general__type": "x" * 10**6}, UnsupportedError, r"= 'x{77}\.\.\.'"),
        ({"rope__scaling__type": "x\n" * 10**6}, UnsupportedError, r"scaling '(x\\n){38}x\.\.\.'"),
        ({"x" * 10**6: 1}, UnsupportedError, "llama.x{71}"),
        ({"attention__layer_norm_rms_epsilon": 1e-12}, UnsupportedError, "smallest normal number"),
        ({"feed_forward_length": "wide"}, InputError, "feed_forward_length"),
        ({"attention__key_length": 24, "rope__dimension_count": 24}, UnsupportedError, "value_length"),
        ({"attention__value_length": 24}, UnsupportedError, "value_length"),
        ({"rope__dimension_count": 8}, InputError, "rope.dimension_count"),
        ({"rope__scaling__factor": 1e-30}, InputError, "rope.scaling.factor.*below 0.001"),
        ({"rope__scale_linear": 9e-4}, InputError, "rope.scale_linear.*below 0.001"),
        ({"rope__scaling__type": "longrope"}, UnsupportedError, "longrope"),
        ({"rope__scaling__type": 3}, InputError, "rope.scaling.type"),
        ({"rope__freq_base": float("inf")}, InputError, "rope.freq_base"),
    ],
)
def test_refused(changes: dict[str, Any], error: type[AnexError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2**40), st.floats(), st.text(max_size=3),
        st.lists(st.integers(0, 5), max_size=3).map(np.array),
        st.lists(st.floats(), max_size=3).map(np.array),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)  # fmt: skip
"""What the metadata of a hostile file may hold: numbers, strings, arrays, and tuples of these."""


@given(st.sampled_from(sorted(BASE)), ANYTHING)
def test_any_value_is_read_or_refused_in_one_line(key: str, value: Any) -> None:
    message = ""
    try:
        from_metadata(BASE | {key: value}, Ledger("file"))
    except AnexError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 400


def test_the_smallest_epsilon() -> None:
    """sqrt(eps·64) has to reach 2**-14, fp16's smallest normal number."""
    assert read(attention__layer_norm_rms_epsilon=2.0**-34).norm.eps == 2.0**-34
    with pytest.raises(UnsupportedError, match="layer_norm_rms_epsilon"):
        read(attention__layer_norm_rms_epsilon=2.0**-34 * 0.999)


def test_a_key_has_a_name_in_families_that_do_not_read_it() -> None:
    reader = Reader(BASE, Ledger("file"))
    reader.fields.clear()
    assert reader.key("sliding_window") == "llama.attention.sliding_window"
    assert reader.get("sliding_window", 0) == 0
    with pytest.raises(InputError, match="block_count' is missing"):
        reader.get("n_layers")


def test_families() -> None:
    assert {"llama", "qwen2", "qwen3", "gemma3", "phi3", "gpt2", "olmo2", "granite"} <= set(families())
