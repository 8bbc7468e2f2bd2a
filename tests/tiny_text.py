"""A tiny random llama model with a tokenizer, as a GGUF file: enough to run every command on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anex.formats.gguf import GGUFWriter

CONTEXT = 300
DIM, HEADS, KV_HEADS, FFN, LAYERS = 64, 4, 2, 96, 2
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "r e", "Ġ a")
SPECIAL = ("<|endoftext|>", "<|user|>")


def _alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes with (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


TOKENS = (*_alphabet(), *(merge.replace(" ", "") for merge in MERGES), *SPECIAL)
VOCABULARY = len(TOKENS)
END = TOKENS.index("<|endoftext|>")


def metadata() -> dict[str, Any]:
    """Every key but `general.architecture`."""
    llama = {
        "context_length": CONTEXT,
        "embedding_length": DIM,
        "block_count": LAYERS,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    ggml = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": list(TOKENS),
        "token_type": [3 if token in SPECIAL else 1 for token in TOKENS],
        "merges": list(MERGES),
        "bos_token_id": END,
        "eos_token_id": END,
        "add_bos_token": False,
    }
    return {
        "general.name": "tiny",
        **{f"llama.{key}": value for key, value in llama.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in ggml.items()},
    }


def tensors() -> dict[str, Any]:
    """Every tensor, F32 and random."""
    rng = np.random.default_rng(7)
    kv = DIM // HEADS * KV_HEADS

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Any:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    layer = {
        "attn_q": (DIM, DIM), "attn_k": (kv, DIM), "attn_v": (kv, DIM), "attn_output": (DIM, DIM),
        "ffn_gate": (FFN, DIM), "ffn_up": (FFN, DIM), "ffn_down": (DIM, FFN),
    }  # fmt: skip
    out = {"token_embd.weight": matrix(VOCABULARY, DIM, 4.0), "output_norm.weight": np.ones(DIM, np.float32)}
    for i in range(LAYERS):
        out |= {f"blk.{i}.{name}.weight": matrix(*shape) for name, shape in layer.items()}
        out |= {f"blk.{i}.{name}.weight": np.ones(DIM, np.float32) for name in ("attn_norm", "ffn_norm")}
    return out


def write(path: Path, keys: Mapping[str, Any] | None = None, arch: str = "llama") -> Path:
    """Write the model, or one with other keys."""
    with GGUFWriter(path, arch) as writer:
        for key, value in (metadata() if keys is None else keys).items():
            writer.add_metadata(key, value)
        for name, array in tensors().items():
            writer.add_tensor(name, array)
    return path
