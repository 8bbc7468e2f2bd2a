"""The files by which sentence-transformers says how a text becomes one vector."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anex.errors import InputError, UnsupportedError
from anex.files import map_file
from anex.formats.gguf import quoted
from anex.formats.safetensors import read_json
from anex.models.encoder.config import Pooling
from anex.models.ledger import Ledger

MODULES = "modules.json"

Array = np.ndarray[Any, np.dtype[Any]]


def _one(place: int) -> Callable[[int], Array]:
    def weights(count: int) -> Array:
        out = np.zeros(count)
        out[place] = 1.0
        return out

    return weights


POOLINGS: Mapping[str, Callable[[int], Array]] = {
    "mean": lambda count: np.full(count, 1.0 / count),
    "cls": _one(0),
    "last": _one(-1),
    "mean_sqrt_len": lambda count: np.full(count, count**-0.5),
}
"""Name → weights of the hidden states of n tokens in the pooled vector, float64 `[n]`."""

_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Switch of a pooling's config → mode; a new config names the mode itself."""

_NEW_MODES = {"lasttoken": "last", "mean_sqrt_len_tokens": "mean_sqrt_len"}

_LIMIT = 1 << 20
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")


def pooling_of(folder: Path, dim: int, ledger: Ledger) -> tuple[Pooling, int | None]:
    """How the modules of a folder pool, and the longest text that they let through (None: no limit).

    Without `modules.json` the folder says nothing about pooling.

    Raises:
        InputError: A file is malformed, or the modules contradict the model.
        UnsupportedError: A module, or a switch of one, that anex does not have.
    """
    if not (folder / MODULES).exists():
        return Pooling(), None
    kinds = [_module(entry, folder) for entry in _array(folder / MODULES)]
    _check_order([kind for kind, _ in kinds], folder)
    mode, normalize = None, False
    for kind, path in kinds:
        if kind == "Pooling":
            mode = _mode(folder / path / "config.json", dim, ledger)
        normalize |= kind == "Normalize"
    lower, longest = _transformer(folder / "sentence_bert_config.json", ledger)
    _prompts(folder / "config_sentence_transformers.json", ledger)
    return Pooling(mode, normalize, lower, strip=True), longest


def _array(path: Path) -> list[Any]:
    data = map_file(path)
    if len(data) > _LIMIT:
        raise InputError(f"the file has {len(data)} bytes, more than {_LIMIT}", where=str(path))
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=str(path)) from None
    if not isinstance(value, list):
        raise InputError("not a JSON array", where=str(path))
    return value


def _module(entry: Any, folder: Path) -> tuple[str, str]:
    """(class, folder) of a module."""
    where = str(folder / MODULES)
    kind, path = (entry.get(key) if isinstance(entry, dict) else None for key in ("type", "path"))
    if not isinstance(kind, str) or not isinstance(path, str) or not (not path or _FOLDER.fullmatch(path)):
        raise InputError("a module has no type, or a path that leads out of the folder", where=where)
    if not kind.startswith("sentence_transformers."):
        raise UnsupportedError(f"module {quoted(kind)}, which is code of its own", where=where)
    return kind.rpartition(".")[2], path


def _check_order(kinds: list[str], folder: Path) -> None:
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise UnsupportedError(
                f"module {quoted(kind)}",
                where=str(folder / MODULES),
                hint="Transformer, Pooling and Normalize are supported",
            )
    if kinds[:2] != ["Transformer", "Pooling"] or kinds.count("Transformer") + kinds.count("Pooling") > 2:
        raise UnsupportedError(f"modules in the order {', '.join(kinds)}", where=str(folder / MODULES))


def _mode(path: Path, dim: int, ledger: Ledger) -> str:
    values, where = read_json(path), f"{path}"
    width = values.get("word_embedding_dimension", values.get("embedding_dimension", dim))
    if width != dim:
        raise InputError(f"pools {width!r} channels, the model has {dim}", where=where)
    named = values.get("pooling_mode")
    chosen = {_NEW_MODES.get(named, named)} if isinstance(named, str) else set()
    chosen |= {mode for key, mode in _MODES.items() if values.get(key) is True}
    for key in ("word_embedding_dimension", "embedding_dimension", "pooling_mode", *_MODES):
        if key in values:
            ledger.used("key", f"{path.parent.name}/{key}", "pooling")
    if "include_prompt" in values:
        ledger.neutral("key", f"{path.parent.name}/include_prompt", "no prompt is put before a text")
    _close(path, values, ledger, f"{path.parent.name}/")
    if len(chosen) != 1 or not chosen <= POOLINGS.keys():
        shown = " and ".join(sorted(map(str, chosen))) or "of no kind"
        raise UnsupportedError(f"pooling {quoted(shown)}", where=where, hint=f"one of {', '.join(POOLINGS)}")
    return str(chosen.pop())


def _transformer(path: Path, ledger: Ledger) -> tuple[bool, int | None]:
    """(whether texts are put in lower case, most tokens)."""
    if not path.exists():
        return False, None
    values = read_json(path)
    lower, longest = values.get("do_lower_case", False), values.get("max_seq_length")
    if not isinstance(lower, bool) or not (longest is None or (type(longest) is int and longest > 0)):
        raise InputError("'do_lower_case' or 'max_seq_length' has a wrong type", where=str(path))
    for key in values.keys() & {"do_lower_case", "max_seq_length"}:
        ledger.used("key", f"{path.stem}/{key}", "text")
    _close(path, values, ledger, f"{path.stem}/")
    return lower, longest


def _prompts(path: Path, ledger: Ledger) -> None:
    if not path.exists():
        return
    values = read_json(path)
    if values.get("default_prompt_name") is not None:
        raise UnsupportedError(
            f"a prompt that is put before every text ({quoted(str(values['default_prompt_name']))})",
            where=str(path),
        )
    reasons = {
        "__version__": "says how the file was written",
        "prompts": "prompts that are used when they are named; write them into the text",
        "default_prompt_name": "null puts nothing before a text",
        "similarity_fn_name": "how embeddings are compared, not what they are",
        "model_type": "names a class of sentence-transformers",
    }
    for key in values.keys() & reasons:
        ledger.neutral("key", f"{path.stem}/{key}", reasons[key])
    _close(path, values, ledger, f"{path.stem}/")


def _close(path: Path, values: Iterable[str], ledger: Ledger, prefix: str) -> None:
    """Refuse what has no account, with the file that it is in."""
    for key in values:
        if not ledger.knows("key", prefix + key):
            raise UnsupportedError(
                f"key {quoted(key)}",
                where=str(path),
                hint="anex does not know what this does to the model, so it does not run it",
            )
