"""An entry of the cache of converted models: a blob, and an index that is written after it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from anex.errors import AnexError, ResourceError
from anex.files import StrPath, atomic_write, refusal
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
    return _written(folder, write) if weights is None else weights


def _written(folder: Path, write: Callable[[Path], dict[str, Literal]]) -> dict[str, Literal]:
    blob = folder / BLOB_FILE
    _make_folder(blob.parent)
    try:
        weights = write(blob)
        offsets = {name: literal.data.offset for name, literal in weights.items()}
        with atomic_write(folder / INDEX) as file:
            file.write(json.dumps(offsets).encode())
    except BaseException:
        for empty in (blob.parent, folder):
            with suppress(OSError):  # not empty, or never made
                empty.rmdir()
        raise
    return weights


def _read(folder: Path, types: Mapping[str, TensorType]) -> dict[str, Literal] | None:
    """The weights of a finished entry; None where there is none, or it is damaged."""
    try:
        offsets = json.loads((folder / INDEX).read_bytes())
        weights = {name: Literal(type, BlobRef(BLOB_PATH, offsets[name])) for name, type in types.items()}
        with BlobFile(folder / BLOB_FILE) as blob:
            for literal in weights.values():
                blob.array(literal)
    except (OSError, ValueError, TypeError, LookupError, AnexError):
        return None
    return weights


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            "the folder cannot be made", where=str(folder), hint=error.strerror or "check its rights"
        ) from error
