"""`pull`: a model of the hub in a folder of the cache, whole, checked, and there without a network later.

<cache>/hub/<owner>--<name>[@<revision>]/    the files, named as in the repository
    .anex-pull.json                     commit, and the digest of each file that is here
    .incomplete/<digest>                what is not whole yet
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from anex.errors import AnexError, InputError, ResourceError
from anex.files import StrPath, atomic_write, refusal
from anex.formats.gguf import quoted
from anex.formats.hub.choose import Choice, choose
from anex.formats.hub.remote import Listing, Remote, RepoFile, UnreachableError, is_plain
from anex.formats.hub.transfer import INCOMPLETE, fetch, part_of
from anex.formats.safetensors import INDEX, read_json, shards_of_index

Progress = Callable[[str, int, int], None]
"""Called with what is done, bytes so far, bytes in all."""

_RECORD = ".anex-pull.json"
_DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here.

    Attributes:
        path: What to open: a GGUF file, or the folder.
        revision: The commit.
        files: Size of each file by name.
        fetched: Bytes of the files that were not here before.
        offline: Why the hub was not asked; empty if it was.
    """

    path: Path
    revision: str
    files: dict[str, int]
    fetched: int
    offline: str = ""

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        return sum(self.files.values())


def root_of(cache: StrPath) -> Path:
    """The folder of all pulled models in a cache."""
    return Path(cache) / "hub"


def folder_of(root: StrPath, name: str, revision: str | None = None) -> Path:
    """Where a model lies, whether it is there or not."""
    branch = "" if revision in (None, _DEFAULT_REVISION) else "@" + quote(str(revision), safe="")
    return Path(root) / (name.replace("/", "--") + branch)


@dataclass(frozen=True, slots=True)
class Download:
    """The folder of a model that was pulled, complete or not.

    Attributes:
        nbytes: Size of all that is in it.
        pulled: When it was last asked for, in seconds since 1970.
    """

    path: Path
    nbytes: int
    pulled: float


def downloads(root: StrPath) -> list[Download]:
    """All models that were pulled.

    Raises:
        ResourceError: The folder cannot be read.
    """
    try:
        return [_download(path) for path in sorted(_children(Path(root))) if path.is_dir()]
    except OSError as error:
        raise refusal(error, root) from error


def _download(path: Path) -> Download:
    sizes = sum(_size(child) for child in path.rglob("*") if child.is_file())
    asked = (path / _RECORD) if (path / _RECORD).exists() else path
    return Download(path, sizes, asked.stat().st_mtime)


def pull(
    name: str,
    root: StrPath,
    *,
    pattern: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> Pulled:
    """Fetch what is missing of a model.

    Args:
        name: `owner/name` on the hub.
        root: Folder of all pulled models.
        pattern: Shell pattern that chooses among the files; see `choose`.
        revision: Branch, tag or commit; by default the main branch.
        endpoint: Address of the hub; by default `HF_ENDPOINT`, or the public one.

    Raises:
        InputError: No such model, revision or file, a gate, several models to choose from.
        UnsupportedError: The weights are Python pickles.
        ResourceError: The disk is full or refuses; the hub cannot be reached
            (UnreachableError) and the model is not here already.
    """
    remote, folder = Remote(name, endpoint), folder_of(root, name, revision)
    record = _Record(folder)
    try:
        listing = remote.listing(revision)
    except UnreachableError as error:
        here = _here(record, pattern, name, str(error))
        if here is None:
            raise
        return here
    choice = choose(listing.files, pattern, name)
    record.take(listing)
    job = _Job(remote, listing, record, progress)
    if choice.index:
        job.bring([INDEX])  # it says which shards there are
    files = [*choice.files, *_shards(folder, choice)]
    if missing := [file for file in files if file not in listing.files]:
        raise InputError(f"the index names {quoted(missing[0])}, which is not on the hub", where=name)
    job.bring(files)
    return _pulled(folder, listing.revision, choice, {f: listing.files[f].size for f in files}, job.fetched)


def _shards(folder: Path, choice: Choice) -> list[str]:
    if not choice.index:
        return []
    return [shard for shard in shards_of_index(folder / INDEX) if shard not in choice.files]


def _pulled(
    folder: Path, revision: str, choice: Choice, files: dict[str, int], fetched: int, offline: str = ""
) -> Pulled:
    path = folder if choice.model is None else folder / choice.model
    return Pulled(path.resolve(), revision, files, fetched, offline)


def _here(record: _Record, pattern: str | None, name: str, why: str) -> Pulled | None:
    """The model out of what was fetched before, or None where that is not all of it."""
    held = {file: known.size for file, known in record.files.items() if record.holds(known)}
    try:
        choice = choose(held, pattern, name)
        files = [*choice.files, *_shards(record.folder, choice)]
    except AnexError:
        return None
    if not held or not all(file in held for file in files):
        return None
    return _pulled(record.folder, record.revision, choice, {file: held[file] for file in files}, 0, why)


class _Job:
    """Brings files and says how far it is."""

    def __init__(self, remote: Remote, listing: Listing, record: _Record, progress: Progress | None) -> None:
        self._remote, self._listing, self._record, self._progress = remote, listing, record, progress
        self.fetched = 0

    def bring(self, names: Iterable[str]) -> None:
        """Fetch those of the files that are not here."""
        files = [self._listing.files[name] for name in names]
        wanted = [file for file in files if not self._record.holds(file)]
        folder = self._record.folder
        _check_space(folder, sum(file.size - _size(part_of(folder, file)) for file in wanted))
        total, done = sum(file.size for file in wanted), 0
        for file in wanted:
            fetch(self._remote, file, self._listing.revision, folder, self._reporter(done, total))
            self._record.add(file)
            done += file.size
        self.fetched += total

    def _reporter(self, done: int, total: int) -> Callable[[int], None]:
        def report(here: int) -> None:
            if self._progress is not None:
                self._progress(f"Fetching {self._remote.name}", done + here, total)

        return report


class _Record:
    """What is in the folder of a model; a record that cannot be read counts as none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.revision = ""
        self.files: dict[str, RepoFile] = {}
        try:
            content = read_json(folder / _RECORD)
            self.revision = str(content["revision"])
            for name, (size, identity) in content["files"].items():
                if is_plain(name):
                    self.files[name] = RepoFile(name, int(size), str(identity))
        except (AnexError, KeyError, TypeError, ValueError, AttributeError):
            self.files.clear()

    def holds(self, file: RepoFile) -> bool:
        """Whether that very file is here."""
        return self.files.get(file.name) == file and _size(self.folder / file.name) == file.size

    def add(self, file: RepoFile) -> None:
        """Note that the file is here.

        Raises:
            ResourceError: The disk refuses.
        """
        self.files[file.name] = file
        self._write()

    def take(self, listing: Listing) -> None:
        """Go to another revision: files that the repository no longer has go, and parts of old ones.

        Raises:
            ResourceError: The disk refuses.
        """
        current = {file.id for file in listing.files.values()}
        try:
            for name in [name for name in self.files if name not in listing.files]:
                (self.folder / name).unlink(missing_ok=True)
                del self.files[name]
            for part in _children(self.folder / INCOMPLETE):
                if part.name not in current:
                    part.unlink(missing_ok=True)
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refusal(error, error.filename or self.folder) from error
        self.revision = listing.revision
        self._write()

    def _write(self) -> None:
        files = {file.name: [file.size, file.id] for file in self.files.values()}
        with atomic_write(self.folder / _RECORD) as out:
            out.write(json.dumps({"revision": self.revision, "files": files}, indent=1).encode())


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _check_space(folder: Path, needed: int) -> None:
    """Refuse before hours of loading what the disk cannot hold in the end."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise refusal(error, folder) from error
    if needed > free:
        raise ResourceError(
            f"{needed} bytes are to come, the disk has {free} left",
            where=str(folder),
            hint="free some space, or choose another folder with --cache-dir",
        )
