"""One file from the hub to the disk: resumed where it stopped, checked, whole or not there."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from anex.errors import InputError, ResourceError
from anex.files import refusal
from anex.formats.hub.remote import Remote, RepoFile, UnreachableError

INCOMPLETE = ".incomplete"
"""Folder, in that of the model, of what is not whole yet; a file there is named by its digest."""

PAUSES = (1.0, 2.0, 4.0)
"""Seconds to wait before each new try; one that brought bytes begins them anew."""

_PIECE = 1 << 20


def part_of(folder: Path, file: RepoFile) -> Path:
    """Where the bytes of a file gather."""
    return folder / INCOMPLETE / file.id


def fetch(remote: Remote, file: RepoFile, revision: str, folder: Path, report: Callable[[int], None]) -> None:
    """Bring a file into the folder, under its name in the repository.

    An interrupt, a lost connection or a full disk leaves the bytes that came;
    the next call goes on from there.

    Args:
        report: Told how many bytes of the file are here.

    Raises:
        InputError: The hub sends other bytes than it promised, or needs permission.
        ResourceError: The disk refuses, another process fetches the same file,
            or the hub cannot be reached.
    """
    part, target = part_of(folder, file), folder / file.name
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part) as out:
            _fill(_Part(out, file, report), remote, revision)
            os.fsync(out.fileno())
            os.replace(part, target)
    except OSError as error:
        raise refusal(error, target) from error


@contextmanager
def _alone(part: Path) -> Iterator[BinaryIO]:
    """The part, open to read and write, for this process only."""
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
    with open(descriptor, "r+b", buffering=0) as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError("another process fetches this file", where=str(part)) from None
        yield out


class _Part:
    """The bytes that are here, and their digest so far."""

    def __init__(self, out: BinaryIO, file: RepoFile, report: Callable[[int], None]) -> None:
        self.file = file
        self._out, self._report = out, report
        self._digest, self.size = file.digest(), 0
        while self.size <= file.size and (piece := out.read(_PIECE)):
            self._digest.update(piece)
            self.size += len(piece)
        if self.size > file.size:
            self.restart()
        report(self.size)

    def restart(self) -> None:
        """Forget all of it."""
        self._out.seek(0)
        self._out.truncate()
        self._digest, self.size = self.file.digest(), 0

    def add(self, piece: bytes) -> bool:
        """Append; False where that is more than the file has."""
        if self.size + len(piece) > self.file.size:
            return False
        view = memoryview(piece)
        while view:  # an unbuffered file may write less than it is given
            view = view[self._out.write(view) :]
        self._digest.update(piece)
        self.size += len(piece)
        self._report(self.size)
        return True

    @property
    def is_right(self) -> bool:
        return self.size == self.file.size and self._digest.hexdigest() == self.file.id


def _fill(part: _Part, remote: Remote, revision: str) -> None:
    pauses = list(PAUSES)
    while part.size < part.file.size:
        before = part.size
        try:
            _receive(part, remote, revision)
            stopped = UnreachableError(
                f"the hub ended {part.file.name} after {part.size} of {part.file.size} bytes",
                where=remote.name,
            )
        except UnreachableError as error:
            stopped = error
        if part.size > before:
            pauses = list(PAUSES)
        elif not pauses:
            raise UnreachableError(
                stopped.what, where=remote.name, hint="the same command goes on where this one stopped"
            ) from stopped
        else:
            time.sleep(pauses.pop(0))
    if not part.is_right:
        part.restart()
        raise _wrong(part, remote)


def _receive(part: _Part, remote: Remote, revision: str) -> None:
    """What one answer of the hub brings."""
    with remote.content(part.file, revision, part.size) as (start, pieces):
        if start != part.size:
            part.restart()
        for piece in pieces:
            if not part.add(piece):
                part.restart()
                raise _wrong(part, remote)


def _wrong(part: _Part, remote: Remote) -> InputError:
    return InputError(
        f"the hub sent other bytes for {part.file.name} than its digest says",
        where=remote.name,
        hint="try again; if it stays, a proxy or mirror changes the files",
    )
