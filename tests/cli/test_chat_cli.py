"""`anex chat`: through pipes, and on a pseudo-terminal with its keys."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import signals
import tiny_text

from anex.cli import main
from anex.formats.gguf import GGUFWriter
from anex.runtime import Model, load_decoder

TEMPLATE = (
    "{%- for m in messages -%}<|user|>{{ m.role[0] }}:{{ m.content }}<|endoftext|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|user|>a:{%- endif -%}"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that never ends an answer: its end token has the logit 0, far below the largest."""
    keys = tiny_text.metadata() | {"tokenizer.chat_template": TEMPLATE, "llama.context_length": 8192}
    tensors = tiny_text.tensors()
    tensors["token_embd.weight"][tiny_text.END] = 0
    path = tmp_path_factory.mktemp("chat") / "endless.gguf"
    with GGUFWriter(path, "llama") as writer:
        for key, value in keys.items():
            writer.add_metadata(key, value)
        for name, array in tensors.items():
            writer.add_tensor(name, array)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(path: Path, cache: Path) -> Iterator[Model]:
    with load_decoder(path, cache_dir=cache) as model:
        yield model


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def chat(path: Path, cache: Path) -> Run:
    """Runs `anex chat MODEL` with pipes."""

    def run(*arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "anex", "chat", str(path), "--cache-dir", str(cache)]
        return subprocess.run(
            [*command, *map(str, arguments)], input=said, capture_output=True, text=True, timeout=100
        )

    return run


SHORT = ("--temp", 0, "-n", 4, "-c", 256)


def answers(model: Model, *messages: str, system: str | None = None) -> list[str]:
    """What the library answers."""
    with model.chat(system, temperature=0.0, n_predict=4) as talk:
        return [talk.send(message).text() for message in messages]


# --- pipes --------------------------------------------------------------------


def test_every_line_is_a_message(chat: Run, model: Model) -> None:
    done = chat(*SHORT, said="the rain\n\n/help\\\nin a")  # no commands, no continued lines
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"{text}\n" for text in answers(model, "the rain", "/help\\", "in a"))


def test_documents_and_a_session(chat: Run, model: Model, tmp_path: Path) -> None:
    (tmp_path / "system").write_text("be brief\n")
    (tmp_path / "first").write_text("the\nrain\n")
    file = tmp_path / "talk.json"
    options = (*SHORT, "--session", file, "--json")
    first = chat(*options, "--system", f"@{tmp_path / 'system'}", "-f", tmp_path / "first", said="in a\n")
    assert first.returncode == 0
    assert json.loads(file.read_text())["messages"][0] == {"role": "user", "content": "the\nrain"}
    second = chat(*options, "-p", "the", "-st", said="this is not read\n")
    documents = [json.loads(line) for line in (first.stdout + second.stdout).splitlines()]
    right = answers(model, "the\nrain", "in a", "the", system="be brief")
    assert [d["text"] for d in documents] == right
    assert [d["messages"] for d in documents] == [3, 5, 7]
    assert [d["turn"] for d in documents] == [1, 2, 1]
    assert {d["schema"] for d in documents} == {"anex.chat/1"}
    assert {(d["stop_reason"], d["generated_tokens"], d["context"]) for d in documents} == {
        ("length", 4, 256)
    }
    assert documents[0]["reused_tokens"] == 0
    assert documents[1]["reused_tokens"] >= documents[0]["prompt_tokens"]
    saved = json.loads(file.read_text())
    assert (saved["system"], [m["content"] for m in saved["messages"][1::2]]) == ("be brief", right)


def test_a_context_that_is_full(chat: Run) -> None:
    lines = "".join(f"{letter * 60}\n" for letter in "abcdef")
    dropping = chat(*SHORT, said=lines)
    assert dropping.returncode == 0
    assert "[the context of 256 tokens is full: " in dropping.stderr
    assert dropping.stdout.count("\n") >= 6
    stopping = chat(*SHORT, "--context-full", "stop", said=lines)
    assert stopping.returncode == 2
    assert "with this message, the context 256" in stopping.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model is given"),
        (["{m}", "-st"], "no message for the single turn"),
        (["{m}", "-f", "{d}/none"], "no such file"),
        (["{m}", "--system", "@{d}/none"], "no such file"),
        (["{m}", "-c", "-3"], "a context of -3 tokens"),
        (["{m}", "--template", "nothing"], "no chat template 'nothing'"),
        (["{m}", "--template", "{m}/x.jinja"], "not a folder"),
        (["{m}", "--session", "{d}"], "folder, not a file"),
        (["{m}", "--session", "{m}"], "UTF-8"),
        (["{m}", "--session", "{d}/none/talk.json"], "the folder does not exist"),
        (["{m}", "-p", " ", "-st"], "the message is empty"),
        (["{m}", "-p", "a\udcff", "-st"], "not valid Unicode"),
        (["{m}", "-p", "a", "-st", "--top-p", "2"], "top_p is 2.0"),
    ],
)
def test_requests_that_cannot_be_met(
    arguments: list[str],
    message: str,
    path: Path,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [text.replace("{m}", str(path)).replace("{d}", str(tmp_path)) for text in arguments]
    assert main(["chat", *filled, "--cache-dir", str(cache)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.startswith("anex: error: ")
    assert said.err.count("\n") == 1


def test_lines_that_are_no_text(path: Path, cache: Path) -> None:
    command = [sys.executable, "-m", "anex", "chat", str(path), "--cache-dir", str(cache)]
    done = subprocess.run(command, input=b"\xff\n", capture_output=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr == b"anex: error: standard input, line 1: not UTF-8 at byte 0\n"


def test_another_models_session(chat: Run, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    assert chat("--session", file).returncode == 0
    content = json.loads(file.read_text())
    content["model"]["fingerprint"] = "0"
    file.write_text(json.dumps(content))
    refused = chat("--session", file)
    assert refused.returncode == 2
    assert "held with another model, endless.gguf (take that one, or --force)" in refused.stderr
    assert json.loads(file.read_text()) == content
    assert chat("--session", file, "--force").returncode == 0


# --- a terminal ---------------------------------------------------------------


LAUNCH = """
import fcntl, os, sys, termios
sys.path.insert(0, sys.argv[1])
from signals import restore_interrupts
restore_interrupts()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""A process of its own, as no code may run between the fork and the start of a child: JAX has threads."""


class Terminal:
    """Python with arguments, on a pseudo-terminal that is its controlling one, so that Ctrl-C is a signal."""

    def __init__(self, command: list[str]) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(Path(signals.__file__).parent), *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "INPUTRC": os.devnull},
        )
        os.close(slave)
        self.said = ""

    def type(self, keys: str) -> None:
        self.said = ""
        os.write(self._master, keys.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Reads on until what was said since the last keys has the pattern."""
        deadline = time.monotonic() + 60
        while (found := re.search(pattern, self.said, re.DOTALL)) is None:
            assert self._read(deadline), f"{pattern!r} is not in {self.said!r}"
        return found

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C at a prompt, after which there is the pattern, or `$` for the end.

        Python takes note of one that comes just before its readline waits for keys, but acts with the next
        key only: it is typed again where nothing happens, which then is the same interrupt.
        """
        self.said = ""
        while not self.said:
            os.write(self._master, b"\x03")
            select.select([self._master], [], [], 5)
            if not self._read(time.monotonic()) and self.process.poll() is not None:
                break
        self.expect(pattern)

    def end(self) -> int:
        """The exit code, once nothing more is said."""
        while self._read(time.monotonic() + 60):
            continue
        return self.process.wait(60)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 1 << 16) if ready else b""
        except OSError:  # Linux: the other end is closed
            data = b""
        self.said += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(path: Path, cache: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: object) -> Terminal:
        command = ["-m", "anex", "chat", str(path), "--cache-dir", str(cache), "--temp", "0"]
        opened.append(Terminal([*command, *map(str, arguments)]))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def saved(file: Path) -> list[Any]:
    return [message["content"] for message in json.loads(file.read_text())["messages"]]


def test_interrupting_an_answer(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    keys = terminal("--session", file, "-q")
    keys.expect(r"> $")
    keys.type("the rain\n")
    keys.expect(r"the rain\r\n.{20}")  # the answer has begun; it would go on for 8192 tokens
    keys.type("\x03")
    keys.expect(r"\[interrupted\]\r\n.*> $")
    message, answer = saved(file)
    assert message == "the rain"
    assert len(answer) >= 20
    keys.type("/stats\n")
    keys.expect(r"of 8192 tokens are held.*2 messages.*> $")
    # At the prompt it takes two, unless something is typed between them.
    keys.interrupt(r"\(Ctrl-C again or Ctrl-D ends.*> $")
    keys.type("/undo\n")
    keys.expect(r"\[taken back: the rain\].*> $")
    assert saved(file) == []
    keys.interrupt(r"Ctrl-C again.*> $")
    keys.interrupt(r"$")
    assert keys.end() == 130
    assert "Traceback" not in keys.said


def test_commands(terminal: Callable[..., Terminal], model: Model, tmp_path: Path) -> None:
    keys = terminal("-n", 4, "-q", "-p", "the rain")
    (first,) = answers(model, "the rain")
    keys.expect(r"> the rain\r\n" + re.escape(first.replace("\n", "\r\n")) + r".*> $")
    other = tmp_path / "other.json"
    for typed, pattern in (
        ("/help\n", r"/save FILE.*/quit.*Ctrl-D.*> $"),
        (f"/save {other}\n", r"\[saved to .*> $"),
        ("/save\n", r"no file is named.*> $"),
        ("/what\n", r"anex: error: no command '/what'.*> $"),
        ("/reset\n", r"forgotten\].*> $"),
        ("/regen\n", r"anex: error: there is no message to answer again.*> $"),
        ("/undo\n", r"anex: error: there is no message to take back.*> $"),
        ("/system be brief\n", r"\[system: be brief\].*> $"),
        (f"/load {other}\n", r"\[2 messages of .*> $"),
        ("/system\n", r"no system prompt of your own.*> $"),
        (f"/load {tmp_path}\n", r"anex: error: .*folder.*> $"),
        ("a\\\nb\n", r"\. .*\[token limit\].*> $"),
        ('"""c\nd\n"""\n', r"\. .*\[token limit\].*> $"),
        ("//e\n", r"\[token limit\].*> $"),
        ("/regen\n", r"\[token limit\].*> $"),
        (f"/save {other}\n", r"\[saved to .*> $"),
    ):
        keys.type(typed)
        keys.expect(pattern)
    assert saved(other)[::2] == ["the rain", "a\nb", "c\nd", "/e"]
    keys.type("\x04")
    assert keys.end() == 0


def test_an_end_without_a_question(terminal: Callable[..., Terminal]) -> None:
    keys = terminal()
    keys.expect(r"tiny · emulator, fp16 · context 8192 · /help\r\n.*> $")
    keys.type("/quit\n")
    assert keys.end() == 0
    assert "\x1b[1" not in keys.said  # no colours on a dumb terminal
