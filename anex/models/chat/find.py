"""Where the files of a model keep their chat templates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anex.errors import InputError, UnsupportedError
from anex.files import StrPath
from anex.models.tokenizer.json_files import (
    LIMITS,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    ModelFiles,
    json_object,
    read_limited,
)
from anex.models.tokenizer.json_roles import named_tokens
from anex.models.tokenizer.keys import MODEL, ROLE_KEYS, TOKENS
from anex.models.tokenizer.vocabulary import FAMILIES

KEY = "tokenizer.chat_template"
_DEFAULT = "default"
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Found:
    """The templates of a model.

    Attributes:
        where: The file or key that has them.
        templates: Name -> source; "default" is the one for plain conversations.
        bos: Text of the token that begins a text; empty if there is none.
        eos: Text of the token that ends one.
    """

    where: str
    templates: Mapping[str, str]
    bos: str
    eos: str

    def choose(self, name: str | None) -> str:
        """The template of that name.

        Raises:
            UnsupportedError: There is none.
        """
        if not self.templates:
            raise UnsupportedError(
                "chat with a model that has no chat template",
                where=self.where,
                hint="name one with --template, or use `anex run`",
            )
        wanted = name or (next(iter(self.templates)) if len(self.templates) == 1 else _DEFAULT)
        if wanted not in self.templates:
            known = ", ".join(sorted(self.templates))
            raise UnsupportedError(f"chat template {wanted!r}", where=self.where, hint=f"there are {known}")
        return self.templates[wanted]


def in_metadata(metadata: Mapping[str, Any]) -> Found:
    """The templates in the metadata of a GGUF file.

    Raises:
        InputError: A key has the wrong type.
    """
    templates = {}
    for key, value in metadata.items():
        if key == KEY or key.startswith(f"{KEY}."):
            if not isinstance(value, str):
                raise InputError(f"expected str, found {type(value).__name__}", where=key)
            templates[key.removeprefix(KEY).removeprefix(".") or _DEFAULT] = value
    return Found(KEY, templates, _token(metadata, "bos"), _token(metadata, "eos"))


def _token(metadata: Mapping[str, Any], role: str) -> str:
    tokens = metadata.get(TOKENS, ())
    family = FAMILIES.get(str(metadata.get(MODEL)))
    index = family.roles.get(role) if family else None
    for key in ROLE_KEYS[role]:
        index = metadata.get(key, index)
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        return ""
    return str(tokens[index])


def in_folder(folder: StrPath) -> Found:
    """The templates in the files of a Hugging Face folder.

    A file chat_template.jinja counts before chat_template.json, and that before tokenizer_config.json.

    Raises:
        InputError: A file is malformed or too large.
        ResourceError: The system refuses to read one.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("no such folder", where=os.fspath(folder), hint="name a GGUF file or a model folder")
    config = _json(root / TOKENIZER_CONFIG)
    templates = {
        **_listed(config.get("chat_template"), root / TOKENIZER_CONFIG),
        **_listed(_json(root / "chat_template.json").get("chat_template"), root / "chat_template.json"),
        **_files(root),
    }
    objects = {TOKENIZER_CONFIG: config, SPECIAL_TOKENS: _json(root / SPECIAL_TOKENS)}
    named = named_tokens(ModelFiles(str(root), b"", objects))
    return Found(str(root), templates, named.get("bos_token", ""), named.get("eos_token", ""))


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return json_object(read_limited(path, LIMITS.get(path.name, _MAX_BYTES)), str(path))


def _listed(value: Any, path: Path) -> dict[str, str]:
    """One template, or a list of objects with "name" and "template"."""
    if value is None:
        return {}
    entries = [{"name": _DEFAULT, "template": value}] if isinstance(value, str) else value
    try:
        templates = {entry["name"]: entry["template"] for entry in entries}
    except (TypeError, LookupError):
        raise InputError(
            "'chat_template' is neither a text nor a list of templates", where=str(path)
        ) from None
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise InputError("'chat_template' has a name or template that is no text", where=str(path))
    return templates


def _files(root: Path) -> dict[str, str]:
    paths = {_DEFAULT: root / "chat_template.jinja"}
    paths.update({path.stem: path for path in sorted((root / "additional_chat_templates").glob("*.jinja"))})
    return {name: read_template(path) for name, path in paths.items() if path.is_file()}


def read_template(path: StrPath) -> str:
    """A template file.

    Raises:
        InputError: There is none, it is too large, or no UTF-8.
        ResourceError: The system refuses to read it.
    """
    try:
        return read_limited(Path(path), _MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"no UTF-8 text at byte {error.start}", where=os.fspath(path)) from None
