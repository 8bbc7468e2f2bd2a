"""The cache on disk: sizes, ages, eviction."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anex.errors import InputError
from anex.runtime import store


def entry(root: Path, name: str, size: int, used: int) -> Path:
    path = store.models(root) / name
    (path / "weights").mkdir(parents=True)
    (path / "weights/weight.bin").write_bytes(bytes(size))
    (path / "weights.json").write_bytes(b"")
    os.utime(path / "weights.json", (used, used))
    return path


def test_entries_and_eviction(tmp_path: Path) -> None:
    assert store.entries(tmp_path / "none") == []
    old, middle, new = (entry(tmp_path, name, 100, age) for name, age in (("b", 10), ("a", 20), ("c", 30)))
    assert [(e.name, e.nbytes, e.used) for e in store.entries(tmp_path)] == [
        ("c", 100, 30),
        ("a", 100, 20),
        ("b", 100, 10),
    ]
    assert store.evict(tmp_path, (), 0) == []
    assert store.evict(tmp_path, (), 300) == []
    assert [e.path for e in store.evict(tmp_path, [old], 250)] == [middle]
    store.touch(old)
    assert [e.path for e in store.evict(tmp_path, (), 100)] == [new]
    assert old.exists()
    assert store.remove(store.entries(tmp_path)) == 100
    assert store.entries(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("123", 123), ("2k", 2048), ("1.5M", 3 << 19), ("20G", 20 << 30), ("1 TiB", 1 << 40)],
)
def test_sizes(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.size_of(text) == size
    monkeypatch.setenv(store.LIMIT_VARIABLE, text)
    assert store.limit() == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1X", "1e9", "nan"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(InputError, match="is no size"):
        store.size_of(text)


def test_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(store.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert store.folder() == Path("/caches/anex")
    monkeypatch.setenv(store.FOLDER_VARIABLE, "/mine")
    assert store.folder() == Path("/mine")
    assert store.folder("/given") == Path("/given")
