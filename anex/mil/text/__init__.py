"""MIL text, both dialects: `parse` reads it, `print_program` writes it as Apple's compiler does."""

from anex.mil.text.parser import parse
from anex.mil.text.printer import print_program

__all__ = ["parse", "print_program"]
