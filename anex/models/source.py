"""A model file made ready to run: config, tokenizer, weights in a blob, programs on demand."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from anex.errors import AnexError, InputError, ResourceError
from anex.files import StrPath, atomic_write, refusal
from anex.mil import BLOB_PATH, BlobFile, BlobRef, BlobWriter, Literal, Program, TensorType
from anex.models.config import DecoderConfig, from_metadata
from anex.models.ledger import Ledger
from anex.models.program import build_program
from anex.models.tokenizer.keys import TOKENS
from anex.models.weights import FREQ_FACTORS, Half, Progress, Source, literal_types, resolve, write_blob

if TYPE_CHECKING:
    from anex.formats.gguf import GGUFFile
    from anex.models.tokenizer import Tokenizer

_LAYOUT = 1
"""Counts up when the same file gives another blob, so that older cache entries are not taken."""

_BLOB = BLOB_PATH.removeprefix("@model_path/")
_INDEX = "weights.json"


class ModelFile:
    """A model file that is understood in full, and open.

    Attributes:
        config: The decoder it describes.
        ledger: What became of each key and tensor.
        sources: Role of each weight to where it lies in the file.
    """

    def __init__(
        self, path: Path, gguf: GGUFFile, config: DecoderConfig, ledger: Ledger, sources: Mapping[str, Source]
    ) -> None:
        self.path = path
        self.config = config
        self.ledger = ledger
        self.sources = sources
        self.gguf = gguf

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file.

        Raises:
            InputError: The file has none, or it is malformed.
            UnsupportedError: Its kind or one of its keys is not supported.
        """
        from anex.models.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self.gguf.metadata)

    def write(self, folder: StrPath, progress: Progress | None = None) -> dict[str, Literal]:
        """Write the blob to `folder/weights/weight.bin` and return role → literal.

        Raises:
            InputError: A weight does not fit fp16.
            ResourceError: The disk refuses.
        """
        target = Path(folder) / _BLOB
        _make_folder(target.parent)
        with BlobWriter(target) as writer:
            return write_blob(self.gguf, self.config, self.sources, writer, progress)

    def outline(self, functions: Iterable[str]) -> Program:
        """The named functions with weights that lie nowhere: what can be counted without converting."""
        types = literal_types(self.config, self.sources)
        # Equal constants would become one, so the offsets differ, but for the two views of a tied table.
        offsets = {role: 64 * i for i, role in enumerate(types)}
        if self.config.tied:
            offsets["head"] = offsets["embed"]
        literals = {role: Literal(type, BlobRef(BLOB_PATH, offsets[role])) for role, type in types.items()}
        return build_program(self.config, literals, functions)

    def close(self) -> None:
        self.gguf.close()

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_gguf(path: StrPath) -> ModelFile:
    """Open a GGUF file and account for everything in it; weights are not read yet.

    Raises:
        InputError: The file is malformed or contradicts itself.
        UnsupportedError: It needs something anex does not compute, which is named.
    """
    from anex.formats.gguf import GGUFFile

    gguf = GGUFFile(path)
    try:
        ledger = Ledger(str(path))
        config = from_metadata(gguf.metadata, ledger)
        config, sources = resolve(config, gguf.tensors, ledger)
        _check_vocabulary(gguf.metadata.get(TOKENS), config, str(path))
        if FREQ_FACTORS in gguf.tensors:
            config = _with_freq_factors(config, gguf, str(path))
    except AnexError:
        gguf.close()
        raise
    return ModelFile(Path(path), gguf, config, ledger, sources)


def _check_vocabulary(tokens: Any, config: DecoderConfig, where: str) -> None:
    if isinstance(tokens, Sized) and len(tokens) != config.vocab_size:
        raise InputError(
            f"'{TOKENS}' has {len(tokens)} entries, the embedding table {config.vocab_size} rows", where=where
        )


def _with_freq_factors(config: DecoderConfig, gguf: GGUFFile, where: str) -> DecoderConfig:
    factors = gguf.array(FREQ_FACTORS, np.float32)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise InputError(f"tensor '{FREQ_FACTORS}' holds numbers that divide no frequency", where=where)
    return replace(config, rope=replace(config.rope, freq_factors=tuple(factors.tolist())))


class Prepared:
    """A model whose weights lie in a blob: what the runtime works with.

    Attributes:
        weights: Role of each weight to its literal in the blob.
        blob_path: The blob file; programs call it `BLOB_PATH`.
    """

    def __init__(self, model: ModelFile, folder: Path, weights: Mapping[str, Literal]) -> None:
        self.model = model
        self.config = model.config
        self.weights = weights
        self.blob_path = folder / _BLOB
        self._blob = BlobFile(self.blob_path)
        self._table = self._blob.array(weights["embed"])

    @property
    def tokenizer(self) -> Tokenizer:
        """See `ModelFile.tokenizer`."""
        return self.model.tokenizer

    def program(self, functions: Iterable[str]) -> Program:
        """The program with the named functions (`anex.models.program` names them)."""
        return build_program(self.config, self.weights, functions)

    def embedding(self, ids: ArrayLike) -> Half:
        """Rows of the embedding table, fp16 `[len(ids), dim]`, copied from the memory map.

        Raises:
            InputError: An id is not in the vocabulary.
        """
        index = np.asarray(ids, np.int64)
        if index.size and (index.min() < 0 or index.max() >= self.config.vocab_size):
            raise InputError(f"token ids must lie in 0 … {self.config.vocab_size - 1}")
        return self._table[index]

    def close(self) -> None:
        del self._table
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
    parts.  The index is written after the blob, so an entry is whole or not there.

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
    try:
        weights = model.write(folder, progress)
        _write_index(folder, weights)
    except BaseException:
        for empty in ((folder / _BLOB).parent, folder):
            with suppress(OSError):  # not empty, or never made
                empty.rmdir()
        raise
    return weights


def _identity(model: ModelFile) -> str:
    digest = hashlib.sha256(f"layout {_LAYOUT}".encode())
    for part in model.gguf.files:
        try:
            status = os.stat(part)
        except OSError as error:
            raise refusal(error, part) from error
        digest.update(f"{Path(part).resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _write_index(folder: Path, weights: Mapping[str, Literal]) -> None:
    offsets = {role: literal.data.offset for role, literal in weights.items()}
    with atomic_write(folder / _INDEX) as file:
        file.write(json.dumps(offsets).encode())


def _read_index(folder: Path, types: Mapping[str, TensorType]) -> dict[str, Literal] | None:
    """The weights of a finished cache entry; None where there is none, or it is damaged."""
    try:
        offsets = json.loads((folder / _INDEX).read_bytes())
        weights = {role: Literal(type, BlobRef(BLOB_PATH, offsets[role])) for role, type in types.items()}
        with BlobFile(folder / _BLOB) as blob:
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
