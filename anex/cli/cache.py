"""`anex cache`: what the cache on disk holds, and clearing it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from anex.cli.console import add_cache_dir, add_json, bytes_text, print_json, print_table
from anex.errors import InputError

if TYPE_CHECKING:
    from anex.runtime import store

NAME = "cache"
HELP = "list or clear converted models, compiled functions and pulled models"

SCHEMA_LS = "anex.cache.ls/1"
SCHEMA_CLEAR = "anex.cache.clear/1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="list what the cache holds, the last used first")
    listing.set_defaults(action=_list)
    clearing = actions.add_parser("clear", help="delete entries: all, the named ones, or the oldest ones")
    clearing.add_argument("names", nargs="*", metavar="NAME", help="entries, as `ls` names them")
    clearing.add_argument(
        "--keep",
        metavar="SIZE",
        help="delete the least recently used but for pulled models down to this size (5G)",
    )
    clearing.set_defaults(action=_clear)
    for action in (listing, clearing):
        add_cache_dir(action)
        add_json(action)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    code: int = args.action(args)
    return code


def _list(args: argparse.Namespace) -> int:
    from anex.runtime import store

    root, limit = store.folder(args.cache_dir), store.limit()
    made, fetched = store.entries(root), _pulled(root)
    total, pulled = (sum(entry.nbytes for entry in entries) for entries in (made, fetched))
    entries = sorted([*made, *fetched], key=lambda entry: -entry.used)
    if args.json:
        sizes = {"folder": str(root), "limit": limit, "bytes": total, "pulled_bytes": pulled}
        listed = [{"name": e.name, "bytes": e.nbytes, "used": round(e.used)} for e in entries]
        print_json(SCHEMA_LS, {**sizes, "entries": listed})
        return 0
    rows = [
        (e.name, bytes_text(e.nbytes), time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used)))
        for e in entries
    ]
    most = f"of {bytes_text(limit)}" if limit else "without a limit"
    beside = f", and {bytes_text(pulled)} of pulled models" if fetched else ""
    print_table(f"{root}: {bytes_text(total)} {most}{beside}", ("entry", "size", "last used"), rows)
    return 0


def _pulled(root: Path) -> list[store.Entry]:
    """Models from the hub: listed and cleared like the rest, but no limit deletes what was asked for."""
    from anex.formats.hub import downloads, root_of
    from anex.runtime import store

    return [store.Entry(d.path, d.nbytes, d.pulled) for d in downloads(root_of(root))]


def _clear(args: argparse.Namespace) -> int:
    from anex.runtime import store

    root = store.folder(args.cache_dir)
    made = store.entries(root)
    entries = [*made, *_pulled(root)]
    if args.keep is not None:
        if args.names:
            raise InputError("--keep chooses the entries itself", hint="give names or --keep")
        most = store.size_of(args.keep)
        gone = store.evict(root, (), most) if most else made
        freed = sum(entry.nbytes for entry in gone) if most else store.remove(made)
    else:
        known = {entry.name: entry for entry in entries}
        for name in args.names:
            if name not in known:
                raise InputError(
                    f"the cache has no entry '{name}'", where=str(root), hint="see anex cache ls"
                )
        gone = [known[name] for name in args.names] if args.names else entries
        freed = store.remove(gone)
    if args.json:
        names = [entry.name for entry in gone]
        print_json(SCHEMA_CLEAR, {"folder": str(root), "freed": freed, "entries": names})
    else:
        print(f"freed {bytes_text(freed)} in {len(gone)} entries")
    return 0
