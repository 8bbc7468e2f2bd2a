"""JSON from files that nobody vouches for: one object, no key twice, only finite numbers, bounded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from anex.errors import InputError
from anex.files import StrPath, map_file
from anex.formats.gguf import quoted

MAX_BYTES = 16 << 20
"""Size limit of a document; a config of today is some kilobytes, with 20,000 class names a megabyte."""

_MAX_DEPTH = 32


def read_json(path: StrPath, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        max_bytes: A larger file is refused without being read.

    Raises:
        InputError: There is no such file, it is too large, no JSON object, or
            not what every JSON reader reads alike: a key twice, NaN, infinities.
        ResourceError: The system refuses to open it.
    """
    data = map_file(path)
    if len(data) > max_bytes:
        raise InputError(f"the file has {len(data)} bytes, more than {max_bytes}", where=str(path))
    return parse_object(data, str(path))


def parse_object(data: memoryview, where: str) -> dict[str, Any]:
    """The JSON object that is all of `data`; raises as `read_json`."""
    try:
        value = json.loads(
            str(data, "utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not UTF-8 at byte {error.start}", where=where) from None
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}"
        raise InputError(f"not JSON: {error.msg}", where=place) from None
    except RecursionError:
        raise InputError(f"nested deeper than {_MAX_DEPTH}", where=where) from None
    except ValueError as error:  # a key twice, a number without end
        raise InputError(f"not JSON: {error}", where=where) from None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=where)
    _check_depth(value, where)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {quoted(key)} appears twice")
            seen.add(key)
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _check_depth(value: Any, where: str) -> None:
    """Refuse what would overflow the stack of whoever walks over it."""
    layer: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        layer = [child for parent in layer for child in _children(parent)]
        if not layer:
            return
    raise InputError(f"nested deeper than {_MAX_DEPTH}", where=where)


def _children(value: Any) -> Iterable[Any]:
    children = value.values() if isinstance(value, dict) else value
    return (child for child in children if isinstance(child, (dict, list)))


def is_beside(name: str) -> bool:
    """Whether `name` is a plain file name, so that `folder / name` stays in the folder on every system."""
    return (
        bool(name) and Path(name).name == name and not set(name) & set("/\\\0:") and name not in (".", "..")
    )
