"""The files of a Hugging Face folder that describe its tokenizer: found, bounded, read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anex.errors import InputError, UnsupportedError
from anex.files import StrPath, map_file

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
GENERATION = "generation_config.json"
CONFIG = "config.json"

_MIB = 1 << 20
LIMITS: Mapping[str, int] = {
    TOKENIZER: 128 * _MIB,  # the largest of known models has 33 MiB
    TOKENIZER_CONFIG: 16 * _MIB,
    SPECIAL_TOKENS: 4 * _MIB,
    GENERATION: 1 * _MIB,
    CONFIG: 4 * _MIB,
}
"""The files that are read, and how large they may be, in bytes."""


@dataclass(frozen=True)
class ModelFiles:
    """What the files say.

    Attributes:
        where: The path of tokenizer.json.
        tokenizer: Its bytes.
        objects: Name of another file -> its JSON object; empty for a file that is not there.
    """

    where: str
    tokenizer: bytes
    objects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def get(self, name: str, key: str, kinds: tuple[type, ...], default: Any = None) -> Any:
        """The value of a key of a file, of one of `kinds`; `default` where it is missing or null.

        Raises:
            InputError: It has another type.
        """
        return typed(self.objects.get(name, {}), key, kinds, name, default)


def typed(
    values: Mapping[str, Any], key: str, kinds: tuple[type, ...], where: str, default: Any = None
) -> Any:
    """The same for an object."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(f"'{key}' is {type(value).__name__}, not {wanted}", where=where)
    return value


def model_files(source: StrPath | Iterable[StrPath]) -> ModelFiles:
    """Reads the files of a folder, those beside a tokenizer.json, or exactly the named ones.

    Raises:
        InputError: A file is missing, too large or no JSON object, or has a name that is not known.
        UnsupportedError: There is no tokenizer.json.
        ResourceError: The system refuses to read one.
    """
    paths = _paths(source)
    if TOKENIZER not in paths:
        where = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
        raise UnsupportedError(
            f"a model without {TOKENIZER}", where=where, hint="save its tokenizer again as a fast tokenizer"
        )
    others = {name: _object(path) for name, path in paths.items() if name != TOKENIZER}
    return ModelFiles(str(paths[TOKENIZER]), read_limited(paths[TOKENIZER], LIMITS[TOKENIZER]), others)


def _paths(source: StrPath | Iterable[StrPath]) -> dict[str, Path]:
    if not isinstance(source, (str, os.PathLike)):
        paths = {Path(path).name: Path(path) for path in source}
        for name in paths.keys() - LIMITS.keys():
            raise InputError("no file of a tokenizer", where=str(paths[name]), hint=", ".join(LIMITS))
        return paths
    folder = Path(source)
    if not os.path.exists(folder):
        raise InputError("no such file", where=str(folder), hint="check the path")
    named = {} if folder.is_dir() else {TOKENIZER: folder}
    if named:
        folder = folder.parent
    return {name: folder / name for name in LIMITS if (folder / name).is_file()} | named


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of a file.

    Raises:
        InputError: It is larger than `limit`, or there is none.
        ResourceError: The system refuses to read it.
    """
    data = map_file(path)
    if len(data) > limit:
        raise InputError(f"{len(data):,} bytes; no such file needs more than {limit:,}", where=str(path))
    return bytes(data)


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        InputError: It is not JSON, or no object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON: {error}", where=where) from None
    if not isinstance(value, dict):
        raise InputError(f"a JSON {type(value).__name__}, not an object", where=where)
    return value


def _object(path: Path) -> dict[str, Any]:
    return json_object(read_limited(path, LIMITS[path.name]), str(path))
