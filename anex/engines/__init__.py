"""Engines: what executes a MIL program.  Found by name; one conformance suite for all."""

from anex.engines import emulator as _emulator  # registers itself
from anex.engines.port import Port
from anex.engines.protocol import Bound, Engine, Executable, State, engine, engines
from anex.engines.surface import HostSurface, Surface

__all__ = ["Bound", "Engine", "Executable", "HostSurface", "Port", "State", "Surface", "engine", "engines"]

del _emulator
