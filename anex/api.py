"""`anex.compile`: from a MIL program, or the text of one, to something that runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anex.engines import Executable
from anex.engines import engine as find_engine
from anex.errors import InputError
from anex.files import StrPath, map_file
from anex.mil import BLOB_PATH, MODEL_PATH, BlobFile, Program, parse, stays_inside

_MIL_TEXT = re.compile(r"\s*program\s*\([^)]*\)[^{]*\{")
"""How a text begins, and hardly ever a path."""


def compile(
    program: Program | StrPath,
    *,
    blob: StrPath | Mapping[str, StrPath] | None = None,
    engine: str = "emulator",
    **options: Any,
) -> Executable:
    """Load a program into an engine.

    Args:
        program: A program, or the path of a MIL text.
        blob: Its weight file, or several by the paths that the program calls them.
            By default, for a text, those that lie beside it where the program says.
        engine: Name of an engine.
        options: What the engine takes, such as `numerics="fp32"`.

    Returns:
        What runs; closing it closes the weight files.

    Raises:
        InputError: The program, its text or its blob is malformed, or an option is unknown.
        CompileError: The engine refuses it.
        ResourceError: It needs more memory than there is.
        LoadError: There is no such engine here.
    """
    chosen = find_engine(engine, **options)
    paths: dict[str, StrPath] = {}
    if not isinstance(program, Program):
        _check_path(program)
        folder = Path(program).parent
        program = parse(_text(program), source=str(program))
        paths = _beside(folder, program)
    if blob is not None:
        paths = dict(blob) if isinstance(blob, Mapping) else {BLOB_PATH: blob}
    with ExitStack() as opened:
        files = {name: opened.enter_context(BlobFile(path)) for name, path in paths.items()}
        executable = chosen.compile(program, files)
        opened.pop_all()  # the executable closes them
        return executable


def _beside(folder: Path, program: Program) -> dict[str, StrPath]:
    """The weight files of a program that are there, below the folder of its text."""
    # A path that leads elsewhere is not opened; the verifier names it.
    inside = [path for path in program.blob_paths() if stays_inside(path)]
    found = {path: folder / path.removeprefix(MODEL_PATH) for path in inside}
    return {path: file for path, file in found.items() if os.path.exists(file)}


def _check_path(path: object) -> None:
    """Refuse what is neither a program nor a path, and a text where its path is meant."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise InputError(f"{path.__class__.__name__} is neither a program nor the path of a MIL text")
    if _MIL_TEXT.match(name):
        raise InputError("the path of a MIL text is expected", hint="that is MIL text: parse() it first")


def _text(path: StrPath) -> str:
    try:
        return bytes(map_file(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not UTF-8 at byte {error.start}", where=str(path)) from None
