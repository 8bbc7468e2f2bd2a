"""Small helpers of the benchmarks: child processes with their resources, medians, the table."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Child:
    """What a command used: CPU seconds (user + system), wall seconds, seconds to its first
    output, and the largest resident set in bytes."""

    cpu: float
    wall: float
    first: float
    peak: int


def child(command: Sequence[str | Path], **environment: str) -> Child:
    """Run a command and measure it; its standard output is read and dropped."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [str(c) for c in command],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
        )
        assert process.stdout is not None
        process.stdout.read(1)
        first = time.perf_counter() - begin
        while process.stdout.read(65536):
            continue
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, command))}\n{errors.read().decode()}")
    scale = 1 if sys.platform == "darwin" else 1024
    return Child(usage.ru_utime + usage.ru_stime, wall, first, usage.ru_maxrss * scale)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the range where there is one."""
    text = f"{median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}–{max(values):.{digits}f})"


@dataclass
class Table:
    """Rows of a Markdown table: what, the figure to reach, what was measured, whether it holds."""

    rows: list[tuple[str, str, str, bool | None]] = field(default_factory=list)

    def add(self, what: str, wanted: str, measured: str, reached: bool | None) -> None:
        """A row; `reached` None where there is no figure to reach."""
        self.rows.append((what, wanted, measured, reached))
        mark = {True: "ok  ", False: "MISS", None: "    "}[reached]
        print(f"{mark} {what}: {measured}" + (f" (wanted {wanted})" if wanted else ""), flush=True)

    def markdown(self) -> str:
        lines = ["| what | to reach | measured | |", "|---|---|---|---|"]
        words = {True: "reached", False: "**not reached**", None: ""}
        lines += [f"| {w} | {t} | {m} | {words[r]} |" for w, t, m, r in self.rows]
        return "\n".join(lines)


def machine() -> str:
    """The processor, in words."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
