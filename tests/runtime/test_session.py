"""The session against llama.cpp: prompts in chunks, then token by token across a rung."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_llama

from anex.errors import InputError
from anex.runtime import load

DATA = Path(__file__).parent.parent / "data/llama"
MODELS = {model.name: model for model in tiny_llama.TINY}


@pytest.mark.parametrize(
    ("name", "numerics", "limit"), [("gqa_tied", "fp32", 1e-6), ("biases", "fp16", 1e-4)]
)
def test_logits_are_those_of_llama_cpp(name: str, numerics: str, limit: float, tmp_path: Path) -> None:
    """NMSE over the golden positions (llama.cpp's own float32 RoPE is 2e-7 away from exact arithmetic)."""
    model = MODELS[name]
    path = tiny_llama.make(tmp_path, model)
    golden = np.load(DATA / f"{name}.npz")["logits"]
    prompt, rest = model.ids[: tiny_llama.PROMPT].tolist(), model.ids[tiny_llama.PROMPT :].tolist()
    with load(path, numerics=numerics, cache_dir=tmp_path / "cache", text=False) as loaded:
        session = loaded.session
        logits = np.concatenate([session.logits(prompt), *[session.decode(token)[None] for token in rest]])
        assert session.past == tiny_llama.TOKENS
    error = logits[list(tiny_llama.POSITIONS)].astype(np.float64) - golden
    assert (error**2).sum() / (golden.astype(np.float64) ** 2).sum() < limit


def test_the_last_token_of_the_context(tiny_gguf: Path, tmp_path: Path) -> None:
    with load(tiny_gguf, context=32, cache_dir=tmp_path) as model:
        session = model.session
        session.prefill([1] * 31)
        session.decode(2)
        assert session.past == 32
        with pytest.raises(InputError, match="context of 32 tokens is full"):
            session.decode(3)
        session.reset()
        with pytest.raises(InputError, match="33 tokens do not fit a context of 32"):
            session.prefill([1] * 33)
        assert session.prefill([1]).shape == (model.config.vocab_size,)
