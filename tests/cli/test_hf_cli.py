"""`anex info` and `anex run` on a model folder of transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_hf
import tiny_text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import anex
from anex.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with the byte-level tokenizer of `tiny_text`."""
    case = tiny_hf.cases("llama")[0]
    count = tiny_text.VOCABULARY
    shapes = {name: [count, *shape[1:]] if shape[0] == case.config["vocab_size"] and "proj" not in name
              and "norm" not in name else shape for name, shape in case.shapes.items()}  # fmt: skip
    config = {**case.config, "vocab_size": count, "eos_token_id": tiny_text.END, "bos_token_id": None}
    path = tiny_hf.write(
        tmp_path_factory.mktemp("hf") / "Tiny-1.5", replace(case, config=config, shapes=shapes)
    )
    vocabulary = {token: index for index, token in enumerate(tiny_text.TOKENS)}
    merges = [(one, two) for one, two in (merge.split(" ") for merge in tiny_text.MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(tiny_text.SPECIAL))
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(folder), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "anex.info/1"
    assert content["name"] == "Tiny-1.5"
    assert content["config"]["family"] == "llama"
    assert content["config"]["rope"]["theta"] == 10000.0
    assert content["tokenizer"]["vocabulary"] == tiny_text.VOCABULARY
    assert content["tokenizer"]["end_tokens"] == [tiny_text.END]
    assert {entry["name"]: entry["status"] for entry in content["ledger"]}["use_cache"] == "neutral"
    assert content["parameters"] == sum(tensor["bytes"] for tensor in content["tensors"]) // 4
    assert main(["info", str(folder)]) == 0
    assert "hidden_size" in capsys.readouterr().out


def test_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedy tokens are those of the largest logits, computed for the whole text at once."""
    command = [
        "run",
        str(folder),
        "-p",
        "the rain",
        "-n",
        "5",
        "--temp",
        "0",
        "--json",
        "--cache-dir",
        str(tmp_path),
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)["tokens"]
    with anex.load(folder, cache_dir=tmp_path) as model:
        ids = model.tokenizer.encode("the rain")
        logits = model.logits([*ids, *found])
    assert found
    assert found == [int(i) for i in np.argmax(logits[len(ids) - 1 : -1], axis=1)]


def test_a_folder_that_is_not_known_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mamba2"}))
    for command in (["info", str(tmp_path)], ["run", str(tmp_path), "-p", "a"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "model_type 'mamba2'" in error
        assert "llama" in error
        assert error.count("\n") == 1
