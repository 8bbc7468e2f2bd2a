"""Finds the native kernels that the package's build made, and registers them with XLA."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

_TARGETS = ("anex_dot", "anex_outer")
_log = logging.getLogger("anex")


@cache
def available() -> bool:
    """Whether the native kernels are there and run on this processor; registers them once."""
    library = next(iter(sorted(Path(__file__).parent.glob("_kernels*.so"))), None)
    if library is None:
        _log.info("no native matmul (the install builds it where a C++ compiler is there): XLA, slower")
        return False
    lib = ctypes.CDLL(str(library))
    if not lib.anex_runs_here():
        _log.warning("%s was built for another processor: XLA does the work, slower", library.name)
        return False
    import jax

    for target in _TARGETS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(lib, target)), platform="cpu")
    return True
