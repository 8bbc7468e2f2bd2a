"""The `anex` command: one module per subcommand; everything heavy is imported when it runs."""

from anex.cli.main import main

__all__ = ["main"]
