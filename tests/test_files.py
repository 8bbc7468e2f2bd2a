"""Files appear whole or not at all, and what the system refuses becomes one clear line."""

from __future__ import annotations

import errno
import os
import resource
import socket
from pathlib import Path

import pytest

from anex.errors import InputError, ResourceError
from anex.files import atomic_write, map_file


def test_replaces_the_target_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    with atomic_write(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_writes_through_a_symbolic_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    with atomic_write(link) as file:
        file.write(b"x")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_nothing_is_left_after_an_error(tmp_path: Path, error: BaseException) -> None:
    def attempt() -> None:
        with atomic_write(tmp_path / "a") as file:
            file.write(b"x" * 100)
            raise error

    with pytest.raises(type(error)):
        attempt()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="no space left") as caught, atomic_write(tmp_path / "a") as file:
        file.write(b"x")
    assert caught.value.where == str(tmp_path / "a")
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_limit_hit_while_writing_is_said_and_cleaned_up(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(ResourceError, match="larger than"), atomic_write(tmp_path / "a") as file:
            file.write(bytes(3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, what in (
        (tmp_path / "none" / "a", "folder does not exist"),
        (tmp_path, "a folder"),
        (tmp_path / "file" / "a", "not a folder"),
        (tmp_path / "a\0b", "not valid"),
    ):
        with pytest.raises(InputError, match=what), atomic_write(path):
            pass


def test_an_error_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a"):
        (tmp_path / "source").read_bytes()


def test_map_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    view = map_file(path)
    assert view.readonly
    assert bytes(view) == b"abc"
    path.write_bytes(b"")
    assert bytes(map_file(path)) == b""


def test_what_is_no_regular_file_is_not_mapped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    for name, kind in (
        ("pipe", InputError),
        ("socket", ResourceError),
        (".", InputError),
        ("none", InputError),
        ("a\0b", InputError),
    ):
        with pytest.raises(kind):
            map_file(tmp_path / name)
    with pytest.raises(InputError):
        map_file("/dev/zero")


def test_what_a_killed_writer_left_goes_with_the_next_write_and_a_living_one_is_spared(tmp_path):
    target = tmp_path / "weight.bin"
    abandoned = tmp_path / ".weight.bin.0123456789abcdef.tmp"
    abandoned.write_bytes(b"x" * 100)
    with atomic_write(target) as first:
        assert not abandoned.exists()
        with atomic_write(target) as second:
            second.write(b"second")
        first.write(b"first")
    assert target.read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["weight.bin"]
