"""Engines: what executes a MIL program.  Found by name; one conformance suite for all."""

from anex.engines import emulator as _emulator  # registers itself
from anex.engines.protocol import Bound, Engine, Executable, Port, engine, engines
from anex.engines.surface import Surface

__all__ = ["Bound", "Engine", "Executable", "Port", "Surface", "engine", "engines"]

del _emulator
