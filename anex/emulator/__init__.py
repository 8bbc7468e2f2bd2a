"""Executes MIL on any machine: XLA through JAX, and one small native matmul."""

from anex.emulator.executable import Emulated
from anex.emulator.numerics import Level

__all__ = ["Emulated", "Level"]
