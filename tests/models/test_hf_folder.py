"""Folders and configs of transformers checkpoints: forms that mean the same, and what is refused by name."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_hf
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tiny_hf import Case

from anex.errors import AnexError, InputError, UnsupportedError
from anex.mil import BlobFile
from anex.models import Ledger, Prepared, load, prepare
from anex.models.hf_fields import ConfigReader, model_types, table
from anex.models.hf_layers import layers
from anex.models.hf_rope import PARAMETERS
from anex.models.roles import SHAPES

BASE = {model_type: tiny_hf.cases(model_type)[0] for model_type in model_types()}
LLAMA = BASE["llama"]
MISSING = object()


def with_config(case: Case, **changes: Any) -> Case:
    config = {key: value for key, value in {**case.config, **changes}.items() if value is not MISSING}
    return replace(case, config=config)


def numbers(model: Prepared) -> dict[str, Any]:
    with BlobFile(model.blob_path) as blob:
        return {name: np.array(blob.array(literal)) for name, literal in model.weights.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# --- forms that mean the same -----------------------------------------------------


@pytest.mark.parametrize(("dtype", "shards"), [("BF16", 1), ("BF16", 3), ("F16", 2)])
def test_types_and_shards(tmp_path: Path, dtype: str, shards: int) -> None:
    """The numbers of the file, rounded to its type: what fp16 holds of them is exact here."""
    with prepare(
        tiny_hf.write(tmp_path / "m", LLAMA, dtype=dtype, shards=shards), tmp_path / "cache"
    ) as ready:
        found = numbers(ready)
    stored = tiny_hf.array("model.layers.1.self_attn.q_proj.weight", [64, 64])
    stored = stored.astype(tiny_hf.DTYPES[dtype]).astype(np.float32)
    assert np.array_equal(found["l1_wq"][:, :, 0, 0], (stored / 4).astype(np.float16))
    gamma = tiny_hf.array("model.norm.weight", [64]).astype(tiny_hf.DTYPES[dtype]).astype(np.float64)
    assert np.array_equal(found["norm"].reshape(-1), (gamma * 8).astype(np.float16))


def test_a_path_may_name_the_folder_its_weights_or_its_config(tmp_path: Path) -> None:
    folder = tiny_hf.write(tmp_path / "m", LLAMA)
    configs = {load(path).config for path in (folder, folder / "model.safetensors", folder / "config.json")}
    assert len(configs) == 1


def test_a_checkpoint_without_a_head_has_no_prefix(tmp_path: Path) -> None:
    for model_type, prefix in (("llama", "model."), ("gpt2", "transformer.")):
        tied = with_config(BASE[model_type], tie_word_embeddings=True)
        shapes = {name: shape for name, shape in tied.shapes.items() if name != "lm_head.weight"}
        folder = tiny_hf.write(tmp_path / model_type, replace(tied, shapes=shapes))
        with prepare(folder, tmp_path / "cache") as ready:
            expected = numbers(ready)
        tensors = load_file(folder / "model.safetensors")
        save_file({name.removeprefix(prefix): a for name, a in tensors.items()}, folder / "model.safetensors")
        with prepare(folder, tmp_path / "cache") as ready:
            assert same(numbers(ready), expected)


def test_a_tied_head_that_is_stored_has_to_be_the_table(tmp_path: Path) -> None:
    folder = tiny_hf.write(tmp_path, with_config(LLAMA, tie_word_embeddings=True))
    with pytest.raises(InputError, match=r"'lm_head.weight' is not 'model.embed_tokens.weight'"):
        load(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, folder / "model.safetensors"
    )
    with load(folder) as model:
        assert model.config.tied
        accounts = {account.name: account.status for account in model.ledger.accounts}
        assert accounts["lm_head.weight"] == "neutral"


def test_another_config_is_another_entry_of_the_cache(tmp_path: Path) -> None:
    granite = BASE["granite"]
    found = []
    for multiplier in (0.125, 0.25):
        folder = tiny_hf.write(tmp_path / "m", with_config(granite, attention_multiplier=multiplier))
        with prepare(folder, tmp_path / "cache") as ready:
            found.append(numbers(ready)["l0_wq"])
    assert np.allclose(found[0] * 2, found[1], rtol=0, atol=2**-23)
    assert np.abs(found[1]).max() > 0.1


@pytest.mark.parametrize("model_type", model_types())
def test_every_key_and_tensor_has_an_account(tmp_path: Path, model_type: str) -> None:
    case = BASE[model_type]
    with load(tiny_hf.write(tmp_path, case)) as model:
        accounts = {(account.what, account.name) for account in model.ledger.accounts}
    assert {("key", key) for key in case.config} <= accounts
    assert {("tensor", tensor) for tensor in case.shapes} <= accounts


@pytest.mark.parametrize("model_type", model_types())
def test_tables_name_what_there_is(model_type: str) -> None:
    found = table(model_type)
    named = [*found.get("names", {}), *found.get("always", []), *found.get("transforms", {})]
    named += [role for roles in found.get("switches", {}).values() for role in roles]
    named += [role for roles in found.get("fused", {}).values() for role in roles]
    assert set(named) <= SHAPES.keys()
    assert set(found.get("defaults", {})) <= {
        *found["keys"].values(),
        *found.get("switches", {}),
        "window_pattern",  # Gemma 2 has one, and no key for it
    }


# --- what is refused --------------------------------------------------------------

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

REFUSALS: list[tuple[dict[str, Any], type[AnexError], str]] = [
    ({"model_type": "mamba"}, UnsupportedError, "model_type 'mamba'"),
    ({"model_type": MISSING}, InputError, "'model_type' is missing"),
    ({"model_type": 3}, InputError, "'model_type' is missing or no text"),
    ({"architectures": ["LlamaForSequenceClassification"]}, UnsupportedError, "architectures"),
    ({"hidden_act": "mish"}, UnsupportedError, "activation 'mish'"),
    ({"hidden_act": 1}, InputError, "1 is no str"),
    ({"hidden_size": MISSING}, InputError, "the key 'hidden_size' is missing"),
    ({"hidden_size": "64"}, InputError, "'64' is no int"),
    ({"num_hidden_layers": True}, InputError, "true is no int"),
    ({"num_hidden_layers": 0}, InputError, "0 is not between 1 and 512"),
    ({"intermediate_size": None}, InputError, "null is no int"),
    ({"rms_norm_eps": 1e-12}, UnsupportedError, "'rms_norm_eps' 1e-12 with 64 channels"),
    ({"num_attention_heads": 3}, InputError, "3 heads cannot share 2 key heads"),
    ({"head_dim": 15}, InputError, "a head of 15 channels"),
    ({"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 6}, InputError, "cannot be split"),
    ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedError, "'quantization_config' 'gptq'"),
    ({"quantization_config": {}}, UnsupportedError, "'quantization_config' = {}"),
    ({"use_mamba": False}, UnsupportedError, "'use_mamba'"),
    ({"is_encoder_decoder": True}, UnsupportedError, "'is_encoder_decoder' = true"),
    ({"partial_rotary_factor": 0.5}, UnsupportedError, "'partial_rotary_factor' = 0.5"),
    ({"attention_bias": "no"}, InputError, "'no' is no bool"),
    ({"attention_bias": True}, InputError, "q_proj.bias' \\[64\\] is missing"),
    ({"tie_word_embeddings": 1}, InputError, "1 is no bool"),
    ({"vocab_size": 65}, InputError, "has shape \\[64, 64\\], expected \\[65, 64\\]"),
    ({"rope_parameters": {"rope_type": "su"}}, UnsupportedError, "rope_type 'su'"),
    ({"rope_parameters": {"rope_type": 7}}, InputError, "names no kind"),
    ({"rope_parameters": {"rope_type": "linear", "type": "yarn"}}, InputError, "names no kind"),
    ({"rope_parameters": {"rope_type": "linear"}}, InputError, "'factor' is missing"),
    ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, InputError, "'2' is no float"),
    ({"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, UnsupportedError, "mrope_section'"),
    ({"rope_parameters": LLAMA3 | {"low_freq_factor": 9.0}}, InputError, "low_freq_factor 9 is not below"),
    ({"rope_parameters": LLAMA3 | {"high_freq_factor": None}}, InputError, "null is no float|is missing"),
    ({"rope_parameters": {"rope_theta": 1e4}, "rope_theta": 2e4}, InputError, "contradicts"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, InputError, "contradicts 'rope_parameters'"),
    ({"rope_parameters": {"full_attention": {}}}, UnsupportedError, "'rope_parameters'"),
    ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, InputError,
     "is no list of 8 divisors"),
    ({"rope_parameters": [1]}, InputError, "is no dict"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}}, InputError,
     "no frequencies"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0}}, InputError,
     "no frequencies"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "kind", "named"), REFUSALS, ids=[named for _, _, named in REFUSALS])
def test_bad_configs_are_named(tmp_path: Path, changes: dict[str, Any], kind: Any, named: str) -> None:
    with pytest.raises(kind, match=named) as caught:
        load(tiny_hf.write(tmp_path, with_config(LLAMA, **changes)))
    assert caught.value.exit_code == 2
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2", {"layer_types": ["full_attention"]}, "has 1 entries for 2 layers"),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "a layer of type 'linear_attention'"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "without a window"),
    ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}, "is no list of 0 and 1"),
    ("mixtral", {"num_experts_per_tok": 5}, "5 of 4 experts"),
    ("mixtral", {"num_local_experts": 3}, "tensor 'model.layers.0.block_sparse_moe"),
    ("qwen3_moe", {"num_experts": 5, "num_local_experts": 6}, "differ"),
    ("stablelm", {"use_parallel_residual": True}, "post_attention_layernorm"),
    ("gemma", {"hidden_activation": "relu"}, "'hidden_activation' = 'relu'"),
]


@pytest.mark.parametrize(("model_type", "changes", "named"), OTHERS)
def test_bad_configs_of_other_types(
    tmp_path: Path, model_type: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(AnexError, match=named):
        load(tiny_hf.write(tmp_path, with_config(BASE[model_type], **changes)))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "named"), [(no_config, "config.json: no such file"), (no_shard, "shard"), (no_json, "not JSON")]
)
def test_folders_with_something_missing(tmp_path: Path, spoil: Callable[[Path], None], named: str) -> None:
    folder = tiny_hf.write(tmp_path, LLAMA, shards=2)
    spoil(folder)
    with pytest.raises(InputError, match=named):
        load(folder)


def test_a_tensor_that_the_config_does_not_speak_of(tmp_path: Path) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": [64]}
    with pytest.raises(UnsupportedError, match=r"tensor 'model.layers.0.self_attn.q_proj.bias'"):
        load(tiny_hf.write(tmp_path, replace(LLAMA, shapes={**LLAMA.shapes, **bias})))


def test_computed_frequencies_are_no_weights(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": [8]}
    load(tiny_hf.write(tmp_path, replace(LLAMA, shapes={**LLAMA.shapes, **extra}))).close()


SCALARS = [
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
]
NAMES = st.sampled_from(["rope_type", "type", "full_attention", "sliding_attention", "x", *PARAMETERS])
JSON = st.recursive(
    st.one_of(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_value_gives_a_config_or_one_error(data: st.DataObject) -> None:
    case = BASE[data.draw(st.sampled_from(sorted(BASE)))]
    keys = data.draw(st.lists(st.sampled_from(sorted(case.config)), min_size=1, max_size=3, unique=True))
    config = {**case.config, **{key: data.draw(JSON) for key in keys}}
    ledger = Ledger("config.json")
    try:
        read = ConfigReader(json.loads(json.dumps(config)), ledger)
        for field in read.fields:
            read.get(field)
        layers(read, read.get("n_layers"), 16, read.get("context_length"))
        read.switched()
        read.close()
    except AnexError as error:
        message = str(error)
    else:
        message = ledger.where
    assert "config.json" in message


SIZED = """
import resource, sys
from anex.models import load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with load(sys.argv[1]) as model:
    model.file.fingerprint()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown * (1 if sys.platform == "darwin" else 1024))
"""


def test_a_checkpoint_of_8b_parameters_is_opened_without_reading_it(tmp_path: Path) -> None:
    """16 GB that are holes on the disk: the tensors' numbers are not needed to know what they are."""
    config = {
        **LLAMA.config,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    widths = {
        "self_attn.q_proj": [4096, 4096],
        "self_attn.k_proj": [1024, 4096],
        "self_attn.v_proj": [1024, 4096],
        "self_attn.o_proj": [4096, 4096],
        "mlp.gate_proj": [14336, 4096],
        "mlp.up_proj": [14336, 4096],
        "mlp.down_proj": [4096, 14336],
        "input_layernorm": [4096],
        "post_attention_layernorm": [4096],
    }
    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(32) for name, shape in widths.items()}
    shapes |= {"model.embed_tokens.weight": [128256, 4096], "lm_head.weight": [128256, 4096]}
    shapes |= {"model.norm.weight": [4096]}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    assert end > 16e9
    command = [sys.executable, "-c", SIZED, str(tmp_path)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 400e6
