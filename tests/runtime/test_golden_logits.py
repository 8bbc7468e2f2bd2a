"""The whole road against llama.cpp: file, program, blob, emulator, cache across a rung.

The ports carry fp32 at level `fp32`, so nothing but constants of the program is
rounded to fp16 and llama.cpp's stored logits must come out again.
"""

from pathlib import Path

import numpy as np
import pytest
import tiny_families
import tiny_llama
from tiny_families import FAMILIES, Family
from tiny_llama import TINY, Tiny

from anex.engines import engine
from anex.models import prepare
from anex.runtime import Functions, Session

GOLDENS = Path(__file__).parents[1] / "data" / "llama"


def run(folder: Path, model: Tiny | Family, numerics: str, native: bool = True) -> np.ndarray:
    """Logits at the stored positions: a prompt by prefill, then one token at a time."""
    chosen = engine("emulator", numerics=numerics, native=native)
    make = tiny_llama.make if isinstance(model, Tiny) else tiny_families.make
    with (
        prepare(make(folder, model), folder / "cache") as ready,
        Functions(ready, chosen) as functions,
    ):
        session = Session(functions)
        rows = [session.logits([int(i) for i in model.ids[: tiny_llama.PROMPT]])]
        rows += [session.decode(int(i))[None] for i in model.ids[tiny_llama.PROMPT :]]
    return np.concatenate(rows)[list(tiny_llama.POSITIONS)]


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(((found - wanted) ** 2).sum() / (wanted.astype(np.float64) ** 2).sum())


PEAKED = {"head_80": 1e-9, "head_128": 1e-8}
"""Scores of ±50 enlarge float32's error, llama.cpp's own among it."""


@pytest.mark.parametrize("model", TINY, ids=[m.name for m in TINY])
def test_fp32_level_equals_llama_cpp(tmp_path, model):
    wanted = np.load(GOLDENS / f"{model.name}.npz")["logits"]
    assert nmse(run(tmp_path, model, "fp32"), wanted) < PEAKED.get(model.name, 1e-10)


@pytest.mark.parametrize("name", ["gqa_tied", "llama3"])
def test_fp16_level_differs_by_roundings_only(tmp_path, name):
    """2**-11 squared is 2e-7 for one rounding; a layer has some thirty in a row."""
    (model,) = (m for m in TINY if m.name == name)
    wanted = np.load(GOLDENS / f"{name}.npz")["logits"]
    assert 1e-9 < nmse(run(tmp_path, model, "fp16"), wanted) < 1e-4


def test_without_the_native_matmul(tmp_path):
    wanted = np.load(GOLDENS / "biases.npz")["logits"]
    (model,) = (m for m in TINY if m.name == "biases")
    assert nmse(run(tmp_path, model, "fp32", native=False), wanted) < 1e-10


@pytest.mark.parametrize("name", ["gemma3", "granitemoe", "phi3_long", "gpt2", "stablelm_parallel"])
def test_families_at_fp32_level(tmp_path, name):
    """Between them: two masks and rotations, caps, experts, learned positions, LayerNorm, parallel blocks."""
    (model,) = (m for m in FAMILIES if m.name == name)
    wanted = np.load(GOLDENS.parent / "families" / f"{name}.npz")["logits"]
    assert nmse(run(tmp_path, model, "fp32"), wanted) < (1e-6 if model.gelu else 1e-10)


@pytest.mark.parametrize("name", ["gemma2", "qwen3moe"])
def test_families_at_fp16_level(tmp_path, name):
    (model,) = (m for m in FAMILIES if m.name == name)
    wanted = np.load(GOLDENS.parent / "families" / f"{name}.npz")["logits"]
    assert 1e-9 < nmse(run(tmp_path, model, "fp16"), wanted) < 1e-4
