"""Chat templates: from a conversation to the text that a model was trained to continue."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import TracebackType
from typing import TYPE_CHECKING, Any

from anex.errors import AnexError, InputError, UnsupportedError
from anex.files import StrPath
from anex.models.chat import find
from anex.models.chat.child import Child, Killed, Limits

if TYPE_CHECKING:
    from anex.models.tokenizer import Tokenizer

Message = Mapping[str, Any]

MAX_SOURCE = 1 << 20
"""Characters of a template; the longest of known models has 20 thousand."""

_WHERE = "chat template"
_INSTEAD = "choose another one with --template, or use `anex run`"


class ChatTemplate:
    """A jinja template of a model, rendered in a process of its own with limits on what it may use.

    with ChatTemplate.of(metadata) as template:
        text = template.render([{"role": "user", "content": "Hello"}])
        ids = prompt_ids(tokenizer, text)

    The process starts with the first render and serves all that follow; after an error it starts again.

    Args:
        source: The template.
        bos: Text of the token that begins a text; templates call it bos_token.
        eos: Text of the token that ends one; templates call it eos_token.
        limits: What it may use.

    Raises:
        InputError: The template is empty or absurdly long.
    """

    def __init__(self, source: str, *, bos: str, eos: str, limits: Limits | None = None) -> None:
        if not source.strip() or len(source) > MAX_SOURCE:
            raise InputError(f"{len(source):,} characters", where=_WHERE, hint=f"1 to {MAX_SOURCE:,} work")
        self.source = source
        self.bos = bos
        self.eos = eos
        self._limits = limits or Limits()
        self._child: Child | None = None

    @classmethod
    def of(
        cls,
        model: Mapping[str, Any] | StrPath,
        *,
        name: str | None = None,
        source: str | None = None,
        limits: Limits | None = None,
    ) -> ChatTemplate:
        """The template of a model.

        Args:
            model: The metadata of a GGUF file, or a Hugging Face folder.
            name: Which of several, such as "tool_use" or "rag"; by default the model's default.
            source: Another template, to be rendered with the model's tokens.
            limits: What it may use.

        Raises:
            InputError: A file or key is malformed.
            UnsupportedError: The model has no template, or none of that name.
        """
        found = find.in_metadata(model) if isinstance(model, Mapping) else find.in_folder(model)
        text = found.choose(name) if source is None else source
        return cls(text, bos=found.bos, eos=found.eos, limits=limits)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: Objects with a "role" and, usually, a "content".
            add_generation_prompt: End with what begins an answer.
            tools: Descriptions of functions that the model may call, in JSON schema.
            variables: Further variables of the template, such as enable_thinking.

        Raises:
            InputError: A message has no role, something is not JSON, or the template has an error or refuses
                the conversation.
            UnsupportedError: The template does what it may not: uses too much time or memory, or reaches
                for Python's insides.
        """
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InputError(f"message {i} has no role", where="messages")
        known = {"bos_token": self.bos, "eos_token": self.eos, "documents": None}
        asked = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._ask({**known, **variables, **asked})

    def _ask(self, variables: Mapping[str, Any]) -> str:
        if self._child is None:
            self._child = Child(self.source, self._limits)
        try:
            reply = self._child.ask(variables)
        except BaseException as error:
            # Also after Ctrl-C: a reply that nobody waits for would be taken for the next one.
            self.close()
            if isinstance(error, Killed):
                raise self._killed(error) from None
            if isinstance(error, (TypeError, ValueError, RecursionError)):
                raise InputError(f"the conversation cannot be written as JSON: {error}") from None
            raise
        if "error" in reply:
            raise _error(reply, self._limits)
        return str(reply["text"])

    def _killed(self, killed: Killed) -> AnexError:
        used = f"more than {self._limits.cpu_seconds:g} s of computing" if killed.time else "a crash"
        return UnsupportedError(used, where=_WHERE, hint=_INSTEAD)

    def close(self) -> None:
        """Ends the process; another render starts it again."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _error(reply: Mapping[str, Any], limits: Limits) -> AnexError:
    what = " ".join(str(reply["what"]).split())[:300]
    match reply["error"]:
        case "refused":
            return InputError(f"it refuses the conversation: {what}", where=_WHERE)
        case "forbidden":
            return UnsupportedError(what, where=_WHERE, hint=_INSTEAD)
        case "memory":
            feature = f"more than {limits.memory >> 20} MiB of memory"
            return UnsupportedError(feature, where=_WHERE, hint=_INSTEAD)
        case "syntax":
            return InputError(what, where=f"{_WHERE}, line {reply['line']}", hint=_INSTEAD)
        case _:
            return InputError(f"it fails: {what}", where=_WHERE, hint=_INSTEAD)


@cache
def builtin() -> Mapping[str, str]:
    """Well-known templates: name -> source."""
    text = files(__package__).joinpath("builtin.toml").read_text(encoding="utf-8")
    return {name: str(source) for name, source in tomllib.loads(text).items()}


def builtin_source(name: str) -> str:
    """The well-known template of that name.

    Raises:
        InputError: There is none.
    """
    if name not in builtin():
        raise InputError(f"no built-in template {name!r}", hint="there are " + ", ".join(builtin()))
    return builtin()[name]


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a rendered conversation.

    Templates write special tokens, and some write the BOS token while others leave it to the tokenizer: there
    is exactly one where the tokenizer asks for it.

    Raises:
        InputError: The vocabulary cannot write the text.
    """
    ids = tokenizer.encode(text, add_special=False)
    bos = tokenizer.bos
    return [bos, *ids] if tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids
