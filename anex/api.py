"""`anex.compile`: from a MIL program, or the text of one, to something that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anex.engines import Executable
from anex.engines import engine as find_engine
from anex.errors import InputError
from anex.files import StrPath, map_file
from anex.mil import BLOB_PATH, BlobFile, Program, parse


def compile(
    program: Program | StrPath, *, blob: StrPath | None = None, engine: str = "emulator", **options: Any
) -> Executable:
    """Load a program into an engine.

    Args:
        program: A program, or the path of a MIL text.
        blob: Its weight file.  By default, for a text, `weights/weight.bin` beside it if it is there.
        engine: Name of an engine.
        options: What the engine takes, such as `numerics="fp32"`.

    Raises:
        InputError: The program, its text or its blob is malformed.
        CompileError: The engine refuses it.
        LoadError: There is no such engine here.
    """
    chosen = find_engine(engine, **options)
    if not isinstance(program, Program):
        beside = Path(program).parent / BLOB_PATH.removeprefix("@model_path/")
        if blob is None and beside.exists():
            blob = beside
        program = parse(_text(program), source=str(program))
    return chosen.compile(program, None if blob is None else BlobFile(blob))


def _text(path: StrPath) -> str:
    try:
        return bytes(map_file(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not UTF-8 at byte {error.start}", where=str(path)) from None
