"""A model file that is understood in full: config, ledger, tokenizer, where its weights lie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
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
from anex.models.roles import FREQ_FACTORS, LONG_FACTORS
from anex.models.rope import Rope
from anex.models.tensors import TensorSource
from anex.models.tokenizer.keys import TOKENS
from anex.models.weights import (
    Progress,
    Source,
    literal_types,
    resolve,
    tied_heads,
    write_blob,
)

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer

CONFIG, SAFETENSORS, INDEX_ENDING = "config.json", ".safetensors", ".safetensors.index.json"


class ModelFile:
    """A model file, open.

    Attributes:
        config: The decoder it describes.
        ledger: What became of each key and tensor.
        sources: Name of each weight to where it lies in the file.
        metadata: The keys of the file, or of `config.json` beside it.
        file: Its tensors.
        documents: Files beside the tensors that have a say in what the weights become.
    """

    def __init__(
        self,
        path: Path,
        file: TensorSource,
        metadata: Mapping[str, Any],
        config: DecoderConfig,
        ledger: Ledger,
        sources: Mapping[str, Source],
        documents: Sequence[Path] = (),
    ) -> None:
        self.path = path
        self.file = file
        self.metadata = metadata
        self.config = config
        self.ledger = ledger
        self.sources = sources
        self.documents = tuple(documents)

    @property
    def name(self) -> str:
        """What the file calls the model; empty if it does not."""
        return str(self.metadata.get("general.name", "")) if not self.documents else self.path.resolve().name

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file, or that of the files beside it.

        Raises:
            InputError: There is none, or it is malformed.
            UnsupportedError: Its kind or one of its keys is not supported.
        """
        from anex.models.tokenizer import Tokenizer

        if self.documents:
            folder = self.documents[0].parent
            return Tokenizer.from_json(folder, vocab_size=self.config.vocab_size)
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


def load(path: StrPath) -> ModelFile:
    """Open a model: a GGUF file, a folder with `config.json` and safetensors, or such a safetensors file.

    Raises:
        InputError: There is no such model, it is malformed or contradicts itself.
        UnsupportedError: It needs something anex does not compute, which is named.
    """
    name = os.fspath(path)
    of_folder = os.path.isdir(path) or name.endswith((SAFETENSORS, INDEX_ENDING, CONFIG))
    return load_safetensors(path) if of_folder else load_gguf(path)


def load_safetensors(path: StrPath) -> ModelFile:
    """The same for a model folder of transformers, or a safetensors file with `config.json` beside it."""
    from anex.formats.safetensors import SafetensorsFile, SafetensorsFolder, read_json
    from anex.models.hf import from_config

    named = Path(path)
    folder = named if named.is_dir() else named.parent
    file: TensorSource
    file = SafetensorsFile(named) if named.suffix == SAFETENSORS else SafetensorsFolder(folder)
    try:
        document = folder / CONFIG
        content = read_json(document)
        ledger = Ledger(str(document))
        config, file, sources = from_config(content, file, ledger)
    except BaseException:
        file.close()
        raise
    return ModelFile(named, file, content, config, ledger, sources, [document])


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
        config = _with_factors(config, file, sources, str(path))
    except BaseException:
        file.close()
        raise
    return ModelFile(Path(path), file, file.metadata, config, ledger, sources)


def _check_vocabulary(tokens: Any, config: DecoderConfig, where: str) -> None:
    if isinstance(tokens, Sized) and len(tokens) != config.vocab_size:
        raise InputError(
            f"'{TOKENS}' has {len(tokens)} entries, the embedding table {config.vocab_size} rows", where=where
        )


def _with_factors(
    config: DecoderConfig, file: TensorSource, sources: dict[str, Source], where: str
) -> DecoderConfig:
    """The config with the divisors of RoPE frequencies that are tensors; takes these out of the sources."""
    found = {
        role: _factors(file, sources.pop(role).tensor, where)
        for role in (FREQ_FACTORS, LONG_FACTORS)
        if role in sources
    }

    def completed(rope: Rope | None) -> Rope | None:
        if rope is None:
            return None
        factors, long = found.get(FREQ_FACTORS, rope.freq_factors), None
        if rope.long and LONG_FACTORS in found:
            long = replace(rope.long, factors=found[LONG_FACTORS])
        return replace(rope, freq_factors=factors, long=long)

    local = config.local and replace(config.local, rope=completed(config.local.rope))
    return replace(config, rope=completed(config.rope), local=local)


def _factors(file: TensorSource, tensor: str, where: str) -> tuple[float, ...]:
    factors = file.array(tensor, np.float32)
    if not (np.isfinite(factors).all() and factors.all()):
        raise InputError(f"tensor '{tensor}' holds numbers that divide no frequency", where=where)
    numbers: list[float] = factors.tolist()
    return tuple(numbers)
