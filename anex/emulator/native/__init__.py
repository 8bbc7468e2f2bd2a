"""Finds the native kernels that the package's build made, and registers them with XLA."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

_TARGETS = ("anex_dot", "anex_outer")
_BEST_FIRST = ("avx512", "avx2", "base")
"""Instruction sets in the order of preference; setup.py names the libraries by them."""

_log = logging.getLogger("anex")


@cache
def available() -> bool:
    """Whether there are kernels that run on this processor; registers them once."""
    library = _library()
    if library is None:
        _log.info("no native matmul (the install builds it where a C++ compiler is there): XLA, slower")
        return False
    import jax

    for target in _TARGETS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
    return True


def _library() -> ctypes.CDLL | None:
    for name in _BEST_FIRST:
        for path in sorted(Path(__file__).parent.glob(f"_kernels_{name}.*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError as error:
                _log.warning("cannot load the native matmul: %s", error)
                continue
            if library.anex_runs_here():
                return library
    return None
