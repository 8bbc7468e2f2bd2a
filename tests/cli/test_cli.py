"""The command: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_text
from signals import interruptible

from anex.cli import main

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
from anex.cli import main
sys.exit(main())
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the commands of this file share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def anex(cache: Path) -> Run:
    """Runs `anex ARGUMENTS` in a process of its own; `largest_file` is what a full disk looks like."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        start = ["-m", "anex"]
        if largest := options.pop("largest_file", 0):
            start = ["-c", LIMITED.format(largest)]
        command = [sys.executable, *start, *map(str, arguments)]
        environment = {**os.environ, "ANEX_CACHE": str(cache), **options.pop("env", {})}
        options.setdefault("stdin", subprocess.DEVNULL)
        if "input" in options:
            del options["stdin"]
        options.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(
            command, stderr=subprocess.PIPE, text=True, env=environment, timeout=100, **options
        )

    return run


def refused(capsys: pytest.CaptureFixture[str], code: int, arguments: Sequence[object]) -> str:
    """The one line with which a command ends; the process writes nothing else."""
    assert main([str(argument) for argument in arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("anex: error: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    return said.err


# --- what works ---------------------------------------------------------------


def test_run_prints_the_prompt_and_its_completion(anex: Run, tiny_gguf: Path) -> None:
    options = ("-n", 6, "--temp", 0, "-c", 64)
    plain = anex("run", tiny_gguf, "-p", "the rain", *options)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.startswith("the rain")
    # One document with the same text; standard input and one thread make no difference.
    document = anex("run", "-m", tiny_gguf, "-p", "-", *options, "--json", "-t", 1, input="the rain\n")
    assert document.stderr == ""
    content = json.loads(document.stdout)
    assert content["schema"] == "anex.run/1"
    assert plain.stdout in ("the rain" + content["text"] + "\n", "the rain" + content["text"])
    assert content["generated_tokens"] == len(content["tokens"]) == 6
    assert (content["stop_reason"], content["context"]) == ("length", 64)
    assert content["prompt_tokens"] > 0
    assert content["peak_memory_bytes"] > 1 << 20
    assert content["engine"]["numerics"] == "fp16"


def test_run_says_what_it_took_when_asked(anex: Run, tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("the rain\n")
    done = anex(
        "run", tiny_gguf, "-f", tmp_path / "prompt", "-n", 2, "-c", 64, "-v", "--no-echo", "--seed", 3
    )
    assert done.returncode == 0
    assert not done.stdout.startswith("the rain")
    assert "\nemulator, fp16 · " in done.stderr  # an emulator is not taken for silicon
    assert "prompt tokens at" in done.stderr
    assert "peak memory" in done.stderr


def test_info(anex: Run, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tiny_gguf), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "anex.info/1"
    assert content["config"]["dim"] == tiny_text.DIM
    assert content["tokenizer"]["vocabulary"] == tiny_text.VOCABULARY
    assert content["tokenizer"]["end_tokens"] == [tiny_text.END]
    assert {a["name"] for a in content["ledger"]} == {
        "general.architecture", *tiny_text.metadata(), *tiny_text.tensors()
    }  # fmt: skip
    functions = {f["name"]: f for f in content["functions"]}
    assert functions["prefill_t32_c0"]["ops_by_kind"]["conv"] == 7 * tiny_text.LAYERS
    # Tied: the head is the embedding table, its rows rounded up to a multiple of 32.
    rows = -(-tiny_text.VOCABULARY // 32) * 32
    assert functions["head_t32"]["weight_bytes"] == 2 * rows * tiny_text.DIM
    assert main(["info", str(tiny_gguf), "--tensors"]) == 0
    text = capsys.readouterr().out
    assert "blk.1.ffn_down.weight" in text
    assert "\x1b" not in text


def test_info_of_a_model_without_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {k: v for k, v in tiny_text.metadata().items() if not k.startswith("tokenizer.")}
    assert main(["info", str(tiny_text.write(tmp_path / "m.gguf", keys)), "--json"]) == 0
    assert "tokenizer" in json.loads(capsys.readouterr().out)["tokenizer"]["error"]


def test_cache(tmp_path: Path, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from anex.models import prepare
    from anex.runtime import store

    where = ["--cache-dir", str(tmp_path)]
    prepare(tiny_gguf, store.models(tmp_path)).close()
    assert main(["cache", "ls", "--json", *where]) == 0
    content = json.loads(capsys.readouterr().out)
    (entry,) = content["entries"]
    assert content["schema"] == "anex.cache.ls/1"
    assert content["bytes"] == entry["bytes"] > 0
    assert main(["cache", "ls", *where]) == 0
    assert entry["name"] in capsys.readouterr().out
    assert "no entry 'x'" in refused(capsys, 2, ["cache", "clear", "x", *where])
    assert "is no size" in refused(capsys, 2, ["cache", "clear", "--keep", "x", *where])
    assert main(["cache", "clear", "--keep", "1G", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == []
    assert main(["cache", "clear", entry["name"], *where]) == 0
    assert "1 entries" in capsys.readouterr().out
    assert main(["cache", "ls", *where]) == 0
    assert entry["name"] not in capsys.readouterr().out


def test_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (emulator,) = (entry for entry in content["engines"] if entry["name"] == "emulator")
    assert (emulator["usable"], emulator["missing"]) == (True, "")
    assert "native matmul" in emulator["note"]


def test_imports_are_light() -> None:
    code = (
        "import sys, anex, anex.cli; print(sorted({'numpy', 'jax', 'rich', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_public_names() -> None:
    import anex as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing  # type: ignore[attr-defined]


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in ((["--version"], "anex "), (["--help"], "run"), (["run", "--help"], "--top-k")):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 0
        assert word in capsys.readouterr().out


# --- bad input ----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [[], ["walk"], ["run", "m", "--temp", "hot"], ["run", "-p", "a", "-f", "b"], ["cache"]]
)
def test_command_lines_that_make_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert "usage: anex" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-p", "a"], "no model is given"),
        (["run", "{m}", "-m", "{m}", "-p", "a"], "two models"),
        (["run", "{m}"], "no prompt is given"),
        (["run", "{m}", "-p", ""], "the prompt is empty"),
        (["run", "{m}", "-f", "{m}"], "not UTF-8"),
        (["run", "{m}", "-f", "{d}/none"], "no such file"),
        (["run", "{d}/none.gguf", "-p", "a"], "no such file"),
        (["run", "{d}", "-p", "a"], "folder"),
        (
            ["run", "{m}", "-p", "a", "-c", "301"],
            "a context of 301 tokens (the model was trained for 1 … 300)",
        ),
        (["run", "{m}", "-p", "a", "-c", "-5"], "a context of -5 tokens"),
        (["run", "{m}", "-p", "a", "-t", "0"], "0 threads"),
        (["run", "{m}", "-p", "a", "-n", "-7"], "n_predict"),
        (["run", "{m}", "-p", "a", "--top-p", "2"], "top_p is 2.0"),
        (["run", "{m}", "-p", "a", "--stop", ""], "stop string is empty"),
        (["run", "{m}", "-p", "a", "--numerics", "fp8"], "numerics level 'fp8'"),
        (["run", "{m}", "-p", "a\udcff"], "not valid Unicode"),
        (["run", "{m}", "-p", "x" * 65, "-c", "64"], "the prompt has 65 tokens, the context 64"),
        (["run", "{m}", "-p", "a", "--cache-dir", "{m}/cache"], "cannot be made"),
        (["info", "{d}/new\nline"], r"new\nline: no such file"),
    ],
)
def test_requests_that_cannot_be_met(
    arguments: list[str],
    message: str,
    tiny_gguf: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANEX_CACHE", str(tmp_path / "cache"))
    filled = [text.replace("{m}", str(tiny_gguf)).replace("{d}", str(tmp_path)) for text in arguments]
    assert message in refused(capsys, 2, filled)


def test_an_engine_that_is_not_there(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", tiny_gguf, "-p", "a", "--engine", "quantum", "--cache-dir", tmp_path]
    assert "no engine 'quantum'" in refused(capsys, 3, arguments)


def changed(**keys: Any) -> dict[str, Any]:
    """The tiny model's keys with some replaced, or removed where the value is None."""
    keys = {name.replace("__", "."): value for name, value in keys.items()}
    return {k: v for k, v in {**tiny_text.metadata(), **keys}.items() if v is not None}


def lies(data: bytes, what: str) -> bytes:
    """The file with a tensor or key count, a name's length or an offset that is not true."""
    name = data.index(b"token_embd.weight")
    after = name + len(b"token_embd.weight")
    patches = {
        "tensor count": (8, "<Q", 1 << 60),
        "key count": (16, "<Q", 1 << 60),
        "name length": (name - 8, "<Q", 1 << 62),
        "dimensions": (after, "<I", 77),
        "size": (after + 4, "<Q", 1 << 61),
        "type": (after + 20, "<I", 9999),
        "offset": (after + 24, "<Q", 1 << 62),
    }
    at, form, value = patches[what]
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    "what", ["tensor count", "key count", "name length", "dimensions", "size", "type", "offset"]
)
def test_files_that_lie(
    what: str, tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(lies(tiny_gguf.read_bytes(), what))
    cache = tmp_path / "cache"
    assert str(path) in refused(capsys, 2, ["run", path, "-p", "a", "--cache-dir", cache])
    assert not cache.exists()


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.02, 0.5, 0.999])
def test_files_that_are_cut_short(
    part: float, tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, path = tiny_gguf.read_bytes(), tmp_path / "short.gguf"
    path.write_bytes(data[: int(len(data) * part)])
    assert str(path) in refused(capsys, 2, ["run", path, "-p", "a", "--cache-dir", tmp_path / "cache"])


@pytest.mark.parametrize(
    ("keys", "arch", "message"),
    [
        ({}, "mamba", "not supported: architecture 'mamba'"),
        ({"llama__attention__max_alibi_bias": 8.0}, "llama", "llama.attention.max_alibi_bias"),
        ({"llama__rope__scaling__type": "spiral"}, "llama", "RoPE scaling 'spiral'"),
        ({"llama__magic": 1}, "llama", "llama.magic"),
        ({"tokenizer__ggml__tokens": None, "tokenizer__ggml__model": None}, "llama", "tokenizer.ggml"),
        ({"tokenizer__ggml__model": "rwkv"}, "llama", "rwkv"),
        ({"tokenizer__ggml__pre": "nobody"}, "llama", "nobody"),
        ({"llama__block_count": 3}, "llama", "blk.2."),
        ({"llama__embedding_length": 128}, "llama", "token_embd.weight"),
        ({"llama__context_length": "long"}, "llama", "llama.context_length"),
    ],
)
def test_models_that_are_not_understood(
    keys: dict[str, Any], arch: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, cache = tiny_text.write(tmp_path / "m.gguf", changed(**keys), arch), tmp_path / "cache"
    assert message in refused(capsys, 2, ["run", path, "-p", "a", "--cache-dir", cache])
    assert not cache.exists()


# --- the system says no -------------------------------------------------------


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_full_disk_leaves_nothing_behind(anex: Run, tiny_gguf: Path, tmp_path: Path) -> None:
    done = anex("run", tiny_gguf, "-p", "a", "--cache-dir", tmp_path, largest_file=50_000)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("anex: error: ")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr
    assert files_in(tmp_path) == []


def test_output_that_does_not_fit(anex: Run, tiny_gguf: Path, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        done = anex("info", tiny_gguf, stdout=out, largest_file=100)
    assert done.returncode == 2
    assert done.stderr == (
        "anex: error: output: the file grows larger than the system allows (raise the limit (ulimit -f))\n"
    )


def test_a_reader_that_has_seen_enough(anex: Run, tiny_gguf: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = anex("info", tiny_gguf, "--tensors", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_interrupting(tiny_gguf: Path, cache: Path) -> None:
    command = interruptible("-m", "anex", "run", str(tiny_gguf), "-p", "-", "--cache-dir", str(cache))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # It waits for standard input once it has said so by reading; a signal before that would hit the start.
    assert process.stdin is not None
    process.stdin.write("x" * (1 << 17))  # more than a pipe holds: returns when the command reads
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
