"""The edges of a session; what it computes is compared in test_golden_logits.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from anex.errors import EvaluateError, InputError
from anex.runtime import Session, load


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


def test_a_closed_model_computes_nothing(tiny_gguf: Path, tmp_path: Path) -> None:
    model = load(tiny_gguf, context=32, cache_dir=tmp_path)
    other = Session(model.functions)
    assert model.logits([1, 2]).shape == (2, model.config.vocab_size)
    other.prefill([1])
    model.close()
    model.close()
    for use in (
        lambda: model.logits([1, 2]),
        lambda: model.generate([1]),
        lambda: model.chat(),
        lambda: model.session.prefill([1]),
        lambda: model.session.compile(1),
        lambda: other.decode(1),
        lambda: model.functions.compile(["head"]),
        lambda: model.functions.bind("head", {}),
    ):
        with pytest.raises(EvaluateError, match="the model is closed"):
            use()
