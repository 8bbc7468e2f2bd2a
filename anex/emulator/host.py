"""The machine: XLA's threads, where compiled code is kept (both for the whole process), free memory."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from anex.errors import InputError

_THREADS = "NPROC"
"""XLA's CPU client sizes its thread pool by this variable when it is made; native kernels run there too."""


MAX_THREADS = 1024
"""Beyond this XLA spends minutes on making threads."""


def limit_threads(count: int) -> None:
    """Use so many threads from now on.

    Raises:
        InputError: The number is not positive, or XLA runs already with another one.
    """
    if not isinstance(count, int) or not 1 <= count <= MAX_THREADS:
        raise InputError(f"{count!r} threads", hint=f"give 1 … {MAX_THREADS}")
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


_MEMORY = (
    # (file, pattern of a number, bytes of its unit)
    (Path("/proc/meminfo"), re.compile(r"MemAvailable:\s*(\d+) kB"), 1024),
    (Path("/sys/fs/cgroup/memory.max"), re.compile(r"(\d+)"), 1),
)
"""Where Linux says how much memory is to be had: of the machine, and of the container."""


def available_memory() -> int:
    """Bytes that can be allocated now; where the system does not say, all that the machine has."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path, pattern, unit in _MEMORY:
        if path.exists() and (match := pattern.search(path.read_text())):
            found.append(int(match[1]) * unit)
    return min(found)


def _started() -> bool:
    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge  # jax has no public way to ask

    return xla_bridge.backends_are_initialized()
