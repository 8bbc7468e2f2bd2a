"""A model whose weights lie in a blob of the cache: programs on demand, and what the host feeds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from anex.errors import EvaluateError, InputError
from anex.files import StrPath
from anex.mil import BlobFile, Literal, Program
from anex.models.entry import BLOB_FILE, entry, identity
from anex.models.feed import Array, Feed
from anex.models.layout import CacheSurface, vocab_tiles
from anex.models.program import build_program
from anex.models.signature import Kind, Signature, caches, host_ports, read_logits, signature
from anex.models.source import ModelFile, load
from anex.models.weights import Half, Progress, literal_types

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer

_LAYOUT = 3
"""Counts up when the same file gives another blob, so that older cache entries are not taken."""


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
        self._tables = {"embed": self._embedding_tiles()}
        if self.config.positions:
            self._tables["positions"] = [(0, self._blob.array(weights["positions"]))]

    @property
    def tokenizer(self) -> Tokenizer:
        """See `ModelFile.tokenizer`."""
        return self.model.tokenizer

    def program(self, functions: Iterable[str]) -> Program:
        """The program with the named functions (see `anex.models.signature`).

        Raises:
            EvaluateError: The model is closed.
        """
        self._check_open()
        return build_program(self.config, self.weights, functions)

    def signature(self, function: str) -> Signature:
        """The ports of a function and what they are for; raises as `anex.models.signature.signature`."""
        return signature(self.config, function)

    def feed(self, function: str, context: int | None = None) -> Feed:
        """What fills the host's ports of a function: call it with ids, positions and cached positions.

        Args:
            context: Most tokens of the conversation; the model's own context if None.
        """
        sig = self.signature(function)
        inputs = {} if sig.kind is Kind.HEAD else host_ports(self.config, context)
        return Feed(sig.columns, sig.cached, inputs, self.rows)

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
        return self.rows("embed", ids)

    def rows(self, table: str, indices: ArrayLike) -> Half:
        """The same of a table by its role: `embed`, or `positions` of a model that learned them.

        Raises:
            InputError: There is no such row.
            EvaluateError: The model is closed.
        """
        self._check_open()
        index = np.asarray(indices, np.int64)
        count, what = {
            "embed": (self.config.vocab_size, "token ids"),
            "positions": (self.config.positions, "positions"),
        }[table]
        if index.size and (index.min() < 0 or index.max() >= count):
            raise InputError(f"{what} must lie in 0 … {count - 1}")
        rows = np.empty((index.size, self.config.dim), np.float16)
        for first, tile in self._tables[table]:
            inside = (index >= first) & (index < first + len(tile))
            rows[inside] = tile[index[inside] - first]
        return rows

    def _embedding_tiles(self) -> list[tuple[int, Array]]:
        tiles = vocab_tiles(self.config)
        return [(tile.first, self._blob.array(self.weights[f"embed{tile.number}"])) for tile in tiles]

    def _check_open(self) -> None:
        if not self._tables:
            raise EvaluateError("the model is closed")

    def close(self) -> None:
        self._tables = {}
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
        InputError: As `load`; or a weight does not fit fp16.
        UnsupportedError: As `load`.
        ResourceError: The cache cannot be written.
    """
    return convert(load(path), cache, progress)


def convert(model: ModelFile, cache: StrPath, progress: Progress | None = None) -> Prepared:
    """The same for an open model file, which the result takes over; after an error it is closed."""
    try:
        files = (*model.file.files, *model.documents)
        name = identity(f"layout {_LAYOUT}", files, model.file.fingerprint())
        folder = Path(cache) / f"{model.path.resolve().stem[:60]}-{name}"
        types = literal_types(model.config, model.sources)
        weights = entry(folder, types, lambda blob: model.write(blob, progress))
        return Prepared(model, folder, weights)
    except BaseException:
        model.close()
        raise
