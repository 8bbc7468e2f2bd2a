"""Regenerates `tests/data/transformers/`: transformers' logits of tiny random checkpoints.

    python tools/goldens/transformers.py [MODEL_TYPE …]

Needs torch and transformers, which nothing else here does.  Of each model type there
is a base case, and cases with one thing of `config.json` changed: by hand (`EXTRA`),
and every key in turn to other values (`VALUES`).  transformers itself says which of
these change the logits; those are stored.  A change that it refuses is left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# This file's own folder comes first and would hide the package of the same name.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT / "tools" / "goldens"]
sys.path.insert(0, str(ROOT / "tests" / "models"))

import tiny_hf  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

Config = dict[str, Any]

SMALL: Config = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "factor": 4.0}

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0],
    "original_max_position_embeddings": 128,
}

ROPES: dict[str, Config] = {
    "linear": {"rope_parameters": {"rope_theta": 10000.0, **LINEAR}},
    "linear_old": {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama3": {"rope_parameters": {"rope_theta": 10000.0, **LLAMA3}},
    "llama3_old": {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "yarn": {"rope_parameters": {"rope_theta": 10000.0, **YARN}},
    "yarn_old": {"rope_theta": 10000.0, "rope_scaling": {**YARN, "type": "yarn"}},
    "yarn_betas": {"rope_parameters": {"rope_theta": 10000.0, **YARN, "beta_fast": 8, "beta_slow": 2}},
    "yarn_smooth": {"rope_parameters": {"rope_theta": 10000.0, **YARN, "truncate": False}},
    "yarn_magnitude": {"rope_parameters": {"rope_theta": 10000.0, **YARN, "attention_factor": 1.5}},
    "yarn_mscale": {"rope_parameters": {"rope_theta": 10000.0, **YARN, "mscale": 1.5, "mscale_all_dim": 0.5}},
    "dynamic": {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 4.0}},
    "theta": {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}},
    "theta_old": {"rope_theta": 500000.0},
}
"""Changes of the rotation; what names `rope_theta` takes the place of `rope_parameters`."""

ODD = {"head_dim": 32}
"""Heads that do not add up to the width of the model."""

BASES: dict[str, Config] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "smollm3": {"num_hidden_layers": 4},
    "phi3": {},
    "gemma": {"head_dim": 16},
    "gemma2": {
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 8.0,
        "final_logit_softcapping": 4.0,
    },
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "olmo2": {},
    "granite": {
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.125,
        "logits_scaling": 4.0,
    },
    "starcoder2": {"sliding_window": 16},
    "stablelm": {"partial_rotary_factor": 0.5},
    "cohere": {},
    "cohere2": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "glm4": {"head_dim": 16},
    "exaone4": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "ernie4_5": {"head_dim": 16},
    "seed_oss": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "intermediate_size": None,
        "num_key_value_heads": None,
    },
    "gpt_neox": {"num_key_value_heads": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "granitemoe": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.125,
        "logits_scaling": 4.0,
    },
}
"""Model type → its base config beside `SMALL`."""

WINDOWS: dict[str, Config] = {
    "window": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "window_all": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
    "layer_types": {
        "use_sliding_window": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}

SOME = {name: ROPES[name] for name in ("linear_old", "llama3", "yarn")}

EXTRA: dict[str, dict[str, Config]] = {
    "llama": {**ROPES, "long": {}, "mha": {"num_key_value_heads": None}, "wide": ODD},
    "mistral": {"long": {"sliding_window": 40}, "wide": {"head_dim": 64}, **SOME},
    "qwen2": {**WINDOWS, **SOME},
    "qwen3": {**WINDOWS, **SOME, "wide": ODD},
    "smollm3": {
        "every_2": {"no_rope_layers": None, "no_rope_layer_interval": 2},
        "list": {"no_rope_layers": [0, 1, 1, 0]},
        "window": {
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["full_attention", "full_attention", "full_attention", "sliding_attention"],
        },
        **SOME,
    },
    "phi3": {
        "window": {"sliding_window": 16},
        "partial": {
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
        },
        "partial_old": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        "short_longrope": {
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 128,
            "rope_parameters": {"rope_theta": 10000.0, **LONGROPE},
        },
        "short_longrope_magnitude": {
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 128,
            "rope_parameters": {"rope_theta": 10000.0, **LONGROPE, "factor": 4.0},
        },
        "long_longrope": {
            "original_max_position_embeddings": 128,
            "rope_parameters": {"rope_theta": 10000.0, **LONGROPE},
        },
    },
    "gemma": {"gelu": {"hidden_act": "gelu"}, "wide": ODD, **SOME},
    "gemma2": {"long": {"sliding_window": 40}, "wide": ODD},
    "gemma3_text": {
        "long": {"sliding_window": 40},
        "wide": ODD,
        "pattern": {"layer_types": None, "sliding_window_pattern": 2, "num_hidden_layers": 4},
        "ropes_old": {"rope_theta": 500000.0, "rope_local_base_freq": 5000.0},
        "linear_old": {
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "cap": {"final_logit_softcapping": 2.0},
    },
    "olmo2": SOME,
    "granite": SOME,
    "starcoder2": SOME,
    "stablelm": {
        "parallel": {"use_parallel_residual": True},
        "partial_old": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
    "cohere": SOME,
    "cohere2": {
        "pattern": {"layer_types": None, "sliding_window_pattern": 2, "num_hidden_layers": 4},
        **SOME,
    },
    "glm4": {"wide": ODD, "partial_old": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    "exaone4": {"all_full": {"sliding_window": None, "layer_types": ["full_attention"] * 2}, **SOME},
    "ernie4_5": {"wide": ODD, **SOME},
    "seed_oss": {"wide": ODD, **SOME},
    "hunyuan_v1_dense": {
        "alpha": {
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "alpha": 100.0, "factor": 1.0}
        },
        **SOME,
    },
    "gpt_neox": {
        "long": {},
        "ropes_old": {"rotary_emb_base": 5000, "rotary_pct": 0.5, "rope_parameters": None},
    },
    "mixtral": {"window": {"sliding_window": 16}, **SOME},
    "qwen3_moe": {"window": {"use_sliding_window": True, "sliding_window": 16}, **SOME},
    "granitemoe": SOME,
    "gpt2": {"long": {}, "inner": {"n_inner": 96}},
}
"""Model type → changes of its base config, by the name of the case."""

VALUES: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "gelu_pytorch_tanh", "relu"],
    "hidden_activation": ["gelu", "silu"],
    "activation_function": ["gelu", "silu"],
    "rms_norm_eps": [0.01],
    "layer_norm_eps": [0.01],
    "norm_epsilon": [0.01],
    "layer_norm_epsilon": [0.01],
    "tie_word_embeddings": [True, False],
    "num_hidden_layers": [1, 3],
    "num_attention_heads": [2],
    "num_key_value_heads": [1, 4],
    "intermediate_size": [64],
    "vocab_size": [80],
    "num_experts": [4],
    "num_local_experts": [3],
    "num_experts_per_tok": [1, 3],
    "moe_intermediate_size": [64],
    "mlp_only_layers": [[0]],
    "decoder_sparse_step": [2],
    "router_jitter_noise": [0.5],
    "max_position_embeddings": [256],
    "sliding_window": [8, None],
    "rope_theta": [5000.0],
    "layer_types": [["full_attention", "full_attention"], ["sliding_attention", "sliding_attention"]],
    "use_bidirectional_attention": [True],
    "pad_token_id": [3],
    "pretraining_tp": [2],
    "use_cache": [False],
    "initializer_range": [0.5],
    "attention_dropout": [0.5],
    "chunk_size_feed_forward": [4],
    "is_decoder": [True],
}
"""Values that a key of a config is changed to; a bool is also turned round, a float doubled."""


ABSENT = object()
"""In place of a value: the key is not there."""

DROPPED = (
    "head_dim", "hidden_act", "hidden_activation", "activation_function", "tie_word_embeddings",
    "num_key_value_heads", "rms_norm_eps", "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon",
    "rope_parameters", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
    "no_rope_layers", "no_rope_layer_interval", "attention_bias", "attention_out_bias", "mlp_bias",
    "use_bias", "use_qkv_bias", "use_parallel_residual", "use_qk_norm", "qk_layernorm", "logit_scale",
    "logits_scaling", "embedding_multiplier", "residual_multiplier", "attention_multiplier",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "norm_topk_prob",
    "original_max_position_embeddings", "scale_attn_weights", "n_inner", "architectures",
)  # fmt: skip
"""Keys whose absence is tried: configuration classes have defaults."""


def saved(model_type: str, changes: Mapping[str, Any]) -> Config:
    """What transformers writes for a config, without what it only keeps in memory."""
    config = transformers.AutoConfig.for_model(
        model_type,
        **{key: value for key, value in {**SMALL, **copy.deepcopy(changes)}.items() if value is not None},
    )
    content = json.loads(config.to_json_string(use_diff=False))
    content.pop("transformers_version", None)
    return {key: value for key, value in content.items() if not key.startswith("_")}


def changed(base: Config, change: Config) -> Config:
    """A base config with some keys changed; old forms of the rotation replace the new one."""
    kept = dict(base)
    if "rope_theta" in change:
        kept.pop("rope_parameters", None)
    return {key: value for key, value in (kept | change).items() if value is not ABSENT}


def logits(content: Config, long: bool) -> tuple[np.ndarray[Any, Any], dict[str, list[int]]]:
    """transformers' logits of the golden run, and the shapes of the tensors of the checkpoint."""
    config = transformers.CONFIG_MAPPING[content["model_type"]].from_dict(copy.deepcopy(content))
    kind = transformers.AutoModelForCausalLM
    plain = (
        {"experts_implementation": "eager"} if {"num_experts", "num_local_experts"} & content.keys() else {}
    )
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        kind.from_config(config).save_pretrained(folder)
        shapes = {
            name: list(values.shape) for name, values in load_file(folder / "model.safetensors").items()
        }
        save_file(tiny_hf.arrays(shapes), folder / "model.safetensors", {"format": "pt"})
        model, report = kind.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float64, output_loading_info=True, **plain
        )
        assert not any(report.values()), report
    ids = torch.from_numpy(tiny_hf.tokens(content["vocab_size"], long))[None]
    with torch.no_grad():
        out = model.eval()(ids, use_cache=False).logits[0].to(torch.float64).numpy()
    return out[list(tiny_hf.LONG_POSITIONS if long else tiny_hf.POSITIONS)], shapes


def alternatives(base: Config) -> Iterator[tuple[str, Config]]:
    """Every key of a base config in turn, changed."""
    for key, value in base.items():
        others = list(VALUES.get(key, []))
        if isinstance(value, bool):
            others.append(not value)
        elif isinstance(value, float) and key not in VALUES:
            others.append(value * 2 if value else 0.5)
        elif value is None and key.endswith("softcapping"):
            others.append(4.0)
        for number, other in enumerate(others):
            if other != value:
                yield f"{key}_{number}", {key: other}
        if key in DROPPED:
            yield f"{key}_dropped", {key: ABSENT}


def write(model_type: str, output: Path) -> None:
    base = saved(model_type, BASES[model_type])
    reference, base_shapes = logits(base, False)
    stored: dict[str, Any] = {"base": {"config": base, "without": [], "shapes": base_shapes, "changes": True}}
    arrays = {"base": reference}
    refused = []
    for name, change in [*EXTRA.get(model_type, {}).items(), *alternatives(base)]:
        content = changed(base, change)
        long = name.startswith("long")
        try:
            found, shapes = logits(content, long)
        except Exception as error:  # whatever transformers raises: there is no result to compare with
            refused.append(f"{name} ({type(error).__name__})")
            continue
        same = found.shape == reference.shape and not long
        distance = float(((found - reference) ** 2).sum() / (reference**2).sum()) if same else 1.0
        changes = distance > 1e-9
        own = {key: value for key, value in shapes.items() if base_shapes.get(key) != value}
        gone = {key: None for key in base_shapes if key not in shapes}
        stored[name] = {
            "config": {key: value for key, value in change.items() if value is not ABSENT},
            "without": sorted(base.keys() - content.keys()),
            "shapes": own | gone,
            "changes": changes,
        }
        if changes:
            arrays[name] = found
    output.mkdir(parents=True, exist_ok=True)
    document = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "cases": stored,
    }
    (output / f"{model_type}.json").write_text(json.dumps(document, indent=0) + "\n")
    np.savez_compressed(
        output / f"{model_type}.npz", **{name: values.astype(np.float32) for name, values in arrays.items()}
    )
    print(f"{model_type}: {len(stored)} cases, {len(arrays)} with logits; transformers refuses {refused}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_types", nargs="*", default=sorted(BASES))
    parser.add_argument("-o", "--output", type=Path, default=tiny_hf.DATA)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for model_type in args.model_types:
        write(model_type, args.output)


if __name__ == "__main__":
    main()
