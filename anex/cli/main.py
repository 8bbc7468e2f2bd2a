"""Parses the command line, runs the command, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

from anex.cli import cache, chat, embed, engines, evaluate, info, interrupts, pull, run
from anex.errors import AnexError, ResourceError
from anex.files import refusal

COMMANDS = (run, chat, embed, evaluate, pull, info, cache, engines)
"""Each has NAME, HELP, `configure(parser)` and `execute(args) -> exit code`."""


class _Version(argparse.Action):
    """Prints the version; asking the package's metadata for it costs time that `--help` need not spend."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import anex

        print(f"anex {anex.__version__}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="anex",
        description="Turns neural networks into programs of the Apple Neural Engine, and emulates these.",
        epilog="Exit codes: 0 fine, 2 bad input, 3 an engine failed, 130 interrupted.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.configure(command)
        command.set_defaults(execute=module.execute)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code (2 and an exit where it cannot be parsed)."""
    _open_missing_streams()
    interrupts.install()
    # Libraries warn about their own insides; what matters here is an error.
    warnings.filterwarnings("ignore", module=r"jax(lib)?\b")
    try:
        args = parser().parse_args(argv)
        code: int = args.execute(args)
        interrupts.check()
        sys.stdout.flush()
        return code
    except AnexError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return interrupts.INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough.
        _discard_output()
        return 0
    except OSError as error:
        return _fail(refusal(error, error.filename or "output"))
    except MemoryError:
        return _fail(ResourceError("not enough memory", hint="a smaller model or a shorter context (-c)"))


def _fail(error: AnexError) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error))
    with suppress(OSError):  # nobody can be told; the exit code still says it
        print(f"anex: error: {line}", file=sys.stderr, flush=True)
    return error.exit_code


def _open_missing_streams() -> None:
    """A standard stream that the caller closed is None in Python; give commands one that goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - lives as long as sys


def _discard_output() -> None:
    """Let the interpreter's own flush at exit go nowhere instead of failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
