"""Executes MIL on any machine: XLA through JAX, and one small native matmul."""

from anex.emulator import native
from anex.emulator.executable import Emulated
from anex.emulator.host import keep_compiled, limit_threads
from anex.emulator.numerics import Level

__all__ = ["Emulated", "Level", "keep_compiled", "limit_threads", "native"]
