"""A conversation: messages through the chat template of a model, answers out of its completions.

What the model has computed of earlier turns stays in its cache: a turn costs its new message and its answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypedDict

from anex.errors import InputError, UnsupportedError
from anex.files import StrPath
from anex.models import ModelFile
from anex.models.chat import ChatTemplate, Message, builtin, prompt_ids, read_template
from anex.runtime.generate import Completion, StopReason
from anex.runtime.transcript import Identity, Transcript

if TYPE_CHECKING:
    from anex.runtime.model import Model

ContextFull = Literal["drop", "stop"]
"""What becomes of a conversation that outgrows the context: its oldest turns are dropped, or it stops."""

CONTEXT_FULL: tuple[ContextFull, ...] = ("drop", "stop")

_ROOM = 4
"""A turn begins with room for its answer: `1 / _ROOM` of the context, or `n_predict` if that is less."""


class Options(TypedDict, total=False):
    """How answers are generated; as the arguments of `Model.generate`."""

    n_predict: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None
    stop: Sequence[str]


class Conversation:
    """A conversation with a model; `Model.chat` makes it.

    with anex.load("model.gguf") as model:
        chat = model.chat(system="You are brief.")
        print(chat.send("What is the capital of France?").text())
        for piece in chat.send("And of Italy?"):
            print(piece, end="", flush=True)

    An answer is computed as it is iterated over.  With the next message it ends where it is, and what it has
    said till then is the answer; a message that has no word of an answer by then counts as not sent.

    Where the context has no room for another turn, "drop" makes the model forget the oldest turns, so many at
    once that half of the context is free; "stop" refuses the message.  `messages` has them all the same.

    Args:
        model: Its session is the conversation's.
        system: Says how the model is to behave; None leaves that to the template.
        template: The model's own if None; see `find_template`.
        context_full: "drop" or "stop".
        options: How answers are generated.  With a seed the n-th answer is drawn with `seed + n`, from 0.

    Raises:
        InputError: The template is malformed, or `context_full` is neither.
        UnsupportedError: The model has no such template.

    Attributes:
        system: The system prompt; may be set between two turns.
        forgotten: Messages that the model is no longer told, the first ones.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        template: str | None = None,
        context_full: ContextFull = "drop",
        options: Options | None = None,
    ) -> None:
        if context_full not in CONTEXT_FULL:
            raise InputError(f"context_full is {context_full!r}", hint="one of " + ", ".join(CONTEXT_FULL))
        self.system = system
        self.forgotten = 0
        self._model = model
        self._template = find_template(model.file, template)
        self._context_full = context_full
        self._options: Options = options or {}
        self._turns: list[Message] = []
        self._before: list[Message] = []
        self._answer: Completion | None = None
        self._answers = 0

    @property
    def messages(self) -> list[Message]:
        """All messages: the system prompt, and those of user and assistant in turn."""
        return [*self._head(), *self._settled()]

    def send(self, text: str) -> Completion:
        """Say something; iterating over the result computes the answer.

        Raises:
            InputError: There is nothing in the message, the context has no room for it, the template refuses
                the conversation, or an option is out of range.
        """
        if not text.strip():
            raise InputError("the message is empty", hint="give at least one character")
        return self._ask([*self._settled(), {"role": "user", "content": text}])

    def regenerate(self) -> Completion:
        """Another answer to the last message; with a seed, drawn with the next one.

        Raises:
            InputError: There is none.
        """
        turns = self._settled()
        if not turns:
            raise InputError("there is no message to answer again")
        return self._ask(turns[:-1])

    def undo(self) -> str:
        """Take the last message and its answer back, and return the message.

        Raises:
            InputError: There is none.
        """
        self._settle()
        if not self._turns:
            raise InputError("there is no message to take back")
        text = str(self._turns[-2]["content"])
        del self._turns[-2:]
        self.forgotten = min(self.forgotten, len(self._turns))
        return text

    def reset(self) -> None:
        """Forget all messages, but for the system prompt."""
        self._settle()
        self._turns, self.forgotten = [], 0

    def save(self, path: StrPath) -> None:
        """Write the messages and which model it is to a file, whole or not at all.

        Raises:
            InputError, ResourceError: It cannot be written.
        """
        Transcript(self._identity, self.system, self._settled(), self.forgotten).write(path)

    def resume(self, path: StrPath, *, force: bool = False) -> None:
        """Go on with a saved conversation instead of this one.

        Args:
            force: Also with one that was held with another model.

        Raises:
            InputError: The file cannot be read, is something else, or belongs to another model.
        """
        saved = Transcript.read(path)
        if saved.model.fingerprint != self._identity.fingerprint and not force:
            raise InputError(
                f"this conversation was held with another model, {saved.model.file}",
                where=os.fspath(path),
                hint="take that one, or --force",
            )
        self._settle()
        self.system, self._turns, self.forgotten = saved.system, list(saved.messages), saved.forgotten

    def close(self) -> None:
        """End the process that renders the template; another turn starts it again."""
        self._template.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _identity(self) -> Identity:
        return Identity.of(self._model.file)

    def _head(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _settled(self) -> list[Message]:
        """The turns, each with its answer: that of the last one is what was said so far."""
        if (answer := self._answer) is None:
            return self._turns.copy()
        if not answer.said and answer.stop_reason in (None, StopReason.INTERRUPTED):
            return self._before.copy()
        return [*self._turns, {"role": "assistant", "content": answer.said}]

    def _settle(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
            self._turns, self._answer = self._settled(), None

    def _ask(self, turns: list[Message]) -> Completion:
        """The answer to turns that end with a message; nothing has changed after an error."""
        ids, forgotten = self._fit(turns)
        options, before = self._options.copy(), self._settled()
        if (seed := options.get("seed")) is not None:
            options["seed"] = (seed + self._answers) % 2**64
        answer = self._model.generate(ids, reuse=True, **options)
        self._settle()
        self._before, self._turns, self.forgotten, self._answer = before, turns, forgotten, answer
        self._answers += 1
        return answer

    def _fit(self, turns: list[Message]) -> tuple[list[int], int]:
        """The prompt, and how many of the messages it leaves out."""
        context, forgotten = self._model.context, min(self.forgotten, len(turns) - 1)
        ids = self._prompt(turns[forgotten:])
        n_predict = self._options.get("n_predict", -1)
        room = context // _ROOM if n_predict < 0 else min(n_predict, context // _ROOM)
        if len(ids) + room > context and self._context_full == "drop":
            while forgotten + 2 < len(turns) and len(ids) > context // 2:
                forgotten += 2
                ids = self._prompt(turns[forgotten:])
        if len(ids) >= context:
            raise InputError(
                f"the conversation has {len(ids)} tokens with this message, the context {context}",
                hint="a shorter message, a longer context (-c), or a new conversation",
            )
        return ids, forgotten

    def _prompt(self, turns: Sequence[Message]) -> list[int]:
        return prompt_ids(self._model.tokenizer, self._template.render([*self._head(), *turns]))


def find_template(model: ModelFile, chosen: str | None = None) -> ChatTemplate:
    """The chat template of a model, or the chosen one for it.

    Args:
        chosen: The name of one of the model's templates, of a well-known one (`anex.models.chat.builtin`), or
            a file.  What has a slash or ends in .jinja is a file.

    Raises:
        InputError: There is no such template or file.
        UnsupportedError: The model has none.
    """
    folder_or_keys = model.documents[0].parent if model.documents else model.metadata
    if chosen is None:
        return ChatTemplate.of(folder_or_keys)
    if os.sep in chosen or chosen.endswith(".jinja"):
        return ChatTemplate.of(folder_or_keys, source=read_template(chosen))
    with suppress(UnsupportedError):
        return ChatTemplate.of(folder_or_keys, name=chosen)
    if chosen in builtin():
        return ChatTemplate.of(folder_or_keys, source=builtin()[chosen])
    if Path(chosen).is_file():
        return ChatTemplate.of(folder_or_keys, source=read_template(chosen))
    raise InputError(f"no chat template '{chosen}'", hint="a file, or one of " + ", ".join(builtin()))
