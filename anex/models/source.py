"""A model file that is understood in full: config, ledger, tokenizer, where its weights lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from anex.errors import InputError
from anex.files import StrPath
from anex.mil import BLOB_PATH, BlobRef, BlobWriter, Literal, Program
from anex.models.config import DecoderConfig
from anex.models.ledger import Ledger
from anex.models.metadata import from_metadata
from anex.models.program import build_program
from anex.models.tensors import TensorSource
from anex.models.tokenizer.keys import TOKENS
from anex.models.weights import (
    FREQ_FACTORS,
    Progress,
    Source,
    literal_types,
    resolve,
    tied_heads,
    write_blob,
)

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer


class ModelFile:
    """A model file, open.

    Attributes:
        config: The decoder it describes.
        ledger: What became of each key and tensor.
        sources: Name of each weight to where it lies in the file.
        metadata: The keys of the file.
        file: Its tensors.
    """

    def __init__(
        self,
        path: Path,
        file: TensorSource,
        metadata: Mapping[str, Any],
        config: DecoderConfig,
        ledger: Ledger,
        sources: Mapping[str, Source],
    ) -> None:
        self.path = path
        self.file = file
        self.metadata = metadata
        self.config = config
        self.ledger = ledger
        self.sources = sources

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file.

        Raises:
            InputError: The file has none, or it is malformed.
            UnsupportedError: Its kind or one of its keys is not supported.
        """
        from anex.models.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self.metadata)

    def write(self, blob: StrPath, progress: Progress | None = None) -> dict[str, Literal]:
        """Write the weights to a blob file and return name → literal.

        Raises:
            InputError: A weight does not fit fp16.
            ResourceError: The disk refuses.
        """
        with BlobWriter(blob) as writer:
            return write_blob(self.file, self.config, self.sources, writer, progress)

    def weightless(self, functions: Iterable[str]) -> Program:
        """The named functions with weights that lie nowhere: what can be counted without converting."""
        types = literal_types(self.config, self.sources)
        # Equal constants would become one, so the offsets differ, but for the two views of a tied table.
        offsets = {name: 64 * i for i, name in enumerate(types)}
        offsets |= {head: offsets[tile] for head, (tile, _) in tied_heads(self.config).items()}
        literals = {name: Literal(type, BlobRef(BLOB_PATH, offsets[name])) for name, type in types.items()}
        return build_program(self.config, literals, functions)

    def close(self) -> None:
        self.file.close()

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

    file = GGUFFile(path)
    try:
        ledger = Ledger(str(path))
        config = from_metadata(file.metadata, ledger)
        config, sources = resolve(config, file.tensors, ledger)
        _check_vocabulary(file.metadata.get(TOKENS), config, str(path))
        if factors := sources.pop(FREQ_FACTORS, None):
            config = _with_freq_factors(config, file, factors.tensor, str(path))
    except BaseException:
        file.close()
        raise
    return ModelFile(Path(path), file, file.metadata, config, ledger, sources)


def _check_vocabulary(tokens: Any, config: DecoderConfig, where: str) -> None:
    if isinstance(tokens, Sized) and len(tokens) != config.vocab_size:
        raise InputError(
            f"'{TOKENS}' has {len(tokens)} entries, the embedding table {config.vocab_size} rows", where=where
        )


def _with_freq_factors(config: DecoderConfig, file: TensorSource, tensor: str, where: str) -> DecoderConfig:
    factors = file.array(tensor, np.float32)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise InputError(f"tensor '{tensor}' holds numbers that divide no frequency", where=where)
    return replace(config, rope=replace(config.rope, freq_factors=tuple(factors.tolist())))
