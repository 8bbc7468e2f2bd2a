"""The conversation on a terminal: lines in, commands, what Ctrl-C and Ctrl-D mean."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType

from anex.cli import interrupts
from anex.cli.chat import Chat, note, system_prompt
from anex.cli.console import printable
from anex.errors import AnexError, InputError

_QUOTES = '"""'
_AGAIN = "(Ctrl-C again or Ctrl-D ends the conversation)"
_INPUT_HELP = f"""A line that ends with \\ goes on with the next one; {_QUOTES} begins and ends several lines.
Ctrl-C stops an answer, Ctrl-D ends the conversation. // begins a message with a slash."""


class Repl:
    """Reads messages and commands until there are no more.

    Args:
        first: Messages that come before those that are typed.
    """

    def __init__(self, chat: Chat, first: Sequence[str]) -> None:
        self._chat = chat
        self._first = list(first)
        self._going = True
        self._keys = Keyboard()
        self._keys.remember(str(m["content"]) for m in chat.talk.messages if m["role"] == "user")

    def run(self) -> int:
        """Talk, and return the exit code.

        Ctrl-C at the prompt, or while a call of the engine is still to end after one, gives a warning; the
        next one raises KeyboardInterrupt if nothing was typed in between.
        """
        if not self._chat.quiet:
            self._greet()
        warned = False
        while self._going:
            try:
                text = self._next()
                warned = False
                if text is None:
                    print(file=sys.stderr)
                    break
                self._try(partial(self._take, text))
            except KeyboardInterrupt:
                interrupts.handled()
                if warned:
                    print(file=sys.stderr)
                    raise
                note(f"\n{_AGAIN}")
                warned = True
        return 0

    def _next(self) -> str | None:
        """What is to be done next: one of the first messages, or what is typed; None at its end."""
        if not self._first:
            return self._keys.read()
        message = self._first.pop(0)
        note(f"> {message}")
        return f"/{message}" if message.startswith("/") else message

    def _greet(self) -> None:
        chat = self._chat
        name = chat.model.file.name or chat.model.file.path.name
        note(f"{name} · {chat.engine} · context {chat.model.context} · /help")
        if count := len([m for m in chat.talk.messages if m["role"] != "system"]):
            note(f"[resumed after {count} messages]")

    def _try(self, work: Callable[[], None]) -> None:
        """What goes wrong in a turn ends the turn."""
        try:
            work()
        except AnexError as error:
            note(f"anex: error: {printable(str(error))}")

    def _take(self, text: str) -> None:
        if text.startswith("//"):
            self._send(text[1:])
        elif text.startswith("/"):
            name, _, argument = text[1:].partition(" ")
            self._command(name, argument.strip())
        elif text.strip():
            self._send(text)

    def _send(self, text: str) -> None:
        self._chat.turn(partial(self._chat.talk.send, text), interruptible=True)

    def _command(self, name: str, argument: str) -> None:
        if name not in _COMMANDS:
            raise InputError(f"no command '/{name}'", hint="/help lists them; // begins a message")
        _, _, run = _COMMANDS[name]
        run(self, argument)

    # --- the commands, each with what follows its name ---

    def help(self, argument: str) -> None:
        rows = [(f"/{name} {usage}".rstrip(), help) for name, (usage, help, _) in _COMMANDS.items()]
        width = max(len(left) for left, _ in rows)
        note("\n".join(f"  {left:{width}}  {help}" for left, help in rows) + f"\n{_INPUT_HELP}")

    def system(self, argument: str) -> None:
        talk = self._chat.talk
        if argument:
            talk.system = None if argument == "-" else system_prompt(argument)
            self._chat.keep()
        note("[no system prompt of your own]" if talk.system is None else f"[system: {talk.system}]")

    def reset(self, argument: str) -> None:
        self._chat.talk.reset()
        self._chat.keep()
        note("[all messages are forgotten]")

    def save(self, argument: str) -> None:
        self._chat.talk.save(_file(argument))
        note(f"[saved to {argument}]")

    def load(self, argument: str) -> None:
        talk = self._chat.talk
        talk.resume(_file(argument), force=self._chat.force)
        self._keys.remember(str(m["content"]) for m in talk.messages if m["role"] == "user")
        self._chat.keep()
        note(f"[{len(talk.messages)} messages of {argument}]")

    def regen(self, argument: str) -> None:
        self._chat.turn(self._chat.talk.regenerate, interruptible=True)

    def undo(self, argument: str) -> None:
        text = self._chat.talk.undo()
        self._chat.keep()
        note(f"[taken back: {text}]")

    def stats(self, argument: str) -> None:
        chat, talk = self._chat, self._chat.talk
        lines = [
            f"{chat.engine} · {chat.model.session.past} of {chat.model.context} tokens are held",
            f"{len(talk.messages)} messages, {talk.forgotten} of them forgotten",
        ]
        if chat.last is not None:
            s = chat.last.stats
            lines += [
                f"last prompt: {s.prompt_tokens} tokens, {s.reused_tokens} of them reused, the others at "
                f"{s.prefill_rate:.1f}/s",
                f"last answer: {s.generated_tokens} tokens at {s.decode_rate:.1f}/s, the first after "
                f"{s.first_token_seconds:.1f} s",
            ]
        note("\n".join(lines))

    def quit(self, argument: str) -> None:
        self._going = False


_COMMANDS: dict[str, tuple[str, str, Callable[[Repl, str], None]]] = {
    "help": ("", "this list", Repl.help),
    "system": ("[TEXT]", "show or set the system prompt; @FILE reads it, - removes it", Repl.system),
    "reset": ("", "forget all messages", Repl.reset),
    "save": ("FILE", "write the conversation to a file", Repl.save),
    "load": ("FILE", "go on with the conversation of a file", Repl.load),
    "regen": ("", "another answer to the last message", Repl.regen),
    "undo": ("", "take the last message and its answer back", Repl.undo),
    "stats": ("", "what is held, and the figures of the last turn", Repl.stats),
    "quit": ("", "end", Repl.quit),
}
"""Name → what follows it, help, what it does."""


def _file(argument: str) -> str:
    if not argument:
        raise InputError("no file is named", hint="/save FILE, /load FILE")
    return argument


class Keyboard:
    """Messages from a terminal, with the history and the editing of readline where Python has it."""

    def __init__(self) -> None:
        # `input` uses readline only where it reads from and writes to a terminal.
        self._edits = sys.stdout.isatty()
        self._readline = _readline() if self._edits else None
        self._colour = self._edits and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def remember(self, lines: Iterable[str]) -> None:
        """Put lines into the history."""
        if self._readline:
            for line in lines:
                self._readline.add_history(line)

    def read(self) -> str | None:
        """The next message; None at the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was typed of the message is gone.
        """
        line = self._line("> ")
        if line is None:
            return None
        if line.lstrip().startswith(_QUOTES):
            return self._quoted(line.lstrip().removeprefix(_QUOTES))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line(". ") or "")
        return "\n".join(lines)

    def _quoted(self, line: str) -> str:
        lines: list[str] = []
        while not line.rstrip().endswith(_QUOTES):
            lines.append(line)
            following = self._line(". ")
            if following is None:
                return "\n".join(lines).strip("\n")
            line = following
        return "\n".join([*lines, line.rstrip().removesuffix(_QUOTES)]).strip("\n")

    def _line(self, prompt: str) -> str | None:
        try:
            if self._edits:
                return input(self._painted(prompt))
            print(prompt, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        except EOFError:
            return None
        except UnicodeDecodeError:
            note("[that was no UTF-8, and is ignored]")
            return ""

    def _painted(self, prompt: str) -> str:
        if not self._colour:
            return prompt
        on, off = "\x1b[1;32m", "\x1b[0m"
        # The marks tell readline what takes no room on the line.
        return f"\x01{on}\x02{prompt}\x01{off}\x02" if self._readline else f"{on}{prompt}{off}"


def _readline() -> ModuleType | None:
    with suppress(ImportError):
        import readline

        return readline
    return None
