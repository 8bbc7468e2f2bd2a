"""An encoder whose weights lie in a blob of the cache: programs on demand, and the rows the host adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.errors import EvaluateError, InputError
from anex.files import StrPath
from anex.mil import BlobFile, Literal, Program
from anex.models.encoder.config import Learned
from anex.models.encoder.graph import build
from anex.models.encoder.signature import EncoderSignature, signature
from anex.models.encoder.source import CONFIG, EncoderFile
from anex.models.encoder.weights import TABLES, weight_types
from anex.models.entry import BLOB_FILE, entry, identity
from anex.models.weights import Progress

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]

_LAYOUT = 1
"""Counts up when the same file gives another blob, so that older cache entries are not taken."""


class PreparedEncoder:
    """An encoder whose weights lie in a blob: what the runtime works with.

    Attributes:
        blob_path: The blob file.
        folder: The cache entry.
    """

    def __init__(self, file: EncoderFile, folder: Path, weights: Mapping[str, Literal]) -> None:
        self.file = file
        self.config = file.config
        self.weights = weights
        self.folder = folder
        self.blob_path = folder / BLOB_FILE
        self._blob = BlobFile(self.blob_path)
        self._tables = {role: self._blob.array(weights[role]) for role in TABLES if role in weights}

    @property
    def tokenizer(self) -> Tokenizer:
        """See `EncoderFile.tokenizer`."""
        return self.file.tokenizer

    def program(self, functions: Iterable[str]) -> Program:
        """The program with the named functions; raises as `signature`, or EvaluateError after `close`."""
        self._check_open()
        built = {name: build(self.config, self.weights, self.signature(name)) for name in functions}
        return Program(built)

    def signature(self, function: str) -> EncoderSignature:
        """See `anex.models.encoder.signature`."""
        return signature(self.config, function)

    def rows(self, ids: Sequence[int]) -> Array:
        """What the tables of embeddings say of tokens, added up: float32 `[len(ids), D]`.

        Raises:
            InputError: An id is not in the vocabulary.
            EvaluateError: The model is closed.
        """
        self._check_open()
        index = np.asarray(ids, np.int64)
        if index.size and (index.min() < 0 or index.max() >= self.config.vocab_size):
            raise InputError(f"token ids must lie in 0 … {self.config.vocab_size - 1}")
        rows: Array = self._tables["word"][index]
        if isinstance(self.config.positions, Learned):
            rows = rows + self._tables["position"][_places(index, self.config.positions)]
        if "segment" in self._tables:
            rows = rows + self._tables["segment"][0]
        return rows

    def _check_open(self) -> None:
        if not self._tables:
            raise EvaluateError("the model is closed")

    def close(self) -> None:
        self._tables = {}
        self._blob.close()
        self.file.close()

    def __enter__(self) -> PreparedEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _places(ids: Array, positions: Learned) -> Array:
    """The row of each token in the table of positions."""
    if positions.padding is None:
        return np.arange(len(ids))
    real = ids != positions.padding
    return np.where(real, positions.padding + np.cumsum(real), positions.padding)


def convert_encoder(file: EncoderFile, cache: StrPath, progress: Progress | None = None) -> PreparedEncoder:
    """Bring the weights of an open file into a blob below `cache`, or find them there.

    The result takes the file over; after an error it is closed.

    Raises:
        InputError: A weight does not fit fp16.
        ResourceError: The cache cannot be written.
    """
    try:
        config = file.path / CONFIG
        files = (*file.file.files, *([config] if config.exists() else []))
        name = identity(f"encoder layout {_LAYOUT}", files, file.file.fingerprint())
        folder = Path(cache) / f"{file.path.resolve().stem[:60]}-{name}"
        weights = entry(folder, weight_types(file.sources), lambda blob: file.write(blob, progress))
        return PreparedEncoder(file, folder, weights)
    except BaseException:
        file.close()
        raise
