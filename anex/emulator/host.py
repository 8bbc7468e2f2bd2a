"""Settings of XLA that hold for the whole process: threads, and where compiled code is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from anex.errors import InputError

_THREADS = "NPROC"
"""XLA's CPU client sizes its thread pool by this variable when it is made; native kernels run there too."""


def limit_threads(count: int) -> None:
    """Use so many threads from now on.

    Raises:
        InputError: The number is not positive, or XLA runs already with another one.
    """
    if count < 1:
        raise InputError(f"{count} threads", hint="give 1 or more")
    if os.environ.get(_THREADS) == str(count):
        return
    if _started():
        raise InputError(
            f"cannot change to {count} threads: XLA has started",
            hint="set them before the first model is loaded",
        )
    os.environ[_THREADS] = str(count)


def keep_compiled(folder: Path) -> None:
    """Keep compiled functions in a folder between runs; without the right to write there, do not."""
    import jax

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _started() -> bool:
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge  # jax has no public way to ask

    return xla_bridge.backends_are_initialized()
