"""An encoder's file or folder, understood in full: config, ledger, tokenizer, where its weights lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from anex.errors import AnexError, InputError, UnsupportedError
from anex.files import StrPath
from anex.formats.gguf import GGUFFile, quoted
from anex.formats.safetensors import SafetensorsFolder, read_json
from anex.mil import BlobWriter, Literal
from anex.models.encoder.config import EncoderConfig, Learned, Pooling, Rotary
from anex.models.encoder.graph import NAMES
from anex.models.encoder.sentence import pooling_of
from anex.models.encoder.tables import Table, families, read_fields, table
from anex.models.encoder.weights import Source, resolve, write_blob
from anex.models.ledger import Ledger
from anex.models.tensors import TensorSource
from anex.models.tokenizer import keys as tokenizer_keys
from anex.models.weights import Progress

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer

CONFIG = "config.json"

_GGUF_POOLINGS: Mapping[int, str | None] = {-1: None, 0: None, 1: "mean", 2: "cls", 3: "last"}


class EncoderFile:
    """An encoder's file or folder, open.

    Attributes:
        ledger: What became of each key and tensor.
        sources: Weight → where it lies in the file.
    """

    def __init__(
        self,
        path: Path,
        file: TensorSource,
        config: EncoderConfig,
        ledger: Ledger,
        sources: Mapping[str, Source],
        tokenizer: Callable[[], Tokenizer],
    ) -> None:
        self.path = path
        self.file = file
        self.config = config
        self.ledger = ledger
        self.sources = sources
        self._tokenizer = tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file.

        Raises:
            InputError: The file has none, it is malformed, or it has more tokens than the model.
            UnsupportedError: Its kind or one of its keys is not supported.
        """
        return self._tokenizer()

    def write(self, blob: StrPath, progress: Progress | None = None) -> dict[str, Literal]:
        """Write the weights to a blob file and return weight → literal; raises as `write_blob`."""
        with BlobWriter(blob) as writer:
            return write_blob(self.file, self.config, self.sources, writer, progress)

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> EncoderFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_encoder(path: StrPath) -> bool:
    """Whether a file or folder says of itself that it is an encoder that anex has.

    False for what cannot be read: whoever opens it then says why.
    """
    try:
        if os.path.isdir(path):
            return read_json(Path(path) / CONFIG).get("model_type") in [*families("hf")]
        if os.fspath(path).endswith(".gguf"):
            with GGUFFile(path) as file:
                named = file.metadata.get("general.architecture")
                return isinstance(named, str) and named in families("gguf")
    except (AnexError, ValueError, OSError):
        return False
    return False


def load_encoder_file(path: StrPath) -> EncoderFile:
    """Open an encoder and account for everything in it; weights are not read yet.

    Args:
        path: A GGUF file, or a folder with `config.json`, safetensors and `tokenizer.json`.

    Raises:
        InputError: It is malformed or contradicts itself.
        UnsupportedError: It needs something that anex does not compute, which is named.
    """
    return _from_folder(Path(path)) if os.path.isdir(path) else _from_gguf(Path(path))


def _from_gguf(path: Path) -> EncoderFile:
    from anex.models.tokenizer import Tokenizer

    file = GGUFFile(path)
    try:
        metadata, ledger = file.metadata, Ledger(str(path))
        known = _table("gguf", "architecture", metadata.get("general.architecture"), ledger)
        fields = read_fields(metadata, known, ledger)
        for key in metadata:
            if key in tokenizer_keys.CONSUMED:
                ledger.used("key", key, "tokenizer")
            elif not ledger.knows("key", key) and (reason := tokenizer_keys.neutral_reason(key)):
                ledger.neutral("key", key, reason)
        ledger.close("key", metadata)
        if fields["pooling_type"] not in _GGUF_POOLINGS:
            raise UnsupportedError(f"'bert.pooling_type' {fields['pooling_type']}", where=str(path))
        pooling = Pooling(_GGUF_POOLINGS[fields["pooling_type"]])
        config, sources = resolve(_config(known, fields, pooling, ledger), known, file.tensors, ledger)
        if "segment" not in sources:
            config = replace(config, segments=0)
    except BaseException:
        file.close()
        raise
    return EncoderFile(path, file, config, ledger, sources, lambda: Tokenizer.from_gguf(metadata))


def _from_folder(path: Path) -> EncoderFile:
    from anex.models.tokenizer import Tokenizer

    file = SafetensorsFolder(path)
    try:
        ledger = Ledger(str(path / CONFIG))
        known = _table("hf", "model_type", file.config.get("model_type"), ledger)
        fields = read_fields(file.config, known, ledger)
        ledger.close("key", file.config)
        pooling, longest = pooling_of(path, fields["dim"], ledger)
        config = _config(known, fields, pooling, ledger)
        config = replace(config, max_tokens=min(config.max_tokens, longest or config.max_tokens))
        ledger.where = str(path)
        config, sources = resolve(config, known, file.tensors, ledger)
    except BaseException:
        file.close()
        raise

    def tokenizer() -> Tokenizer:
        return Tokenizer.from_json(path, vocab_size=config.vocab_size)

    return EncoderFile(path, file, config, ledger, sources, tokenizer)


def _table(format: str, key: str, name: Any, ledger: Ledger) -> Table:
    if not isinstance(name, str):
        raise InputError(f"'{key}' is missing or no string", where=ledger.where)
    if name not in families(format):
        raise UnsupportedError(
            f"{key} {quoted(name)} as an encoder",
            where=ledger.where,
            hint=f"known: {', '.join(sorted(families(format)))}",
        )
    ledger.used("key", key if format == "hf" else f"general.{key}", "family")
    return table(format, name)


def _config(known: Table, fields: Mapping[str, Any], pooling: Pooling, ledger: Ledger) -> EncoderConfig:
    where = ledger.where
    if fields["activation"] not in NAMES:
        raise UnsupportedError(
            f"activation {quoted(fields['activation'])}", where=where, hint=f"known: {', '.join(NAMES)}"
        )
    if fields["dim"] % fields["n_heads"]:
        raise InputError(
            f"{fields['dim']} channels cannot be split into {fields['n_heads']} heads", where=where
        )
    positions = _rotary(fields, where) if "longest" in fields else _learned(fields, where)
    return EncoderConfig(
        family=known.family,
        n_layers=fields["n_layers"],
        dim=fields["dim"],
        vocab_size=fields["vocab_size"],
        n_heads=fields["n_heads"],
        ffn_dim=fields["ffn_dim"],
        activation=fields["activation"],
        eps=float(fields["eps"]),
        max_tokens=fields["longest"] if isinstance(positions, Rotary) else positions.longest,
        positions=positions,
        segments=fields.get("segments", 0),
        norm_first=known.norm_first,
        pooling=pooling,
    )


def _learned(fields: Mapping[str, Any], where: str) -> Learned:
    positions = Learned(fields["position_rows"], fields.get("padding"))
    if positions.longest < 1:
        raise InputError(f"{positions.rows} positions after padding token {positions.padding}", where=where)
    return positions


_LAYER_KINDS = ("full_attention", "sliding_attention")


def _rotary(fields: Mapping[str, Any], where: str) -> Rotary:
    if fields["dim"] // fields["n_heads"] % 2:
        raise InputError("a head with an odd number of channels has no pairs to rotate", where=where)
    every = fields["global_every"]
    kinds = [_LAYER_KINDS[bool(i % every)] for i in range(fields["n_layers"])]
    if fields["layer_types"] and fields["layer_types"] != kinds:
        raise UnsupportedError(f"'layer_types' other than a full one every {every}", where=where)
    thetas = [_theta(fields, kind, where) for kind in _LAYER_KINDS]
    return Rotary(thetas[0], thetas[1], fields["local_attention"] // 2, every)


def _theta(fields: Mapping[str, Any], kind: str, where: str) -> float:
    """The base of a kind of layer: of the new key where it is there, else of the old one."""
    given = fields["rope_parameters"]
    if not given:
        return float(fields["rope_theta" if kind == "full_attention" else "local_rope_theta"])
    own = given.get(kind)
    theta = own.get("rope_theta") if isinstance(own, dict) else None
    if given.keys() != set(_LAYER_KINDS) or not isinstance(theta, (int, float)) or not 1e-3 <= theta <= 1e12:
        raise InputError(f"'rope_parameters' has no base for {kind}", where=where)
    if own.keys() - {"rope_theta", "rope_type"} or own.get("rope_type", "default") != "default":
        raise UnsupportedError(f"'rope_parameters' of {kind} with more than a base", where=where)
    return float(theta)
