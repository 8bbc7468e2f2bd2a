"""anex runs, trains and emulates neural networks on the Apple Neural Engine.

    import anex

    with anex.load("model.gguf") as model:
        for piece in model.generate("Once upon a time"):
            print(piece, end="", flush=True)

    executable = anex.compile("model.mil", engine="emulator")

Everything here is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anex.errors import AnexError

if TYPE_CHECKING:
    from anex import errors, mil
    from anex.api import compile
    from anex.runtime import Completion, Model, load

    __version__: str

__all__ = ["AnexError", "Completion", "Model", "__version__", "compile", "errors", "load", "mil"]

_HOMES = {
    "Completion": "anex.runtime",
    "Model": "anex.runtime",
    "compile": "anex.api",
    "load": "anex.runtime",
    "errors": "",
    "mil": "",
}
"""Public name → the module that has it; "" for a room of the package."""


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("anex")
        except PackageNotFoundError:  # a checkout that is not installed
            return "0+unknown"
    if name not in _HOMES:
        raise AttributeError(f"module 'anex' has no attribute '{name}'")
    home = _HOMES[name]
    if not home:
        return importlib.import_module(f"anex.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
