"""Every decoder family against llama.cpp's stored logits: one prompt by prefill, then token by token."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families
import tiny_llama
from hypothesis import given
from hypothesis import strategies as st
from interpreter import Session
from reference import nmse
from tiny_families import FAMILIES, Family

from anex.errors import AnexError, InputError
from anex.mil.blob import BlobFile
from anex.mil.verify import problems
from anex.models import DecoderConfig, Ledger, Rope, layout, prepare
from anex.models.metadata import from_metadata

GOLDENS = Path(__file__).parents[1] / "data" / "families"
BY_NAME = {model.name: model for model in FAMILIES}
every_family = pytest.mark.parametrize("model", FAMILIES, ids=[model.name for model in FAMILIES])


def whole_run(session: Session, model: Family) -> Any:
    """Logits at the stored positions, across a rung of the cache and far past the windows."""
    rows = [session.feed(model.ids[: tiny_llama.PROMPT])]
    rows += [session.step(int(i))[None] for i in model.ids[tiny_llama.PROMPT :]]
    return np.concatenate(rows)[list(tiny_llama.POSITIONS)]


def limit(model: Family) -> float:
    """llama.cpp takes gelu from a table of fp16 numbers: 2⁻¹¹ squared for each, a few in a row."""
    return 1e-6 if model.gelu else 1e-10


@every_family
def test_program_equals_llama_cpp(tmp_path: Path, model: Family) -> None:
    expected = np.load(GOLDENS / f"{model.name}.npz")["logits"]
    with prepare(tiny_families.make(tmp_path, model), tmp_path / "cache") as ready:
        found = whole_run(Session(ready, exact=True), model)
        with BlobFile(ready.blob_path) as blob:
            assert problems(ready.program(["prefill_t32_c0", "decode_c256"]), blob, engine=True) == []
    assert nmse(found, expected) < limit(model)


@pytest.mark.parametrize("name", ["gemma2", "gpt2", "stablelm_parallel", "hunyuan", "mixtral", "olmo3"])
def test_program_survives_fp16(tmp_path: Path, name: str) -> None:
    """Every result rounded to fp16: errors stay those of rounding, nothing is near the cliff at 2**15."""
    model = BY_NAME[name]
    expected = np.load(GOLDENS / f"{name}.npz")["logits"]
    with prepare(tiny_families.make(tmp_path, model), tmp_path / "cache") as ready:
        session = Session(ready, half=True)
        assert nmse(whole_run(session, model), expected) < 1e-4
    assert session.engine.largest < 11000  # the mask, or the logit of an expert that was not chosen


def test_outliers_do_not_break_a_layer_norm(tmp_path: Path) -> None:
    """One channel at 2·10⁴ and a mean that is not small: no square and no sum leaves fp16."""
    model = BY_NAME["starcoder2"]
    arrays = tiny_families.tensors(model)
    arrays["token_embd.weight"][:, 5] = 20000.0
    arrays["output.weight"] = np.where(np.arange(tiny_families.DIM) == 5, 0, arrays["token_embd.weight"])
    keys = tiny_families.metadata(model)
    path = tiny_llama.write_gguf(tmp_path / "outlier.gguf", keys, arrays, model.arch)
    ids = model.ids[:40]
    with prepare(path, tmp_path / "cache") as ready:
        expected = Session(ready, exact=True).feed(ids)
        session = Session(ready, half=True)
        found = session.feed(ids)
    assert np.isfinite(found).all()
    assert session.engine.largest >= 20000.0
    assert nmse(found, expected) < 1e-1


# --- what keys and tensors become ------------------------------------------------


def config_of(name: str, **changes: Any) -> DecoderConfig:
    """The config of a tiny model's metadata with some keys changed; `__` stands for a dot."""
    model = BY_NAME[name]
    own = {f"{model.arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
    keys = {"general.architecture": model.arch} | tiny_families.metadata(model) | own
    return from_metadata(keys, Ledger("file"))


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [(2, {0, 2, 4}), (3, {0, 1, 3, 4}), (0, set(range(6))), (1, set()), ((1, 1, 0, 0, 0, 1), {0, 1, 5})],
)
def test_layers_with_a_window(pattern: Any, layers: set[int]) -> None:
    """All but each n-th (0: all; 1: none), or as a list says (llama.cpp's `set_swa_pattern`)."""
    local = config_of("gemma2", block_count=6, attention__sliding_window_pattern=pattern).local
    assert local is not None
    assert local.layers == layers
    assert local.window == 24


@pytest.mark.parametrize("pattern", [(1, 0), (1, 0, 2), "x", -1, 2.0])
def test_patterns_that_are_none(pattern: Any) -> None:
    with pytest.raises(InputError, match="sliding_window_pattern"):
        config_of("gemma2", attention__sliding_window_pattern=pattern)


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_scores_otherwise(name: str, layers: int) -> None:
    """By dim / heads; head_dim is 16 and 64/4 too, so the head is made wider."""
    wide = {"attention__key_length": 32, "attention__value_length": 32}
    assert config_of(name, **wide).attention.scale == pytest.approx(32**-0.5, rel=1e-15)
    assert config_of(name, **wide, block_count=layers).attention.scale == 16**-0.5


def test_only_the_large_exaone_has_windows() -> None:
    changes = {"attention__sliding_window": 24}
    assert config_of("exaone4", **changes).local is None
    large = config_of("exaone4", **changes, block_count=64)
    assert large.rope is None
    assert large.local is not None
    assert large.local.layers == {i for i in range(64) if i % 4 != 3}
    assert (large.local.window, large.local.rope) == (24, Rope(16))


def test_layers_that_do_not_rotate_read_an_angle_of_zero(tmp_path: Path) -> None:
    with prepare(tiny_families.make(tmp_path, BY_NAME["smollm3"]), tmp_path / "cache") as ready:
        fed = ready.feed("prefill_t32_c0")([1, 2], [3, 4], [])
        assert set(fed) == {"i00_x", "i01_cos", "i02_sin", "i03_mask", "i04_cos_local", "i05_sin_local"}
        assert (fed["i04_cos_local"] == 1).all()
        assert (fed["i05_sin_local"] == 0).all()
        assert ready.config.local is not None
        assert ready.config.local.layers == {3}


def test_long_conversations_have_other_divisors(tmp_path: Path) -> None:
    """Those of the whole conversation, not of the position: what is cached has to fit."""
    with prepare(tiny_families.make(tmp_path, BY_NAME["phi3_long"]), tmp_path / "cache") as ready:
        theta = 10000.0 ** (-np.arange(4) / 4)
        for context, divisors in ((128, tiny_families.SHORT), (129, tiny_families.LONG)):
            fed = ready.feed("prefill_t32_c0", context)([1], [3], [])
            expected = 1.25 * np.cos(3 * theta / np.array(divisors))
            np.testing.assert_allclose(fed["i01_cos"][0, 0, :, 0], expected, rtol=1e-12)


def test_learned_positions_end_where_they_end(tmp_path: Path) -> None:
    model = BY_NAME["gpt2"]
    with prepare(tiny_families.make(tmp_path, model), tmp_path / "cache") as ready:
        feed, tables = ready.feed("prefill_t32_c0"), tiny_families.tensors(model)
        x = feed([7], [511], [])["i00_x"][0, :, 0, 0]
        assert np.array_equal(x, tables["token_embd.weight"][7] + tables["position_embd.weight"][511])
        with pytest.raises(InputError, match="positions must lie in 0 … 511"):
            feed([7], [512], [])


def test_experts_in_several_groups_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight experts of 32 channels, three to a convolution of at most 96."""
    model = BY_NAME["qwen3moe"]
    path, ids = tiny_families.make(tmp_path, model), model.ids[:40]
    with prepare(path, tmp_path / "one") as ready:
        expected = Session(ready, exact=True).feed(ids)
    monkeypatch.setattr(layout, "MAX_TILE", 96)
    with prepare(path, tmp_path / "three") as ready:
        names = {name for name in ready.weights if name.startswith("l0_e")}
        assert names == {f"l0_e{g}_{role}" for g in range(3) for role in ("w_gate", "w_up", "w_down")}
        assert nmse(Session(ready, exact=True).feed(ids), expected) < 1e-20


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("mixtral", {"expert_used_count": 5}, "5 of 4 experts"),
        ("mixtral", {"expert_used_count": 0}, "0 of 4 experts"),
        ("qwen2", {"expert_count": 4}, "expert_count"),
        ("glm4", {"rope__dimension_sections": (8, 8, 0, 0)}, "rope.dimension_sections"),
        ("gemma3", {"rope__scaling__type": "yarn"}, "yarn"),
        ("gemma2", {"attention__key_length_swa": 8}, "key_length_swa"),
        ("gemma2", {"rope__dimension_count_swa": 8}, "dimension_count_swa"),
        ("gpt2", {"attention__max_alibi_bias": 8.0}, "max_alibi_bias"),
        ("qwen2", {"rope__scaling__type": "dynamic"}, "dynamic"),
        ("qwen2", {"rope__freq_base": 1.0}, "freq_base"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AnexError, match=words):
        config_of(name, **changes)


ANYTHING = st.recursive(
    st.one_of(
        st.booleans(), st.integers(-2, 2**40), st.floats(), st.text(max_size=3),
        st.lists(st.integers(0, 3), max_size=3).map(np.array),
        st.lists(st.floats(), max_size=3).map(np.array),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)  # fmt: skip


@given(
    st.sampled_from(FAMILIES), st.sampled_from(sorted({key for key, _ in tiny_families.MUTATIONS})), ANYTHING
)
def test_any_value_is_read_or_refused_in_one_line(model: Family, key: str, value: Any) -> None:
    keys = {"general.architecture": model.arch} | tiny_families.metadata(model)
    message = ""
    try:
        from_metadata(keys | {f"{model.arch}.{key}": value}, Ledger("file"))
    except AnexError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 400


# --- changed keys ---------------------------------------------------------------

CHANGES = [(name, key, value) for name in tiny_families.MUTATED for key, value in tiny_families.MUTATIONS]

FOLLOWED = {
    "attention.layer_norm": {"gemma2", "granite", "phi3_long", "gptneox", "cohere2", "gpt2", "stablelm"},
    "attention.scale": {"granite", "granitemoe"},
    "attention.sliding_window": {"gemma2", "gemma3", "olmo3", "cohere2"},
    "attn_logit_softcapping": {"gemma2"},
    "final_logit_softcapping": {"gemma2", "gemma3"},
    "embedding_scale": {"granite", "granitemoe"},
    "residual_scale": {"granite", "granitemoe"},
    "logit_scale": {"granite", "granitemoe", "command_r", "cohere2"},
    "use_parallel_residual": {"gptneox"},
    "expert_used_count": {"granitemoe", "qwen3moe", "mixtral"},
    "rope.dimension_count": {"gemma2", "gptneox", "stablelm"},
    "rope.freq_base": set(tiny_families.MUTATED),
    "rope.scal": set(tiny_families.MUTATED),
}
"""Beginning of keys → models that must not be refused for them, whether their result changes or not."""

REFUSED = {
    **{(name, "longrope"): "a name without the tensors it is about" for name in tiny_families.MUTATED},
    ("gemma3", "yarn"): "llama.cpp scales its local layers, which are not stretched, by YaRN's magnitude",
}
del REFUSED["phi3_long", "longrope"]

OTHERWISE = {("mixtral", "attention.sliding_window"): "the window of Mistral 7B, which llama.cpp leaves out"}


@pytest.fixture(scope="module")
def changed() -> Any:
    with np.load(GOLDENS / "mutations.npz") as stored:
        return dict(stored)


def must_be_followed(name: str, key: str, value: Any) -> bool:
    follow = any(key.startswith(start) and name in models for start, models in FOLLOWED.items())
    own = ("rms" in key) != BY_NAME[name].layer_norm
    return follow and (own or "layer_norm" not in key) and (name, value) not in REFUSED


@pytest.mark.parametrize(("name", "key", "value"), CHANGES, ids=[f"{n}-{k}={v}" for n, k, v in CHANGES])
def test_a_changed_key_changes_what_it_changes_in_llama_cpp(
    tmp_path: Path, changed: Any, name: str, key: str, value: Any
) -> None:
    """The same result as llama.cpp's with the same change, or refused."""
    model = BY_NAME[name]
    path = tiny_families.mutated(tmp_path, model, key, value)
    found = None
    accepted = [] if must_be_followed(name, key, value) else [AnexError]
    with suppress(*accepted), prepare(path, tmp_path / "cache") as ready:
        found = Session(ready, exact=True).feed(model.ids[: tiny_families.MUTATED_TOKENS])[-2:]
    if found is None:
        return  # refused
    # Programs hold sqrt(eps · dim) in fp16, which shows where eps is large.
    wanted = 1e-6 if "norm" in key else limit(model)
    far = nmse(found, changed[f"{name}/{key}={value}"])
    assert far > 1e-3 if (name, key) in OTHERWISE else far < wanted
