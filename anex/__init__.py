"""anex turns neural networks into programs of the Apple Neural Engine, and runs these in an emulator.

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
    from anex.runtime import Completion, Conversation, Encoder, Model, load, load_decoder, load_encoder

    __version__: str

__all__ = [
    "AnexError",
    "Completion",
    "Conversation",
    "Encoder",
    "Model",
    "__version__",
    "compile",
    "errors",
    "load",
    "load_decoder",
    "load_encoder",
    "mil",
]

_HOMES = {
    "Completion": "anex.runtime",
    "Conversation": "anex.runtime",
    "Encoder": "anex.runtime",
    "Model": "anex.runtime",
    "compile": "anex.api",
    "load": "anex.runtime",
    "load_decoder": "anex.runtime",
    "load_encoder": "anex.runtime",
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
