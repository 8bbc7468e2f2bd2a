"""What the commands share: where the model and the cache are given, progress bars, tables, JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anex.cli import interrupts
from anex.errors import InputError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from anex.runtime import Progress

_STAGES = {
    "convert": "Converting the model",
    "compile": "Compiling",
    "embed": "Embedding",
    "evaluate": "Evaluating",
}


def add_model(parser: argparse.ArgumentParser) -> None:
    """`MODEL` or `-m MODEL`; see `model_path`."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file or a model folder")
    parser.add_argument("-m", "--model", dest="model_option", metavar="MODEL", help="the same as an option")


def model_path(args: argparse.Namespace) -> str:
    """The model that was named.

    Raises:
        InputError: None was, or two.
    """
    given = [path for path in (args.model, args.model_option) if path is not None]
    if len(given) != 1:
        what = "two models are given" if given else "no model is given"
        raise InputError(what, hint="anex COMMAND MODEL, or -m MODEL")
    return str(given[0])


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="folder for converted models (default: $ANEX_CACHE, else the user's cache)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def print_json(schema: str, content: dict[str, Any]) -> None:
    """One document; `schema` is its name and version."""
    print(json.dumps({"schema": schema, **content}, indent=2))


@contextmanager
def progress_bars(wanted: bool) -> Iterator[Progress]:
    """Bars with the time that is left, on stderr; nothing where it is no terminal.

    They are gone when the block ends, and calls after that show nothing.  Every
    call is a place where the command stops if Ctrl-C was noted before.
    """
    if not wanted or not sys.stderr.isatty():
        yield lambda stage, done, total: interrupts.check()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def report(stage: str, done: int, total: int) -> None:
            interrupts.check()
            if stage not in tasks:
                tasks[stage] = bars.add_task(_STAGES.get(stage, stage))
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: drawn on a terminal, columns of plain text elsewhere.  Numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[i], (int, float)) for row in rows) and bool(rows) for i in range(len(headers))
    ]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, title_justify="left")
        for header, is_number in zip(headers, right, strict=True):
            table.add_column(header, justify="right" if is_number else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
    print(title)
    for row in [list(headers), *cells]:
        fitted = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, right, strict=True)
        ]
        print("  " + "  ".join(fitted).rstrip())


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return printable(text)


def printable(text: str) -> str:
    """A text as one line that can do nothing to a terminal: what is not printable is written as in Python."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def bytes_text(count: int) -> str:
    """A size for people, such as `98.1 MB`."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def read_text(path: str) -> str:
    """A whole UTF-8 file, or standard input for `-`; one newline at its end is not part of it.

    Raises:
        InputError: It cannot be read, or is no UTF-8.
    """
    from anex.files import refusal

    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise refusal(error, path) from error
    except ValueError as error:
        raise InputError(f"the path is not valid: {error}", where=ascii(path)) from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = "standard input" if path == "-" else path
        raise InputError(f"not UTF-8 at byte {error.start}", where=where) from None
    return text.removesuffix("\n").removesuffix("\r")
