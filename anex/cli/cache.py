"""`anex cache`: what the cache on disk holds, and clearing it."""

from __future__ import annotations

import argparse
import time

from anex.cli.console import add_cache_dir, add_json, bytes_text, print_json, print_table
from anex.errors import InputError

NAME = "cache"
HELP = "list or clear converted models and compiled functions"

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
        "--keep", metavar="SIZE", help="delete the least recently used down to this size (5G)"
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
    entries = store.entries(root)
    total = sum(entry.nbytes for entry in entries)
    if args.json:
        listed = [{"name": e.name, "bytes": e.nbytes, "used": round(e.used)} for e in entries]
        print_json(SCHEMA_LS, {"folder": str(root), "limit": limit, "bytes": total, "entries": listed})
        return 0
    rows = [
        (e.name, bytes_text(e.nbytes), time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used)))
        for e in entries
    ]
    most = f"of {bytes_text(limit)}" if limit else "without a limit"
    print_table(f"{root}: {bytes_text(total)} {most}", ("entry", "size", "last used"), rows)
    return 0


def _clear(args: argparse.Namespace) -> int:
    from anex.runtime import store

    root = store.folder(args.cache_dir)
    entries = store.entries(root)
    if args.keep is not None:
        if args.names:
            raise InputError("--keep chooses the entries itself", hint="give names or --keep")
        most = store.size_of(args.keep)
        gone = store.evict(root, (), most) if most else entries
        freed = sum(entry.nbytes for entry in gone) if most else store.remove(entries)
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
