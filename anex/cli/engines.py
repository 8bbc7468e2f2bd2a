"""`anex engines`: what can execute a program here, and what the others need."""

from __future__ import annotations

import argparse

from anex.cli.console import add_json, print_json, print_table

NAME = "engines"
HELP = "list the engines and why one cannot be used here"

SCHEMA = "anex.engines/1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    from anex.engines import engines

    found = []
    for name, entry in engines().items():
        why = entry.missing()
        found.append((name, why, "" if why else entry.note()))
    if args.json:
        listed = [
            {"name": name, "usable": not why, "missing": why, "note": note} for name, why, note in found
        ]
        print_json(SCHEMA, {"engines": listed})
    else:
        rows = [(name, f"not here: {why}" if why else "usable", note) for name, why, note in found]
        print_table("Engines", ("engine", "state", "note"), rows)
    return 0
