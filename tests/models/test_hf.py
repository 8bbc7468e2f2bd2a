"""Checkpoints of transformers against its own logits, for each model type and each change of its config.

The programs are run in numpy (`interpreter.py`), in float64.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_hf
from interpreter import Session
from reference import nmse
from tiny_hf import Case

from anex.engines import engine
from anex.errors import AnexError, UnsupportedError
from anex.models import load, prepare
from anex.models.hf_fields import model_types
from anex.runtime import Functions
from anex.runtime import Session as Conversation

CASES = [case for model_type in model_types() for case in tiny_hf.cases(model_type)]
BY_ID = {case.id: case for case in CASES}

REFUSED = {
    "gemma3_text-use_bidirectional_attention_0": "'use_bidirectional_attention'",
    "gemma3_text-use_bidirectional_attention_1": "'use_bidirectional_attention'",
    "gemma2-use_bidirectional_attention_0": "'use_bidirectional_attention'",
    "gemma-use_bidirectional_attention_0": "'use_bidirectional_attention'",
    "gpt2-scale_attn_by_inverse_layer_idx_0": "'scale_attn_by_inverse_layer_idx'",
    "gpt2-scale_attn_weights_0": "'scale_attn_weights'",
    "qwen3_moe-decoder_sparse_step_0": "'decoder_sparse_step'",
    "qwen3_moe-mlp_only_layers_0": "'mlp_only_layers'",
    "stablelm-qk_layernorm_0": "'qk_layernorm'",
}
"""Changes that anex does not compute, and what the refusal names."""

COMPUTED = [case for case in CASES if case.changes and case.id not in REFUSED]


def logits(folder: Path, case: Case) -> Any:
    """Ours at the stored positions: a prompt by prefill, the last three tokens by decode."""
    with prepare(tiny_hf.write(folder / case.id, case), folder / "cache") as ready:
        session, prompt = Session(ready, exact=True), len(case.ids) - 3
        rows = [session.feed(case.ids[:prompt]), *(session.step(int(i))[None] for i in case.ids[prompt:])]
    return np.concatenate(rows)[case.positions]


@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: case.id)
def test_what_changes_transformers_logits_changes_ours_alike(tmp_path: Path, case: Case) -> None:
    """Weights are exact but where sqrt of a width or 1/sqrt of a head's is no power of two."""
    expected, base = case.logits, BY_ID[f"{case.model_type}-base"].logits
    distance = nmse(logits(tmp_path, case), expected)
    assert distance < 1e-6
    if case.name != "base" and base.shape == expected.shape:
        assert distance < nmse(base, expected) / 4


@pytest.mark.parametrize("case", [case for case in CASES if case.id in REFUSED], ids=lambda case: case.id)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, case: Case) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[case.id]):
        load(tiny_hf.write(tmp_path, case))


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not case.changes and case.id not in REFUSED],
    ids=lambda case: case.id,
)
def test_what_changes_nothing_there_changes_nothing_here(tmp_path: Path, case: Case) -> None:
    base = BY_ID[f"{case.model_type}-base"]
    with load(tiny_hf.write(tmp_path / "base", base)) as plain:
        expected = plain.config
    try:
        with load(tiny_hf.write(tmp_path / "case", case)) as changed:
            config = changed.config
    except AnexError:
        return
    if replace(config, context_length=expected.context_length) != expected:
        assert nmse(logits(tmp_path, case), base.logits) < 1e-6


@pytest.mark.parametrize("name", ["mistral-long", "gemma3_text-long", "phi3-long_longrope", "qwen3_moe-base"])
def test_the_emulator_gives_the_same(tmp_path: Path, name: str) -> None:
    """File, programs, blob, emulator, cache: past a window and past a rung."""
    case = BY_ID[name]
    chosen = engine("emulator", numerics="fp32")
    with (
        prepare(tiny_hf.write(tmp_path, case), tmp_path / "cache") as ready,
        Functions(ready, chosen) as functions,
    ):
        conversation, prompt = Conversation(functions), len(case.ids) - 15
        rows = [conversation.logits([int(i) for i in case.ids[:prompt]])]
        rows += [conversation.decode(int(i))[None] for i in case.ids[prompt:]]
    assert nmse(np.concatenate(rows)[case.positions], case.logits) < 1e-6
