"""A model whose weights lie in a blob of the cache: programs on demand, and what the host feeds them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from anex.errors import AnexError, InputError, ResourceError
from anex.files import StrPath, atomic_write, refusal
from anex.mil import BLOB_PATH, MODEL_PATH, BlobFile, BlobRef, Literal, Program, TensorType
from anex.models.feed import Array, Feed
from anex.models.layout import CacheSurface, vocab_tiles
from anex.models.program import build_program
from anex.models.signature import Kind, Signature, caches, host_ports, read_logits, signature
from anex.models.source import ModelFile, load_gguf
from anex.models.weights import Half, Progress, literal_types

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer

_LAYOUT = 2
"""Counts up when the same file gives another blob, so that older cache entries are not taken."""

BLOB_FILE = BLOB_PATH.removeprefix(MODEL_PATH)
"""Where the blob lies in the folder that a program calls its model path."""

INDEX = "weights.json"
"""The file of a cache entry that is written last: where each weight lies in the blob."""


class Prepared:
    """A model whose weights lie in a blob: what the runtime works with.

    Attributes:
        weights: Name of each weight to its literal in the blob.
        blob_path: The blob file; programs call it `BLOB_PATH`.
        folder: The cache entry.
    """

    def __init__(self, model: ModelFile, folder: Path, weights: Mapping[str, Literal]) -> None:
        self.model = model
        self.config = model.config
        self.weights = weights
        self.folder = folder
        self.blob_path = folder / BLOB_FILE
        self._blob = BlobFile(self.blob_path)
        self._tiles = [
            (tile, self._blob.array(weights[f"embed{tile.number}"])) for tile in vocab_tiles(self.config)
        ]

    @property
    def tokenizer(self) -> Tokenizer:
        """See `ModelFile.tokenizer`."""
        return self.model.tokenizer

    def program(self, functions: Iterable[str]) -> Program:
        """The program with the named functions (see `anex.models.signature`)."""
        return build_program(self.config, self.weights, functions)

    def signature(self, function: str) -> Signature:
        """The ports of a function and what they are for; raises as `anex.models.signature.signature`."""
        return signature(self.config, function)

    def feed(self, function: str) -> Feed:
        """What fills the host's ports of a function: call it with ids, positions and cached positions."""
        sig = self.signature(function)
        inputs = {} if sig.kind is Kind.HEAD else host_ports(self.config)
        return Feed(sig.columns, sig.cached, inputs, self.embedding)

    def logits(self, outputs: Mapping[str, Array], count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """See `anex.models.signature.read_logits`."""
        return read_logits(self.config, outputs, count)

    @property
    def caches(self) -> tuple[CacheSurface, ...]:
        """The surfaces of its KV cache."""
        return caches(self.config)

    def embedding(self, ids: ArrayLike) -> Half:
        """Rows of the embedding table, fp16 `[len(ids), dim]`, copied from the memory map.

        Raises:
            InputError: An id is not in the vocabulary.
        """
        index = np.asarray(ids, np.int64)
        if index.size and (index.min() < 0 or index.max() >= self.config.vocab_size):
            raise InputError(f"token ids must lie in 0 … {self.config.vocab_size - 1}")
        rows = np.empty((index.size, self.config.dim), np.float16)
        for tile, table in self._tiles:
            inside = (index >= tile.first) & (index < tile.first + tile.count)
            rows[inside] = table[index[inside] - tile.first]
        return rows

    def close(self) -> None:
        self._tiles = []
        self._blob.close()
        self.model.close()

    def __enter__(self) -> Prepared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def prepare(path: StrPath, cache: StrPath, progress: Progress | None = None) -> Prepared:
    """Open a model file and bring its weights into a blob below `cache`, or find them there.

    A cache entry belongs to one content: name, size and time of the file's
    parts, its header, and samples of its tensors.  The index is written after
    the blob, so an entry is whole or not there.

    Raises:
        InputError: As `load_gguf`; or a weight does not fit fp16.
        UnsupportedError: As `load_gguf`.
        ResourceError: The cache cannot be written.
    """
    return convert(load_gguf(path), cache, progress)


def convert(model: ModelFile, cache: StrPath, progress: Progress | None = None) -> Prepared:
    """The same for an open model file, which the result takes over; after an error it is closed."""
    try:
        folder = Path(cache) / f"{model.path.stem[:60]}-{_identity(model)}"
        weights = _read_index(folder, literal_types(model.config, model.sources))
        if weights is None:
            weights = _written(model, folder, progress)
        return Prepared(model, folder, weights)
    except BaseException:
        model.close()
        raise


def _written(model: ModelFile, folder: Path, progress: Progress | None) -> dict[str, Literal]:
    blob = folder / BLOB_FILE
    _make_folder(blob.parent)
    try:
        weights = model.write(blob, progress)
        _write_index(folder, weights)
    except BaseException:
        for empty in (blob.parent, folder):
            with suppress(OSError):  # not empty, or never made
                empty.rmdir()
        raise
    return weights


def _identity(model: ModelFile) -> str:
    digest = hashlib.sha256(f"layout {_LAYOUT}".encode())
    for part in model.file.files:
        try:
            status = os.stat(part)
        except OSError as error:
            raise refusal(error, part) from error
        digest.update(f"{Path(part).resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    digest.update(model.file.fingerprint())
    return digest.hexdigest()[:16]


def _write_index(folder: Path, weights: Mapping[str, Literal]) -> None:
    offsets = {name: literal.data.offset for name, literal in weights.items()}
    with atomic_write(folder / INDEX) as file:
        file.write(json.dumps(offsets).encode())


def _read_index(folder: Path, types: Mapping[str, TensorType]) -> dict[str, Literal] | None:
    """The weights of a finished cache entry; None where there is none, or it is damaged."""
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
