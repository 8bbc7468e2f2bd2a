"""`anex chat`: a conversation, on a terminal or line by line through pipes."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from anex.cli.console import (
    add_cache_dir,
    add_json,
    add_model,
    model_path,
    printable,
    progress_bars,
    read_text,
)
from anex.cli.generation import add_engine, add_generation, load_model, options
from anex.errors import InputError

if TYPE_CHECKING:
    from anex.runtime import Completion, Conversation, Model, Progress

NAME = "chat"
HELP = "talk with a model"

SCHEMA = "anex.chat/1"

_DESCRIPTION = """Talk with a model in its own chat template. On a terminal Ctrl-C stops the answer and /help
lists commands. Elsewhere every line of standard input is a message, taken as it is, and its answer goes to
standard output, or with --json one JSON document on a line."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = _DESCRIPTION
    add_model(parser)
    parser.add_argument(
        *("-p", "--prompt"), action="append", default=[], metavar="TEXT", help="first message; several follow"
    )
    parser.add_argument("-f", "--file", metavar="FILE", help="read the first message from a file")
    parser.add_argument(
        *("-st", "--single-turn"), action="store_true", help="end after the messages of -p and -f"
    )
    parser.add_argument(
        *("-sys", "--system", "--system-prompt"),
        metavar="TEXT",
        help="how the model is to behave; @FILE reads it from a file",
    )
    parser.add_argument(
        *("--template", "--chat-template"),
        metavar="NAME",
        help="chat template: one of the model's, a well-known one such as chatml, or a file (default: the "
        "model's)",
    )
    parser.add_argument(
        "--session",
        metavar="FILE",
        help="go on with the conversation in this file, if it is there, and keep it there after every turn",
    )
    parser.add_argument(
        "--force", action="store_true", help="also with a conversation that was held with another model"
    )
    parser.add_argument(
        "--context-full",
        choices=("drop", "stop"),
        default="drop",
        help="where a conversation outgrows the context, forget its oldest turns until half is free, or "
        "refuse the message (default: %(default)s)",
    )
    add_generation(parser, n_predict=-1)
    add_engine(parser)
    add_cache_dir(parser)
    add_json(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no greeting")


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    path, first, system = model_path(args), _first(args), system_prompt(args.system)
    # A model may say what the terminal's encoding cannot write.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    relay = _Relay()
    with progress_bars(not args.quiet) as bars:
        relay.target = bars
        model = load_model(args, path, relay)
    with model, model.chat(template=args.template, context_full=args.context_full, **options(args)) as talk:
        chat = Chat(args, path, model, talk, relay)
        chat.open(system)
        if not sys.stdin.isatty() or args.single_turn:
            return _through_pipes(chat, first, only=args.single_turn)
        from anex.cli.repl import Repl

        return Repl(chat, first).run()


def system_prompt(text: str | None) -> str | None:
    """The text, or that of the file after an @."""
    return read_text(text[1:]) if text is not None and text.startswith("@") else text


def note(text: str) -> None:
    """Tell the user something that is no answer."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


_CUT = ("CONTEXT", "LENGTH", "INTERRUPTED")
"""Reasons for which an answer is not whole."""


class Chat:
    """The conversation of a command: says what has to be said about a turn and keeps its file.

    Attributes:
        last: The last answer, for its figures.
        force: Whether conversations with other models may be loaded.
    """

    def __init__(
        self, args: argparse.Namespace, path: str, model: Model, talk: Conversation, relay: _Relay
    ) -> None:
        self.model = model
        self.talk = talk
        self.last: Completion | None = None
        self.force: bool = args.force
        self.quiet: bool = args.quiet
        self.engine = f"{args.engine}, {args.numerics}"
        self._path = path
        self._json: bool = args.json
        self._file: str | None = args.session
        self._relay = relay
        self._turns = 0

    def open(self, system: str | None) -> None:
        """Take up the conversation of the file; a file that is not there is made, so that it can be."""
        there = self._file is not None and os.path.lexists(self._file)
        if self._file is not None and there:
            self.talk.resume(self._file, force=self.force)
        if system is not None:
            self.talk.system = system
        if not there:
            self.keep()

    def keep(self) -> None:
        """Write the conversation to its file."""
        if self._file is not None:
            self.talk.save(self._file)

    def turn(self, ask: Callable[[], Completion], *, interruptible: bool = False) -> None:
        """One answer: streamed, or as a document; then the file is written.

        Args:
            ask: Begins it.
            interruptible: Ctrl-C ends the answer, a second one raises KeyboardInterrupt.
        """
        forgotten = self.talk.forgotten
        self.last = completion = ask()
        self._turns += 1
        if (gone := self.talk.forgotten - forgotten) > 0:
            note(f"[the context of {self.model.context} tokens is full: {gone} messages are forgotten]")
        with _interrupts(completion) if interruptible else nullcontext():
            self._answer(completion)
        reason = completion.stop_reason
        if reason and reason.name in _CUT and not self._json and sys.stderr.isatty():
            note(f"[{reason.value}]")
        self.keep()

    def _answer(self, completion: Completion) -> None:
        with progress_bars(not self.quiet) as bars:
            self._relay.target = bars
            first = next(completion, "")
            self._relay.target = None
        if self._json:
            completion.text()
            print(json.dumps({"schema": SCHEMA, **self._document(completion)}), flush=True)
            return
        show = _visible if sys.stdout.isatty() else str
        print(show(first), end="", flush=True)
        for piece in completion:
            print(show(piece), end="", flush=True)
        if not completion.said.endswith("\n"):
            print(flush=True)

    def _document(self, completion: Completion) -> dict[str, Any]:
        stats = completion.stats
        assert completion.stop_reason is not None
        return {
            "model": self._path,
            "engine": dict(self.model.describe()),
            "context": self.model.context,
            "turn": self._turns,
            "text": completion.said,
            "tokens": completion.ids,
            "seed": completion.seed,
            "stop_reason": completion.stop_reason.name.lower(),
            "messages": len(self.talk.messages),
            "forgotten_messages": self.talk.forgotten,
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "generated_tokens": stats.generated_tokens,
            "compile_seconds": round(stats.compile_seconds, 4),
            "prefill_seconds": round(stats.prefill_seconds, 4),
            "decode_seconds": round(stats.decode_seconds, 4),
            "first_token_seconds": round(stats.first_token_seconds, 4),
        }


class _Relay:
    """Passes progress on to the bars that are shown at the time."""

    target: Progress | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self.target is not None:
            self.target(stage, done, total)


def _first(args: argparse.Namespace) -> list[str]:
    messages = [*args.prompt, *([read_text(args.file)] if args.file is not None else [])]
    if args.single_turn and not messages:
        raise InputError("there is no message for the single turn", hint="-p TEXT or -f FILE")
    return messages


def _through_pipes(chat: Chat, first: list[str], *, only: bool) -> int:
    for message in first:
        chat.turn(partial(chat.talk.send, message))
    if not only:
        for message in _lines():
            chat.turn(partial(chat.talk.send, message))
    return 0


def _lines() -> Iterator[str]:
    """The lines of standard input that are not empty."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            where = f"standard input, line {number}"
            raise InputError(f"not UTF-8 at byte {error.start}", where=where) from None
        if text.strip():
            yield text


def _visible(text: str) -> str:
    """The text without what would steer a terminal."""
    return "".join(c if c in "\n\t" or not _is_control(c) else "\ufffd" for c in text)


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


@contextmanager
def _interrupts(completion: Completion) -> Iterator[None]:
    """Ctrl-C ends the completion, between two calls of the engine; a second one raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        completion.cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
