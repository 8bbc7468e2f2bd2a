"""A model folder of the Hugging Face hub: `config.json`, weights in one safetensors file or in shards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from anex.errors import AnexError, InputError
from anex.files import StrPath, refusal
from anex.formats.gguf import quoted
from anex.formats.safetensors.header import Header
from anex.formats.safetensors.json_text import is_beside, read_json
from anex.formats.safetensors.reader import MappedTensors, pickles_refused
from anex.formats.safetensors.types import PICKLES

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"

_MAX_INDEX = 64 << 20


class SafetensorsFolder(MappedTensors):
    """The tensors of a model folder, and the documents beside them.

    Args:
        path: The folder; it holds `model.safetensors`, or
            `model.safetensors.index.json` and the shards that it names.

    Raises:
        InputError: There is no such folder or no model in it, a shard is
            missing, the index and the shards disagree, or a file is malformed.
        UnsupportedError: A tensor has a type that anex does not read, or the
            weights are there as Python pickles only, which are never opened.
        ResourceError: The system refuses to open or map a file.
    """

    def __init__(self, path: StrPath) -> None:
        folder = Path(path)
        if not _is_folder(folder):
            what, hint = (
                ("this is a file, not a folder", "name the folder it is in")
                if folder.exists()
                else ("no such folder", "check the path")
            )
            raise InputError(what, where=str(path), hint=hint)
        index = folder / INDEX
        if index.exists():
            shards = shards_of_index(index)
            _check_lone(folder, shards)
            super().__init__(folder, _present(folder, shards))
            _check_agreement(index, shards, self.headers)
        elif (folder / WEIGHTS).exists():
            super().__init__(folder, [folder / WEIGHTS])
        else:
            raise _no_model(folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The object in `config.json`.

        Raises:
            InputError: There is none, or it is no strict JSON object.
        """
        return read_json(self.path / CONFIG)

    @property
    def tokenizer(self) -> Path | None:
        """`tokenizer.json`, or None where there is none."""
        return self._document("tokenizer.json")

    @property
    def tokenizer_config(self) -> Path | None:
        """`tokenizer_config.json`, or None where there is none."""
        return self._document("tokenizer_config.json")

    @property
    def generation_config(self) -> Path | None:
        """`generation_config.json`, or None where there is none."""
        return self._document("generation_config.json")

    def _document(self, name: str) -> Path | None:
        path = self.path / name
        return path if path.exists() else None


def shards_of_index(path: StrPath) -> dict[str, frozenset[str]]:
    """The tensors that an index promises in each shard, in the order of first mention.

    The index's own `metadata` (a total size that writers count differently) is not looked at.

    Raises:
        InputError: It is malformed, or a shard's name leads out of the folder.
    """
    where = str(path)
    weight_map = read_json(path, _MAX_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError("'weight_map' is no map of tensors to files", where=where)
    shards: dict[str, set[str]] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not is_beside(file) or not file.endswith(".safetensors"):
            shown = quoted(file) if isinstance(file, str) else "something"
            raise InputError(
                f"tensor {quoted(tensor)} is said to be in {shown}, which is no safetensors file beside it",
                where=where,
            )
        shards.setdefault(file, set()).add(tensor)
    return {file: frozenset(names) for file, names in shards.items()}


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except ValueError as error:
        raise InputError(f"the path is not valid: {error}", where=ascii(str(path))) from error
    except OSError as error:
        raise refusal(error, path) from error


def _check_lone(folder: Path, shards: Mapping[str, Any]) -> None:
    if WEIGHTS not in shards and (folder / WEIGHTS).exists():
        raise InputError(
            f"both {WEIGHTS} and {INDEX} are here, and the index does not name the file",
            where=str(folder),
            hint="remove the one that is not the model",
        )


def _present(folder: Path, shards: Mapping[str, Any]) -> list[Path]:
    missing = [name for name in shards if not (folder / name).exists()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"shard {quoted(missing[0])}{others} of {len(shards)} is missing",
            where=str(folder),
            hint="put all shards into one folder",
        )
    return [folder / name for name in shards]


def _check_agreement(
    index: Path, shards: Mapping[str, frozenset[str]], headers: Mapping[Path, Header]
) -> None:
    for file, header in headers.items():
        promised, held = shards[file.name], {tensor.name for tensor in header.tensors}
        for names, what in (
            (promised - held, "which the index places there, is not in the shard"),
            (held - promised, "which the shard holds, is not placed there by the index"),
        ):
            if names:
                others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
                raise InputError(
                    f"tensor {quoted(min(names))}{others}, {what} {quoted(file.name)}", where=str(index)
                )


def _no_model(folder: Path) -> AnexError:
    """What to say about a folder without safetensors weights, from what lies in it instead."""
    if pickles := _names(folder, *(f"*{ending}" for ending in PICKLES)):
        return pickles_refused(pickles[0], str(folder))
    if ggufs := _names(folder, "*.gguf"):
        return InputError(
            f"the folder holds GGUF, not {WEIGHTS}", where=str(folder), hint=f"name the file: {ggufs[0]}"
        )
    if others := _names(folder, "*.safetensors"):
        return InputError(
            f"there is neither {WEIGHTS} nor {INDEX}, only {others[0]}",
            where=str(folder),
            hint=f"a single file is named {WEIGHTS}; shards need their index",
        )
    return InputError(f"no model in this folder: neither {WEIGHTS} nor {INDEX}", where=str(folder))


def _names(folder: Path, *patterns: str) -> list[str]:
    found = sorted({path.name for pattern in patterns for path in folder.glob(pattern)})
    return [name if name.isprintable() and len(name) <= 80 else quoted(name) for name in found]
