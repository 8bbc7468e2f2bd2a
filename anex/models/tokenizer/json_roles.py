"""Which tokens of a Hugging Face folder begin, end and may not be in a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anex.errors import InputError
from anex.models.tokenizer.json_files import (
    CONFIG,
    GENERATION,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    ModelFiles,
    typed,
)

MAX_TOKENS = 1 << 24
"""More tokens than any model has; tables of this size are no danger."""

NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Keys of tokenizer_config.json and special_tokens_map.json that name a token."""

# BERT's tokens have the roles of the others under names of their own, as in llama.cpp's converter.
_ROLES = {"bos": ("bos_token", "cls_token"), "eos": ("eos_token", "sep_token"), "unk": ("unk_token",)}
_FLAGS = {"bos": "add_bos_token", "eos": "add_eos_token"}


def named_tokens(files: ModelFiles) -> dict[str, str]:
    """Key of `NAMED` -> text of the token; additional special tokens have keys that are numbers.

    Raises:
        InputError: A file names a token by something that is no text.
    """
    named = {}
    for key in NAMED:
        name = TOKENIZER_CONFIG if key in files.objects.get(TOKENIZER_CONFIG, {}) else SPECIAL_TOKENS
        text = _text(files.get(name, key, (str, dict)), key, name)
        if text:
            named[key] = text
    for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS):
        more = files.get(name, "additional_special_tokens", (list,), [])
        named.update({str(i): _text(entry, str(i), name) for i, entry in enumerate(more)})
    return named


def _text(value: Any, key: str, where: str) -> str:
    if isinstance(value, Mapping):
        value = value.get("content")
    if not isinstance(value, str | None):
        raise InputError(f"'{key}' names no token", where=where)
    return value or ""


def role_ids(
    files: ModelFiles, named: Mapping[str, str], vocabulary: Mapping[str, int], size: int
) -> dict[str, int]:
    """Role -> id: the tokens that the tokenizer's files name, else those of the model's.

    Raises:
        InputError: A file names a token that the vocabulary or the model does not have.
    """
    roles = {}
    for role, keys in _ROLES.items():
        key = next((key for key in keys if key in named), None)
        if key is not None and named[key] in vocabulary:
            roles[role] = _in_range(vocabulary[named[key]], size, key, TOKENIZER_CONFIG)
        elif key is not None and role != "unk":
            raise InputError(f"'{key}' is {named[key]!r}, which is no token", where=files.where)
        elif ids := _ids(files, f"{role}_token_id", size):
            roles[role] = ids[0]
    return roles


def end_ids(files: ModelFiles, size: int) -> frozenset[int]:
    """The ids that end generation, as the model's files say it."""
    return frozenset(_ids(files, "eos_token_id", size))


def suppressed_ids(files: ModelFiles, size: int) -> frozenset[int]:
    """The ids that must never be generated."""
    ids = files.get(GENERATION, "suppress_tokens", (list,), [])
    return frozenset(_in_range(i, size, "suppress_tokens", GENERATION) for i in ids)


def wanted(files: ModelFiles, role: str) -> bool | None:
    """Whether tokenizer_config.json asks for a BOS or EOS token; None if it leaves that open."""
    flag: bool | None = files.get(TOKENIZER_CONFIG, _FLAGS[role], (bool,))
    return flag


def model_size(files: ModelFiles) -> int | None:
    """The number of tokens of the model; None if no file says it.

    Raises:
        InputError: It is no sensible number.
    """
    for where, values in _configs(files):
        size: int | None = typed(values, "vocab_size", (int,), where)
        if size is not None:
            if not 0 < size <= MAX_TOKENS:
                raise InputError(f"'vocab_size' is {size}", where=where)
            return size
    return None


def _configs(files: ModelFiles) -> list[tuple[str, Mapping[str, Any]]]:
    """config.json, and the part of it that describes the text model of a model with several."""
    config = files.objects.get(CONFIG, {})
    return [(CONFIG, config), (CONFIG, typed(config, "text_config", (dict,), CONFIG, {}))]


def _ids(files: ModelFiles, key: str, size: int) -> list[int]:
    """The ids that the generation config gives, else the config; a file gives one or a list."""
    for where, values in [(GENERATION, files.objects.get(GENERATION, {})), *_configs(files)]:
        value = typed(values, key, (int, list), where)
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            # Some configs have -1 where they mean none.
            return [_in_range(i, size, key, where) for i in ids if i != -1]
    return []


def _in_range(value: Any, size: int, key: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise InputError(f"'{key}' has token {value!r} of a vocabulary of {size}", where=where)
    return value
