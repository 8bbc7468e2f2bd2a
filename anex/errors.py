"""Everything anex refuses, as one small tree.

Each error says what is wrong, where, and what to do about it, in one line.
The command line prints that line and exits with `exit_code`.
"""

from __future__ import annotations


class AnexError(Exception):
    """Base class of every error that anex raises on purpose.

    Args:
        what: What is wrong, without a final full stop.
        where: File, line, op or key that it concerns; empty if there is none.
        hint: What the reader can do about it; empty if nothing is known.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(what, where, hint)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text


class InputError(AnexError):
    """A file, a text, a program or an argument is malformed."""


class UnsupportedError(AnexError):
    """The input is well-formed but needs a feature that anex does not have.

    Args:
        feature: The name of the missing feature, as the input spells it.
    """

    def __init__(self, feature: str, *, where: str = "", hint: str = "") -> None:
        self.feature = feature
        super().__init__(f"not supported: {feature}", where=where, hint=hint)


class ResourceError(AnexError):
    """Memory, disk space, a limit or a permission is missing."""


class EngineError(AnexError):
    """Base class of what goes wrong inside an engine."""

    exit_code = 3


class CompileError(EngineError):
    """An engine refused a program."""


class LoadError(EngineError):
    """An engine is not there, or could not load a compiled program."""


class EvaluateError(EngineError):
    """A call of a loaded program failed."""


class SurfaceError(EngineError):
    """A surface has the wrong size, dtype or layout for its port."""
