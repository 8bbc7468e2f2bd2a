"""The cache on disk: converted models and compiled functions, with a size limit.

    models/<name>-<identity>/     one converted model each (see `anex.models.prepare`)
    compiled/                     functions that the emulator compiled

The least recently used entry goes first when the limit is exceeded.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anex.errors import InputError
from anex.files import StrPath, refusal
from anex.models import INDEX

FOLDER_VARIABLE = "ANEX_CACHE"
"""Environment variable that names the cache folder."""

LIMIT_VARIABLE = "ANEX_CACHE_LIMIT"
"""Environment variable with the size limit, such as `20G`; `0` is none."""

DEFAULT_LIMIT = 32 << 30

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LARGEST = 2.0**63


def folder(given: StrPath | None = None) -> Path:
    """The cache folder: the given one, else that of the environment, else the system's place for caches."""
    if chosen := given or os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "anex"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anex"


def models(root: Path) -> Path:
    """Where converted models lie."""
    return root / "models"


def compiled(root: Path) -> Path:
    """Where compiled functions lie."""
    return root / "compiled"


def size_of(text: str) -> int:
    """Bytes of a size such as `500M` or `1.5G`; binary units.

    Raises:
        InputError: It is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InputError(f"'{text}' is no size", hint="such as 500M or 20G")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if size > _LARGEST:
        raise InputError(f"'{text[:40]}' is more than any disk holds", hint="such as 500M or 20G")
    return int(size)


def limit() -> int:
    """The size limit in bytes, 0 for none.

    Raises:
        InputError: The environment variable is no size.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    return DEFAULT_LIMIT if text is None else size_of(text)


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder of the cache.

    Attributes:
        used: When it was last used, in seconds since 1970.
    """

    path: Path
    nbytes: int
    used: float

    @property
    def name(self) -> str:
        return self.path.name


def entries(root: Path) -> list[Entry]:
    """What is in the cache, the most recently used first.

    Raises:
        ResourceError: The folder cannot be read.
    """
    paths = [*_folders(models(root)), *(p for p in [compiled(root)] if p.is_dir())]
    found = [Entry(path, _nbytes(path), _used(path)) for path in paths]
    return sorted(found, key=lambda entry: -entry.used)


def touch(path: Path) -> None:
    """Note that an entry is used now; a cache that cannot be written stays as it is."""
    for part in (path / INDEX, path):
        try:
            os.utime(part)
            return
        except OSError:
            continue


def remove(chosen: Iterable[Entry]) -> int:
    """Delete entries; returns the bytes that are free now.

    Raises:
        ResourceError: The system refuses.
    """
    freed = 0
    for entry in chosen:
        try:
            # Without its index an entry counts as not there, whatever becomes of the rest.
            (entry.path / INDEX).unlink(missing_ok=True)
            shutil.rmtree(entry.path)
        except FileNotFoundError:
            continue  # another process was faster
        except OSError as error:
            raise refusal(error, entry.path) from error
        freed += entry.nbytes
    return freed


def evict(root: Path, keep: Iterable[Path], most: int) -> list[Entry]:
    """Delete the least recently used entries until the cache holds at most `most` bytes (0: no limit).

    Args:
        keep: Entries that stay whatever their age.
    """
    if not most:
        return []
    kept = set(keep)
    held = entries(root)
    total, gone = sum(entry.nbytes for entry in held), []
    for entry in reversed(held):
        if total <= most:
            break
        if entry.path not in kept:
            total -= entry.nbytes
            gone.append(entry)
    remove(gone)
    return gone


def settle(root: Path, used: Sequence[Path], most: int) -> None:
    """Note that entries are used now, and let the oldest others go where the cache is full (see `evict`)."""
    for entry in used:
        touch(entry)
    evict(root, used, most)


def _folders(path: Path) -> list[Path]:
    try:
        return [child for child in path.iterdir() if child.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(error, path) from error


def _nbytes(path: Path) -> int:
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _used(path: Path) -> float:
    for part in (path / INDEX, path):
        try:
            return part.stat().st_mtime
        except FileNotFoundError:
            continue
    return time.time()
