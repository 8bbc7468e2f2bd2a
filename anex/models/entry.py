"""An entry of the cache of converted models: a blob, and an index that is written after it.

The index says how large the blob is and when it was written, and has a digest of all it says; an entry
that differs in any of it is made again.  The numbers in the blob are not read for that: bits that change
in them while size and time stay are not noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anex.errors import AnexError, ResourceError
from anex.files import StrPath, atomic_write, map_file, refusal
from anex.mil import BLOB_PATH, MODEL_PATH, BlobFile, BlobRef, Literal, TensorType

BLOB_FILE = BLOB_PATH.removeprefix(MODEL_PATH)
"""Where the blob lies in the folder that a program calls its model path."""

INDEX = "weights.json"
"""The file of a cache entry that is written last: where each weight lies in the blob."""


def identity(layout: str, files: Iterable[StrPath], fingerprint: bytes) -> str:
    """What tells the entries of two contents apart: name, size and time of the files, and a fingerprint.

    Args:
        layout: Changes when the same files give another blob.
    """
    digest = hashlib.sha256(layout.encode())
    for part in files:
        try:
            status = os.stat(part)
        except OSError as error:
            raise refusal(error, part) from error
        digest.update(f"{Path(part).resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    digest.update(fingerprint)
    return digest.hexdigest()[:16]


def entry(
    folder: Path, types: Mapping[str, TensorType], write: Callable[[Path], dict[str, Literal]]
) -> dict[str, Literal]:
    """The weights of an entry, which is written where it is not there in full.

    Args:
        types: Of the weights.
        write: Writes the blob at a path and returns weight → literal.

    Raises:
        ResourceError: The cache cannot be written.
    """
    weights = _read(folder, types)
    return _written(folder, types, write) if weights is None else weights


def _written(
    folder: Path, types: Mapping[str, TensorType], write: Callable[[Path], dict[str, Literal]]
) -> dict[str, Literal]:
    blob = folder / BLOB_FILE
    _make_folder(blob.parent)
    try:
        for path in (blob, folder / INDEX):
            if path.is_dir() and not path.is_symlink():  # a file cannot replace it
                shutil.rmtree(path, ignore_errors=True)
        weights = write(blob)
        index = _index(blob, types, {name: literal.data.offset for name, literal in weights.items()})
        with atomic_write(folder / INDEX) as file:
            file.write(json.dumps(index).encode())
    except BaseException:
        for empty in (blob.parent, folder):
            with suppress(OSError):  # not empty, or never made
                empty.rmdir()
        raise
    return weights


def _read(folder: Path, types: Mapping[str, TensorType]) -> dict[str, Literal] | None:
    """The weights of a finished entry; None where there is none, or it is damaged."""
    try:
        found = json.loads(bytes(map_file(folder / INDEX)))
        offsets = found["offsets"]
        if found != _index(folder / BLOB_FILE, types, offsets):
            return None
        weights = {name: Literal(type, BlobRef(BLOB_PATH, offsets[name])) for name, type in types.items()}
        with BlobFile(folder / BLOB_FILE) as blob:
            for literal in weights.values():
                blob.array(literal)
    except (OSError, ValueError, TypeError, LookupError, RecursionError, AnexError):
        return None
    return weights


def _index(blob: Path, types: Mapping[str, TensorType], offsets: Any) -> dict[str, Any]:
    """What the index of a blob says, and a digest of that and of the types of the weights."""
    status = blob.stat()
    said = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "offsets": offsets}
    shown = {name: str(type) for name, type in types.items()}
    digest = hashlib.sha256(json.dumps([said, shown], sort_keys=True).encode())
    return said | {"sha256": digest.hexdigest()}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            "the folder cannot be made", where=str(folder), hint=error.strerror or "check its rights"
        ) from error
