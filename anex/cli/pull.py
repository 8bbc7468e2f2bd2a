"""`anex pull`: a model of the Hugging Face hub on this disk, or a model that is here, and its path."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anex.cli.console import add_cache_dir, add_json, bytes_text, print_json, progress_bars
from anex.errors import AnexError, InputError

if TYPE_CHECKING:
    from anex.formats.hub import Pulled

NAME = "pull"
HELP = "fetch a model from the Hugging Face hub and print its path"

SCHEMA = "anex.pull/1"

_ENDINGS = (".gguf", ".safetensors")
_PREFIXES = ("hf://", "https://huggingface.co/", "https://hf.co/")
_FILE_HELP = "which files, such as '*Q8_0*'; without it the safetensors model, else the only GGUF"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="NAME_OR_PATH", help="owner/name on the hub, or a file or folder")
    parser.add_argument("--file", metavar="PATTERN", help=_FILE_HELP)
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit (default: main)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")
    add_cache_dir(parser)
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Run the command."""
    content = _local(args) if is_path(args.model) else _from_hub(args, hub_name(args.model))
    if args.json:
        print_json(SCHEMA, content)
    else:
        print(content["path"])
    return 0


def hub_name(text: str) -> str:
    """`owner/name`, also out of the address of a model's page."""
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text.removesuffix("/") if text.count("/") > 1 else text


def is_path(text: str) -> bool:
    """Whether a model is meant that is on this disk: it is there, or its name can only be a path."""
    try:
        there = Path(text).exists()
    except (OSError, ValueError):
        there = False
    if there or text.startswith(_PREFIXES):
        return there
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or text.endswith((*_ENDINGS, "/"))


def _local(args: argparse.Namespace) -> dict[str, Any]:
    for option in ("file", "revision"):
        if getattr(args, option) is not None:
            raise InputError(f"--{option} chooses on the hub, not on this disk", where=args.model)
    path = Path(args.model)
    files = model_files(path)
    return _content(path.resolve(), None, files, 0)


def _from_hub(args: argparse.Namespace, name: str) -> dict[str, Any]:
    from anex.formats.hub import pull, root_of
    from anex.runtime import store

    root = root_of(store.folder(args.cache_dir))
    loud = not args.quiet and not args.json
    with progress_bars(loud) as progress:
        pulled = pull(name, root, pattern=args.file, revision=args.revision, progress=progress)
    if pulled.path.is_dir() or pulled.path.suffix in _ENDINGS:
        _check(pulled.path, args.file)
    if loud and (pulled.offline or sys.stderr.isatty()):
        print(_summary(pulled), file=sys.stderr)
    return _content(pulled.path, pulled.revision, pulled.files, pulled.fetched)


def _check(path: Path, pattern: str | None) -> None:
    try:
        model_files(path)
    except AnexError:
        # Who names files by a pattern may want less than a whole model.
        if path.is_file() or pattern is None:
            raise


def model_files(path: Path) -> dict[str, int]:
    """The weight files of a model on this disk and their sizes, once they have been opened.

    Raises:
        AnexError: It is no model that anex reads.
    """
    from anex.formats.gguf import GGUFFile
    from anex.formats.safetensors import PICKLES, SafetensorsFile, SafetensorsFolder

    reader: Any = GGUFFile
    if path.is_dir():
        reader = SafetensorsFolder
    elif path.suffix in (".safetensors", *PICKLES):
        reader = SafetensorsFile
    with reader(path) as model:
        if isinstance(model, SafetensorsFolder):
            _ = model.config
        return {file.name: file.stat().st_size for file in model.files}


def _content(path: Path, revision: str | None, files: dict[str, int], fetched: int) -> dict[str, Any]:
    return {
        "path": str(path),
        "revision": revision,
        "bytes": sum(files.values()),
        "fetched": fetched,
        "files": [{"name": name, "bytes": nbytes} for name, nbytes in files.items()],
    }


def _summary(pulled: Pulled) -> str:
    if pulled.offline:
        return f"anex: {pulled.offline}; this is commit {pulled.revision[:12]}, fetched before"
    new = bytes_text(pulled.fetched) if pulled.fetched else "nothing new"
    return f"{bytes_text(pulled.nbytes)} in {len(pulled.files)} files, {new} fetched"
