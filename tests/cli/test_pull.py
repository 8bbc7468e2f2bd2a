"""`anex pull` against a hub on this machine: what it takes, resumes, and refuses."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hub_server import Hub, serve
from signals import interruptible

from anex.cli import main
from anex.errors import AnexError, InputError, ResourceError, UnsupportedError
from anex.formats.gguf import GGUFFile, GGUFWriter
from anex.formats.hub import Pulled, UnreachableError, downloads, folder_of, pull, root_of, transfer
from anex.formats.hub.choose import choose
from anex.formats.hub.remote import is_plain
from anex.formats.safetensors import SafetensorsFolder

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
from anex.cli import main
sys.exit(main())
"""

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = b'{"model_type": "llama"}'


def tensors(**values: Any) -> bytes:
    return safetensors.numpy.save({k: np.asarray(v, np.float32) for k, v in values.items()})


def gguf(path: Path, seed: int) -> bytes:
    with GGUFWriter(path, "llama") as writer:
        writer.add_tensor("token_embd.weight", np.full((64, 32), seed, np.float32))
    return path.read_bytes()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a sharded model, a single-file one, and GGUF files."""
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))
    weight_map = json.dumps({"weight_map": {"x": A, "y": B}}).encode()
    with serve() as server:
        server.repos = {
            "some/sharded": {
                "README.md": b"# A model", ".gitattributes": b"*", "config.json": CONFIG,
                "tokenizer.json": b"{}", A: tensors(x=np.arange(900)), B: tensors(y=[2]), INDEX: weight_map,
                "pytorch_model.bin": b"\x80\x02}q\0.", "onnx/model.onnx": b"onnx", "model.q8.gguf": b"GGUF",
            },
            "some/single": {
                "config.json": CONFIG, "model.safetensors": tensors(x=np.arange(5000)),
                "1_Pooling/config.json": b"{}", "modules.json": b"[]",
            },
            "some/gguf": {
                "m.Q8_0.gguf": gguf(tmp_path / "a", 1), "m.Q4_K_M.gguf": gguf(tmp_path / "b", 2),
                "mmproj-m.gguf": b"GGUF", "config.json": CONFIG,
            },
            "some/pickle": {"config.json": CONFIG, "pytorch_model.bin": b"\x80\x02}q\0."},
            "some/nothing": {"README.md": b"# Soon"},
        }  # fmt: skip
        yield server


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Callable[..., Pulled]:
    return lambda name, **options: pull(name, root_of(tmp_path / "cache"), endpoint=hub.url, **options)


@pytest.fixture
def command(hub: Hub, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `anex ARGUMENTS` in a process of its own."""

    def run(*arguments: object, largest: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        start = ["-c", LIMITED.format(largest)] if largest else ["-m", "anex"]
        return subprocess.run(
            [sys.executable, *start, *map(str, arguments)],
            env=environment(hub, tmp_path) | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": hub.url, "ANEX_CACHE": str(tmp_path / "cache")}


def incomplete(tmp_path: Path) -> list[int]:
    return [p.stat().st_size for p in (tmp_path / "cache").rglob(".incomplete/*")]


# --- what is fetched --------------------------------------------------------------


def test_a_sharded_model_comes_with_its_documents_only(
    hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    pulled = fetch("some/sharded", progress=lambda *report: seen.append(report))
    assert pulled.path == (tmp_path / "cache/hub/some--sharded").resolve()
    assert set(pulled.files) == {"config.json", "tokenizer.json", INDEX, A, B}
    assert {p.name for p in pulled.path.iterdir() if not p.name.startswith(".")} == set(pulled.files)
    assert pulled.revision == hub.commit("some/sharded")
    assert pulled.nbytes == pulled.fetched == sum(len(hub.repos["some/sharded"][f]) for f in pulled.files)
    assert incomplete(tmp_path) == []
    with SafetensorsFolder(pulled.path) as model:
        assert np.array_equal(model.array("x"), np.arange(900))
        assert model.config == {"model_type": "llama"}
    assert {title for title, _, _ in seen} == {"Fetching some/sharded"}
    assert seen[-1][1] == seen[-1][2]

    hub.asked.clear()
    again = fetch("some/sharded")
    assert (again.path, again.fetched, again.nbytes) == (pulled.path, 0, pulled.nbytes)
    assert hub.downloads() == []


def test_folders_inside_and_revisions_apart(fetch: Callable[..., Pulled], tmp_path: Path) -> None:
    pulled = fetch("some/single", revision="v1")
    assert pulled.path.name == "some--single@v1"
    assert (pulled.path / "1_Pooling/config.json").read_bytes() == b"{}"
    assert folder_of(root_of(tmp_path), "a/b", "refs/pr/1").name == "a--b@refs%2Fpr%2F1"
    assert folder_of(root_of(tmp_path), "a/b", "main").name == "a--b"


def test_one_gguf_is_chosen_by_a_pattern(hub: Hub, fetch: Callable[..., Pulled]) -> None:
    with pytest.raises(
        InputError, match=r"2 GGUF models are there \(choose one with --file; there is 'm\.Q4_K"
    ):
        fetch("some/gguf")
    pulled = fetch("some/gguf", pattern="*q8_0*")
    assert (pulled.path.name, set(pulled.files)) == ("m.Q8_0.gguf", {"m.Q8_0.gguf"})
    with GGUFFile(pulled.path) as file:
        assert file.array("token_embd.weight")[63, 31] == 1
    assert fetch("some/gguf", pattern="m.Q4_K_M.gguf").fetched == len(hub.repos["some/gguf"]["m.Q4_K_M.gguf"])
    assert fetch("some/gguf", pattern="m.Q8_0.gguf").fetched == 0


CHOICES: dict[str, tuple[tuple[str, ...], str | None, set[str], str | None]] = {
    "only gguf": (("a.gguf", "mmproj-a.gguf", "a.imatrix.gguf", "README.md"), None, {"a.gguf"}, "a.gguf"),
    "split gguf": (
        ("q/a-00001-of-00002.gguf", "q/a-00002-of-00002.gguf"),
        None,
        {"q/a-00001-of-00002.gguf", "q/a-00002-of-00002.gguf"},
        "q/a-00001-of-00002.gguf",
    ),
    "one part named": (
        ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf"),
        "a-00001*",
        {"a-00001-of-00002.gguf", "a-00002-of-00002.gguf"},
        "a-00001-of-00002.gguf",
    ),
    "safetensors before gguf": (
        ("a.gguf", "model.safetensors", "vocab.txt"),
        None,
        {"model.safetensors", "vocab.txt"},
        None,
    ),
    "projector named": (("a.gguf", "mmproj.gguf"), "mmproj*", {"mmproj.gguf"}, "mmproj.gguf"),
    "other file": (("config.json", "LICENSE"), "LICENSE", {"LICENSE"}, "LICENSE"),
    "adapter": (
        ("adapter_model.safetensors", "adapter_config.json", "x.bin"),
        "adapter*",
        {"adapter_model.safetensors", "adapter_config.json"},
        None,
    ),
    "shard named": (("config.json", INDEX, A, B), A, {"config.json", INDEX, A}, None),
    "pickles left out": (("a.bin", "model.safetensors"), "*", {"model.safetensors"}, None),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choices(case: str) -> None:
    names, pattern, files, model = CHOICES[case]
    choice = choose(names, pattern, "some/model")
    assert (set(choice.files), choice.model) == (files, model)
    assert choice.index == (INDEX in files)


@pytest.mark.parametrize(
    ("names", "pattern", "kind", "message"),
    [
        ((), None, InputError, r"no model: .*\(the repository is empty\)"),
        (("a", "b", "c", "d", "e"), None, InputError, "there is 'a', 'b', 'c', 'd' and 1 more"),
        (("x.bin",), None, UnsupportedError, r"PyTorch pickles \('x\.bin'\)"),
        (("x.bin", "y"), "*.bin", UnsupportedError, "PyTorch pickles"),
        (("a.gguf", "y"), "*Q8*", InputError, r"no file matches '\*Q8\*' \(there is 'a\.gguf'\)"),
        (("a.gguf", "b.gguf"), "*", InputError, "2 GGUF models"),
        (("a-00001-of-00003.gguf",), None, InputError, "1 of 3 parts of the model are there"),
    ],
)
def test_no_choice(names: tuple[str, ...], pattern: str | None, kind: type[AnexError], message: str) -> None:
    with pytest.raises(kind, match=message):
        choose(names, pattern, "some/model")


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../x", "a//b", "./a", "a\\b", "c:a", ".hidden", "a/.b", "a\nb", "", ".", "a/"]
)
def test_names_that_leave_the_folder_are_not_files_of_a_model(
    name: str, hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path
) -> None:
    assert not is_plain(name)
    hub.extra = [{"rfilename": name, "size": 1, "blobId": "0" * 40}]
    fetch("some/single")
    assert {p.name for p in (tmp_path / "cache").iterdir()} == {"hub"}


# --- interruptions ----------------------------------------------------------------


def test_a_lost_connection_is_taken_up_again_in_the_same_run(hub: Hub, fetch: Callable[..., Pulled]) -> None:
    hub.cut = 6000
    pulled = fetch("some/single")
    assert [span for name, span in hub.downloads() if name == "model.safetensors"] == [
        f"bytes={start}-" for start in (0, 6000, 12000, 18000)
    ]
    assert (pulled.path / "model.safetensors").read_bytes() == hub.repos["some/single"]["model.safetensors"]


def test_an_interrupted_pull_goes_on_in_the_next_run(
    hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path
) -> None:
    hub.cut = 6000
    hub.errors = {}
    content = hub.repos["some/single"]["model.safetensors"]

    def lose(title: str, done: int, total: int) -> None:
        if done > 6000:
            hub.cut = 0

    with pytest.raises(UnreachableError, match="goes on where this one stopped") as caught:
        fetch("some/single", progress=lose)
    assert "\n" not in str(caught.value)
    (held,) = incomplete(tmp_path)
    assert 0 < held < len(content)
    assert not (tmp_path / "cache/hub/some--single/model.safetensors").exists()

    hub.cut = None
    hub.asked.clear()
    pulled = fetch("some/single")
    assert hub.downloads() == [("model.safetensors", f"bytes={held}-")]
    assert (pulled.path / "model.safetensors").read_bytes() == content
    assert incomplete(tmp_path) == []


def test_ctrl_c_keeps_what_came(hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path) -> None:
    hub.slow = 0.05
    process = subprocess.Popen(
        interruptible("-m", "anex", "pull", "some/single"),
        env=environment(hub, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(size > 2000 for size in incomplete(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    (held,) = incomplete(tmp_path)
    hub.slow = 0
    hub.asked.clear()
    fetch("some/single")
    assert hub.downloads() == [("model.safetensors", f"bytes={held}-")]


def test_a_hub_that_begins_at_the_front_again(hub: Hub, fetch: Callable[..., Pulled]) -> None:
    hub.cut, hub.ranges = 6000, False
    with pytest.raises(UnreachableError, match=r"ended|reached"):
        fetch("some/single")
    hub.cut = None
    pulled = fetch("some/single")
    assert (pulled.path / "model.safetensors").read_bytes() == hub.repos["some/single"]["model.safetensors"]


def test_bytes_that_are_not_those_promised_are_never_taken(
    hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path
) -> None:
    content = hub.repos["some/single"]["model.safetensors"]
    for lie in (content[:-1] + b"!", content + b"!", b"!" + content):
        hub.lies = {"model.safetensors": lie}
        with pytest.raises(InputError, match=r"other bytes for model\.safetensors than its digest says"):
            fetch("some/single")
        assert incomplete(tmp_path) == [0]
        assert not (tmp_path / "cache/hub/some--single/model.safetensors").exists()
    hub.lies = {"config.json": b"{}" + b" " * (len(CONFIG) - 2)}  # a small file has a digest as well
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(InputError, match=r"other bytes for config\.json"):
        fetch("some/single")


def test_a_damaged_part_is_noticed(hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path) -> None:
    content = hub.repos["some/single"]["model.safetensors"]
    part = tmp_path / "cache/hub/some--single/.incomplete" / hashlib.sha256(content).hexdigest()
    part.parent.mkdir(parents=True)
    part.write_bytes(b"?" * 100)
    with pytest.raises(InputError, match="other bytes"):
        fetch("some/single")
    fetch("some/single")
    (tmp_path / "cache/hub/some--single/model.safetensors").unlink()
    part.write_bytes(content + b"more")
    assert fetch("some/single").fetched == len(content)


def test_two_processes_do_not_mix(hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path) -> None:
    content = hub.repos["some/single"]["model.safetensors"]
    part = tmp_path / "cache/hub/some--single/.incomplete" / hashlib.sha256(content).hexdigest()
    part.parent.mkdir(parents=True)
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ResourceError, match="another process fetches this file"):
            fetch("some/single")
    fetch("some/single")


# --- later ------------------------------------------------------------------------


def test_a_new_commit_brings_what_changed(hub: Hub, fetch: Callable[..., Pulled]) -> None:
    first = fetch("some/single")
    repo = hub.repos["some/single"]
    repo["config.json"] = b'{"model_type": "qwen2"}'
    del repo["modules.json"]
    hub.asked.clear()
    second = fetch("some/single")
    assert second.revision != first.revision
    assert [name for name, _ in hub.downloads()] == ["config.json"]
    assert (second.path / "config.json").read_bytes() == b'{"model_type": "qwen2"}'
    assert not (second.path / "modules.json").exists()


@pytest.mark.parametrize("how", ["unreachable", "unavailable"])
def test_without_the_hub_what_is_here_is_enough(
    how: str, hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path
) -> None:
    pulled = fetch("some/sharded")
    url = hub.url
    if how == "unreachable":
        hub.url = "http://127.0.0.1:9"  # the discard port: nobody listens
    else:
        hub.errors = {"/api": (503, "")}
    again = fetch("some/sharded")
    assert (again.path, again.revision, again.files) == (pulled.path, pulled.revision, pulled.files)
    assert "hub" in again.offline
    with pytest.raises(UnreachableError):
        fetch("some/single")
    with pytest.raises(UnreachableError):
        fetch("some/sharded", revision="v1")
    (pulled.path / B).unlink()
    with pytest.raises(UnreachableError):
        fetch("some/sharded")
    hub.url, hub.errors = url, {}
    assert fetch("some/sharded").fetched == len(hub.repos["some/sharded"][B])


def test_a_record_that_is_broken_counts_as_none(
    hub: Hub, fetch: Callable[..., Pulled], tmp_path: Path
) -> None:
    pulled = fetch("some/single")
    for text in ("", "[]", '{"revision": "x"}', '{"revision": 1, "files": {"../a": [1, "x"], "b": 2}}'):
        (pulled.path / ".anex-pull.json").write_text(text)
        assert fetch("some/single").fetched == pulled.nbytes


# --- refusals ---------------------------------------------------------------------


REFUSED: dict[str, tuple[str, dict[str, Any], type[AnexError], str]] = {
    "missing": ("some/none", {}, InputError, "some/none: no such model on the hub"),
    "name": ("a b", {}, InputError, "neither a file, nor a folder, nor a name on the hub"),
    "dots": ("../..", {}, InputError, "nor a name on the hub"),
    "revision": ("some/single", {"revision": "nope"}, InputError, "some/single: no such revision"),
    "pattern": ("some/gguf", {"pattern": "*Q2*"}, InputError, r"no file matches '\*Q2\*' \(there is 'm\.Q4"),
    "pickles": ("some/pickle", {}, UnsupportedError, r"PyTorch pickles \('pytorch_model\.bin'\)"),
    "nothing": ("some/nothing", {}, InputError, r"no model: .*\(there is 'README\.md'\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_line_and_leave_nothing(
    case: str, fetch: Callable[..., Pulled], tmp_path: Path
) -> None:
    name, options, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message) as caught:
        fetch(name, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


ANSWERS: dict[str, tuple[str, int, str, type[AnexError], str]] = {
    "gate": ("/some/single/resolve", 403, "GatedRepo", InputError, r"behind a gate \(accept its terms"),
    "gated listing": ("/api", 401, "GatedRepo", InputError, "behind a gate"),
    "gone": ("/some/single/resolve", 404, "EntryNotFound", InputError, "no such file on the hub any more"),
    "forbidden": ("/api", 403, "", InputError, r"answers with status 403 \(check HF_TOKEN"),
    "teapot": ("/api", 418, "", InputError, "answers with status 418"),
    "busy": ("/api", 429, "", UnreachableError, r"answers with status 429 \(try again later"),
    "broken": ("/some/single/resolve", 500, "", UnreachableError, "status 500"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_the_hub_refuses(case: str, hub: Hub, fetch: Callable[..., Pulled]) -> None:
    prefix, status, code, kind, message = ANSWERS[case]
    hub.errors = {prefix: (status, code)}
    with pytest.raises(kind, match=message) as caught:
        fetch("some/single")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("page", [b"<html>Log in to the hotel's network</html>", b"[]", b"{}", b'{"id": 1}'])
def test_an_answer_that_is_none_of_a_hub(page: bytes, hub: Hub, fetch: Callable[..., Pulled]) -> None:
    hub.page = page
    with pytest.raises(InputError, match="the answer is not one of a hub"):
        fetch("some/single")


@pytest.mark.parametrize(
    "entry",
    [{"size": 1, "blobId": "0" * 40}, {"rfilename": "x", "size": 1, "blobId": "../x"}, {"rfilename": "x"}],
)
def test_a_listing_with_nonsense(entry: dict[str, Any], hub: Hub, fetch: Callable[..., Pulled]) -> None:
    hub.extra = [entry]
    with pytest.raises(InputError, match="the answer is not one of a hub"):
        fetch("some/single")


def test_a_shard_that_is_not_there(hub: Hub, fetch: Callable[..., Pulled]) -> None:
    del hub.repos["some/sharded"][B]
    with pytest.raises(InputError, match=f"the index names '{B}', which is not on the hub"):
        fetch("some/sharded")


def test_a_disk_that_is_too_small(fetch: Callable[..., Pulled], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ResourceError, match="bytes are to come, the disk has 1000 left"):
        fetch("some/single")


@pytest.mark.parametrize(
    "address", ["", "foo", "ftp://x", "http://[x", "http://x:99999", "http://x..y", "http://" + "x" * 70]
)
def test_an_address_that_is_none(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert main(["pull", "some/single"]) == 2
    said = capsys.readouterr().err
    assert "HF_ENDPOINT is not the address of a hub" in said
    assert said.count("\n") == 1


def test_the_token_goes_to_the_hub_and_no_further(
    hub: Hub, fetch: Callable[..., Pulled], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.elsewhere = True
    fetch("some/gguf", pattern="*Q8*")
    assert [path.split("/")[1] for path, _ in hub.tokens] == ["api", "some"]
    assert {token for _, token in hub.tokens} == {"Bearer hf_secret"}
    assert [path.split("/")[1] for path, _ in hub.asked] == ["api", "some", "cdn"]
    monkeypatch.setenv("HF_TOKEN", "hf_\u00e4")
    with pytest.raises(InputError, match="check HF_TOKEN"):
        fetch("some/gguf", pattern="*Q8*")


# --- the command ------------------------------------------------------------------


def test_the_command_prints_the_path(command: Callable[..., Any], hub: Hub, tmp_path: Path) -> None:
    done = command("pull", "some/gguf", "--file", "*Q8_0*")
    path = tmp_path / "cache/hub/some--gguf/m.Q8_0.gguf"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path.resolve()}\n", "")
    done = command("pull", "hf://some/single", "--json")
    content = json.loads(done.stdout)
    assert content["schema"] == "anex.pull/1"
    assert content["revision"] == hub.commit("some/single")
    assert content["bytes"] == content["fetched"] == sum(file["bytes"] for file in content["files"])
    assert Path(content["path"]).name == "some--single"

    listed = json.loads(command("cache", "ls", "--json").stdout)
    assert {e["name"] for e in listed["entries"]} == {"some--gguf", "some--single"}
    assert (listed["bytes"], listed["pulled_bytes"] > content["bytes"]) == (0, True)
    assert len(downloads(root_of(tmp_path / "cache"))) == 2
    assert "2 entries" in command("cache", "clear").stdout
    assert downloads(root_of(tmp_path / "cache")) == []


def test_the_command_without_the_hub(command: Callable[..., Any]) -> None:
    assert command("pull", "some/single").returncode == 0
    for env in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        here = command("pull", "some/single", **env)
        assert here.returncode == 0
        assert here.stdout.endswith("some--single\n")
        assert "fetched before" in here.stderr
        away = command("pull", "some/sharded", **env)
        assert (away.returncode, away.stdout) == (2, "")
        assert away.stderr.startswith("anex: error: some/sharded: ")
        assert away.stderr.count("\n") == 1


def test_a_full_disk(command: Callable[..., Any], hub: Hub, tmp_path: Path) -> None:
    full = command("pull", "some/single", largest=5000)
    assert (full.returncode, full.stdout) == (2, "")
    assert "model.safetensors: the file grows larger than the system allows" in full.stderr
    assert full.stderr.count("\n") == 1
    assert incomplete(tmp_path) == [5000]
    hub.asked.clear()
    assert command("pull", "some/single").returncode == 0
    assert hub.downloads() == [("model.safetensors", "bytes=5000-")]


def test_what_was_pulled_is_opened(command: Callable[..., Any], hub: Hub) -> None:
    hub.repos["some/single"]["model.safetensors"] = b"<html>" * 1000
    refused = command("pull", "some/single")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "model.safetensors: not a safetensors file: it is a text" in refused.stderr


def test_a_path_is_checked_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "m.gguf", tmp_path / "model"
    gguf(file, 1)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(tensors(x=[1]))
    (folder / "config.json").write_bytes(CONFIG)
    for path in (file, folder, folder / "model.safetensors"):
        assert main(["pull", str(path)]) == 0
        assert capsys.readouterr().out == f"{path.resolve()}\n"
    assert main(["pull", str(folder), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["path"], content["revision"], content["fetched"]) == (str(folder.resolve()), None, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.gguf"], "none.gguf: no such file"),
        (["./none"], "no such file"),
        (["a/b/c"], "no such file"),
        (["{tmp}/empty"], "no model in this folder"),
        (["{tmp}/pytorch_model.bin"], "not supported: PyTorch pickles"),
        (["{tmp}/text"], "not a GGUF file"),
        (["{tmp}/text", "--file", "*"], "--file chooses on the hub, not on this disk"),
        (["{tmp}/bare"], "config.json: no such file"),
        (["a\nb"], "nor a name on the hub"),
    ],
)
def test_paths_that_are_no_model(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/model.safetensors").write_bytes(tensors(x=[1]))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\0.")
    (tmp_path / "text").write_text("hello, this is a text")
    assert main(["pull", *(a.replace("{tmp}", str(tmp_path)) for a in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("anex: error: ")
    assert message in said.err
    assert said.err.count("\n") == 1
