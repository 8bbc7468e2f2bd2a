"""A conversation as a file: what was said, with which model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anex.errors import InputError
from anex.files import StrPath, atomic_write
from anex.formats.safetensors import read_json
from anex.models import ModelFile
from anex.models.chat import Message

SCHEMA = "anex.conversation/1"

MAX_BYTES = 64 << 20
"""Of a file; a conversation as long as the longest contexts has a few."""

ROLES = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which model it is, wherever it lies.

    Attributes:
        name: What the file calls it.
        file: Name of the file or folder.
        fingerprint: Of its keys and tensors.
    """

    name: str
    file: str
    fingerprint: str

    @classmethod
    def of(cls, model: ModelFile) -> Identity:
        digest = hashlib.sha256(model.file.fingerprint()).hexdigest()
        return cls(model.name, model.path.resolve().name, digest[:32])


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation at rest.

    Attributes:
        messages: Of user and assistant in turn, the user first.
        forgotten: The first ones, which the model is no longer told.
    """

    model: Identity
    system: str | None
    messages: Sequence[Message]
    forgotten: int = 0

    def write(self, path: StrPath) -> None:
        """Write the file, whole or not at all.

        Raises:
            InputError, ResourceError: It cannot be written.
        """
        content = {"schema": SCHEMA, **asdict(self), "messages": [dict(m) for m in self.messages]}
        with atomic_write(path) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, path: StrPath) -> Transcript:
        """Read such a file.

        Raises:
            InputError: There is none, or it is something else.
            ResourceError: The system refuses to read it.
        """
        content = read_json(path, MAX_BYTES)
        try:
            return cls._from(content)
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"this is no saved conversation: {error}", where=str(path), hint="name one of anex chat"
            ) from None

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Transcript:
        if content.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        model = Identity(**{key: _text(value, key) for key, value in dict(content["model"]).items()})
        system = content["system"]
        messages = [{"role": _role(m["role"], i), "content": _text(m["content"], "content")}
                    for i, m in enumerate(content["messages"])]  # fmt: skip
        if len(messages) % 2:
            raise ValueError("the last message has no answer")
        forgotten = content["forgotten"]
        if type(forgotten) is not int or not 0 <= forgotten <= len(messages) or forgotten % 2:
            raise ValueError(f"'forgotten' is {forgotten!r}")
        return cls(model, None if system is None else _text(system, "system"), messages, forgotten)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"'{what}' is no text")
    return value


def _role(value: Any, index: int) -> str:
    if value != ROLES[index % 2]:
        raise ValueError(f"message {index} is not the {ROLES[index % 2]}'s")
    return str(value)
