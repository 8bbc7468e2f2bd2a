"""`anex embed`: what it prints, where the texts come from, what it refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny_encoder

import anex
from anex.cli import main

TEXTS = ["the rain", "in spain", "a dog!"]

Embed = Callable[..., str]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder.write_sentence(tmp_path_factory.mktemp("models") / "sentence")


@pytest.fixture(scope="module")
def vectors(model: Path, cache: Path) -> np.ndarray:
    with anex.load_encoder(model, cache_dir=cache) as encoder:
        return encoder.embed(TEXTS)


@pytest.fixture
def embed(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Embed:
    """Runs `anex embed MODEL ARGUMENTS`; returns what it prints."""

    def run(*arguments: object, stdin: bytes = b"") -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        options = ["--cache-dir", cache, *arguments]
        assert main(["embed", str(model), *map(str, options)]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return run


def refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[object]) -> str:
    assert main(["embed", *map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("anex: error: ")
    assert said.err.count("\n") == 1
    return said.err


def rows(text: str) -> np.ndarray:
    return np.array([[float(number) for number in line.split()] for line in text.splitlines()], np.float32)


def test_numbers_are_the_librarys(embed: Embed, vectors: np.ndarray, tmp_path: Path) -> None:
    """A line for each text, from the command line, a file and standard input, with every digit."""
    (tmp_path / "texts").write_bytes("\r\n".join(TEXTS).encode() + b"\r\n")
    prompts = [part for text in TEXTS for part in ("-p", text)]
    for printed in (
        embed(*prompts),
        embed("-f", tmp_path / "texts"),
        embed("-f", "-", stdin="\n".join(TEXTS).encode()),
        embed(stdin="\n".join(TEXTS).encode() + b"\n"),
    ):
        assert np.array_equal(rows(printed), vectors)


def test_the_document(embed: Embed, vectors: np.ndarray, model: Path) -> None:
    content = json.loads(embed("--json", "-p", TEXTS[0], "-p", TEXTS[2]))
    assert content["schema"] == "anex.embed/1"
    assert content["model"] == str(model)
    assert (content["pooling"], content["normalized"], content["dimension"]) == ("mean", True, 64)
    assert content["engine"]["engine"] == "emulator"
    assert [(e["text"], e["tokens"]) for e in content["embeddings"]] == [("the rain", 4), ("a dog!", 5)]
    found = np.array([e["embedding"] for e in content["embeddings"]], np.float32)
    assert np.array_equal(found, vectors[[0, 2]])


def test_pooling_and_length(embed: Embed, vectors: np.ndarray) -> None:
    plain = rows(embed("-p", TEXTS[0], "--no-normalize"))
    np.testing.assert_allclose(plain / np.linalg.norm(plain), vectors[:1], rtol=1e-5, atol=1e-7)
    assert abs(np.linalg.norm(plain) - 1) > 1e-3
    states = rows(embed("-p", TEXTS[0], "--pooling", "none"))
    assert states.shape == (4, 64)
    np.testing.assert_allclose(states.mean(0), plain[0], atol=2e-3)
    first = rows(embed("-p", TEXTS[0], "--pooling", "cls", "--no-normalize"))
    assert np.array_equal(first[0], states[0])
    two = embed("-p", TEXTS[0], "-p", TEXTS[1], "--pooling", "none").split("\n\n")
    assert [rows(part).shape for part in two] == [(4, 64), (4, 64)]
    document = json.loads(embed("--json", "-p", TEXTS[0], "--pooling", "none"))
    assert np.array_equal(np.array(document["embeddings"][0]["embedding"], np.float32), states)
    assert document["normalized"] is False


def test_a_terminal_shows_how_similar_texts_are(
    embed: Embed, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anex.cli import embed as command

    shown: list[tuple[object, ...]] = []
    monkeypatch.setattr(command, "print_table", lambda *table: shown.append(table))
    command._print_tables(TEXTS, [4, 4, 5], list(vectors))
    command._print_tables(["x" * 100], [9], list(vectors[:1]))
    (title, headers, table), (_, _, ((name, tokens, dimension, _),)) = shown
    assert (title, headers) == ("Cosine similarity", ["", "text", "1", "2", "3"])
    assert [row[2 + i] for i, row in enumerate(table)] == ["+1.000"] * 3
    cosine = float(vectors[0].astype(np.float64) @ vectors[1])
    assert table[0][3] == table[1][2] == f"{cosine:+.3f}"
    assert (len(name), tokens, dimension) == (40, 9, 64)


def test_texts_that_are_too_long(
    embed: Embed, model: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "dog " * 50
    said = refused(capsys, [model, "--cache-dir", cache, "-p", long])
    assert "text 1 has 52 tokens, the model takes 40" in said
    assert "--truncate" in said
    assert rows(embed("-p", long, "--truncate")).shape == (1, 64)


def test_refusals(
    model: Path, cache: Path, tiny_gguf: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("")
    for arguments, message in (
        ([model, "-p", "a", "--pooling", "max"], "no pooling 'max'"),
        ([model, "-p", "a", "--pooling", "none", "--normalize"], "vectors of tokens are not normalised"),
        ([model, "-f", tmp_path / "empty"], "there is no text"),
        ([model, "-f", tmp_path / "missing"], "no such file"),
        ([tiny_gguf, "-p", "a"], "as an encoder"),
        ([tmp_path, "-p", "a"], "no model in this folder"),
        ([model, "-p", "a", "--numerics", "fp8"], "fp8"),
    ):
        assert message in refused(capsys, [*arguments, "--cache-dir", cache])


def test_a_decoders_command_refuses_an_encoder(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(model), "-p", "a", "--cache-dir", str(cache)]) == 2
    assert "bert" in capsys.readouterr().err
