"""`anex eval`: its numbers against the formulas in float64, on logits of `model.logits`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_text

from anex.cli import main
from anex.formats.gguf import GGUFWriter
from anex.runtime import Model, load_decoder

TEXT = "the rain in a train, and the other <|endoftext|> rain: é ü 漢字\n" * 6
SIZE = 64


def write(path: Path, scale: float, **keys: Any) -> Path:
    """A tiny model that puts BOS before a text; `scale` sharpens its logits."""
    tensors = tiny_text.tensors()
    tensors["output_norm.weight"] *= np.float32(scale)
    metadata = {**tiny_text.metadata(), "tokenizer.ggml.add_bos_token": True, **keys}
    with GGUFWriter(path, "llama") as writer:
        for key, value in metadata.items():
            writer.add_metadata(key, value)
        for name, array in tensors.items():
            writer.add_tensor(name, array)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    write(folder / "one.gguf", 0.25)
    write(folder / "two.gguf", 0.2)
    (folder / "text").write_text(TEXT + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def models(folder: Path) -> Iterator[list[Model]]:
    names = ("one.gguf", "two.gguf")
    loaded = [load_decoder(folder / name, numerics="fp32", cache_dir=folder / "cache") for name in names]
    yield loaded
    for model in loaded:
        model.close()


def log_p(model: Model, ids: Sequence[int]) -> Any:
    """Logarithms of the probabilities after each token but the last, float64."""
    logits = model.logits(ids)[:-1].astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def scored(model: Model, windows: Sequence[tuple[list[int], int]]) -> tuple[Any, list[int]]:
    """Those rows of `log_p` that predict scored tokens, and these tokens."""
    rows = [log_p(model, ids)[first - 1 :] for ids, first in windows]
    return np.concatenate(rows), [token for ids, first in windows for token in ids[first:]]


def halves(ids: list[int]) -> list[tuple[list[int], int]]:
    """llama.cpp, tools/perplexity: chunks, BOS in place of the first token, positions n/2 … n-2 count."""
    starts = range(0, len(ids) // SIZE * SIZE, SIZE)
    return [([tiny_text.END, *ids[start + 1 : start + SIZE]], SIZE // 2 + 1) for start in starts]


def sliding(ids: list[int], stride: int) -> list[tuple[list[int], int]]:
    """Each token but the first once, with as many before it as its window has."""
    found, done, start = [], 1, 0
    while done < len(ids):
        end = min(start + SIZE, len(ids))
        found.append((ids[start:end], done - start))
        done, start = end, start + stride
    return found


def evaluated(folder: Path, capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    common = ["-f", str(folder / "text"), "-c", str(SIZE), "--cache-dir", str(folder / "cache"), "--json"]
    assert main(["eval", str(folder / "one.gguf"), *common, *map(str, options)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    content: dict[str, Any] = json.loads(said.out)
    assert content["schema"] == "anex.eval/1"
    return content


@pytest.mark.parametrize("stride", [None, 24, SIZE - 1])
def test_perplexity(
    folder: Path, models: list[Model], stride: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    model = models[0]
    # The text of a control token in the file is text, which takes more tokens than one.
    ids = [tiny_text.END, *model.tokenizer.encode(TEXT, add_special=False, parse_special=False)]
    assert tiny_text.END not in ids[1:]
    windows = halves(ids) if stride is None else sliding(ids, stride)
    rows, tokens = scored(model, windows)
    losses = -rows[np.arange(len(tokens)), tokens]
    options = [] if stride is None else ["--stride", stride]
    content = evaluated(folder, capsys, "--numerics", "fp32", *options)
    assert content["tokens"] == len(ids)
    assert content["windows"] == len(windows) > 4
    assert content["scored_tokens"] == len(tokens)
    if stride is not None:
        assert tokens == ids[1:]
        assert content["scored_bytes"] == len(TEXT.encode())
    assert content["nats_per_token"] == pytest.approx(losses.mean(), rel=1e-6)
    assert content["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    error = math.exp(losses.mean()) * losses.std(ddof=1) / math.sqrt(len(losses))
    assert content["perplexity_error"] == pytest.approx(error, rel=1e-4)
    bits = losses.sum() / math.log(2) / content["scored_bytes"]
    assert content["bits_per_byte"] == pytest.approx(bits, rel=1e-6)
    assert content["reference"] is None


def test_a_reference(folder: Path, models: list[Model], capsys: pytest.CaptureFixture[str]) -> None:
    ids = models[0].tokenizer.encode(TEXT, parse_special=False)
    windows = halves(ids)[:3]
    (q, tokens), (p, _) = (scored(model, windows) for model in models)
    at = np.arange(len(tokens))
    kl = np.sum(np.exp(p) * (p - q), axis=1)
    top = p.argmax(axis=1)
    top_change = np.exp(q[at, top]) - np.exp(p[at, top])
    token_change = np.exp(q[at, tokens]) - np.exp(p[at, tokens])
    options = ("--numerics", "fp32", "--reference", folder / "two.gguf", "--chunks", 3)
    content = evaluated(folder, capsys, *options)
    found = content["reference"]
    assert content["windows"] == 3
    assert found["model"] == str(folder / "two.gguf")
    right = {
        "perplexity": math.exp(-p[at, tokens].mean()),
        "perplexity_ratio": math.exp(-q[at, tokens].mean() + p[at, tokens].mean()),
        "kl_mean": kl.mean(),
        "kl_median": np.median(kl),
        "kl_99": np.quantile(kl, 0.99),
        "kl_max": kl.max(),
        "top_1_agreement": np.mean(q.argmax(axis=1) == top),
        "top_probability_change_mean": top_change.mean(),
        "top_probability_change_rms": math.sqrt(np.mean(top_change**2)),
        "top_probability_change_max": np.abs(top_change).max(),
        "token_probability_change_mean": token_change.mean(),
        "token_probability_change_rms": math.sqrt(np.mean(token_change**2)),
        "token_probability_change_max": np.abs(token_change).max(),
    }
    assert kl.mean() > 1e-3  # the models do differ
    assert {key: found[key] for key in right} == pytest.approx(right, rel=1e-3, abs=1e-7)


def test_the_same_model_at_another_arithmetic(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(folder, capsys, "--reference-numerics", "fp32", "--chunks", 2)
    assert found["engine"]["numerics"] == "fp16"
    assert found["reference"]["engine"]["numerics"] == "fp32"
    assert 0 < found["reference"]["kl_mean"] < 1e-4
    same = evaluated(folder, capsys, "--reference-numerics", "fp16", "--chunks", 2)["reference"]
    assert (same["kl_max"], same["top_1_agreement"], same["perplexity_ratio"]) == (0.0, 1.0, 1.0)


def test_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-f", folder / "text", "-c", SIZE, "--chunks", 1, "--cache-dir", folder / "cache"]
    arguments += ["--reference-numerics", "fp32"]
    assert main(["eval", str(folder / "one.gguf"), *map(str, arguments)]) == 0
    text = capsys.readouterr().out
    assert "1 windows of 64 tokens, the second half of each scored · emulator, fp16" in text
    for label in ("perplexity", "bits per byte", "KL divergence, mean", "same most likely token"):
        assert label in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", "{d}/none"], "no such file"),
        (["-f", "{d}/empty"], "the text is empty"),
        (["-f", "{d}/one.gguf"], "not UTF-8"),
        (["-f", "{d}/text", "-c", "3"], "a window of 3 tokens (4 … 300 work)"),
        (["-f", "{d}/text", "-c", "301"], "a window of 301 tokens"),
        (["-f", "{d}/text", "-c", "64", "--stride", "64"], "a stride of 64 tokens"),
        (["-f", "{d}/text", "-c", "64", "--stride", "0"], "a stride of 0 tokens"),
        (["-f", "{d}/text", "--chunks", "0"], "0 windows"),
        (["-f", "{d}/short"], "tokens, a window 300 (a longer text, or a smaller -c)"),
        (["-f", "{d}/text", "--reference", "{d}/none.gguf"], "no such file"),
        (
            ["-f", "{d}/text", "--reference", "{d}/spaced.gguf"],
            "its tokenizer reads the text as other tokens",
        ),
        (["-f", "{d}/text", "--reference", "{d}/brief.gguf"], "a window of 300 tokens (4 … 40 work)"),
    ],
)
def test_requests_that_cannot_be_met(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").write_text("")
    (folder / "short").write_text("the rain")
    write(folder / "spaced.gguf", 0.25, **{"tokenizer.ggml.add_bos_token": False})
    write(folder / "brief.gguf", 0.25, **{"llama.context_length": 40})
    filled = [text.replace("{d}", str(folder)) for text in arguments]
    model = [str(folder / "one.gguf"), "--cache-dir", str(folder / "cache")]
    assert main(["eval", *model, *filled]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_text_is_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["eval", str(folder / "one.gguf")])
    assert exit.value.code == 2
    assert "-f/--file" in capsys.readouterr().err
