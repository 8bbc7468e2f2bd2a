"""The parent's side of the process that renders templates: started, asked, and killed where it is late."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from anex.errors import ResourceError

_WORKER = Path(__file__).with_name("worker.py")
_CHUNK = 1 << 16
_START_SECONDS = 30.0
"""For Python and jinja2 to be there, on a machine that is busy with a model."""


@dataclass(frozen=True)
class Limits:
    """What a template may use.

    Attributes:
        cpu_seconds: For one render.
        wall_seconds: For one render; longer, as the machine may be busy with other work.
        memory: Bytes of address space of the whole process, Python included (Linux; macOS has no such limit,
            there the limits of time and size have to do).
        characters: Of the text that it makes.
    """

    cpu_seconds: float = 1.0
    wall_seconds: float = 4.0
    memory: int = 512 << 20
    characters: int = 16 << 20


class Killed(Exception):
    """The child is dead; `time` says whether it had used its time up."""

    def __init__(self, time: bool) -> None:
        super().__init__()
        self.time = time


class Child:
    """A process with one template.

    It is a fresh one, not a fork: the parent has threads and gigabytes.
    """

    def __init__(self, source: str, limits: Limits) -> None:
        self._limits = limits
        try:
            # -P: the folder of the worker is no place to import from. A session of its own: Ctrl-C in a
            # terminal means the answer of the model.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise ResourceError(
                "the process for chat templates does not start", hint=error.strerror or str(error)
            ) from error
        self.close = weakref.finalize(self, _end, self._process)
        os.set_blocking(_pipe(self._process.stdin).fileno(), False)
        start = asdict(limits)
        del start["wall_seconds"]
        self._pending = json.dumps({"source": source, **start}).encode() + b"\n"
        self._patience = _START_SECONDS

    def ask(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The child's reply to one request (see `worker`).

        Raises:
            Killed: It died, or was late and is dead now.
            TypeError, ValueError: The variables cannot be written as JSON.
        """
        line = self._pending + json.dumps({"variables": variables}).encode() + b"\n"
        deadline = time.monotonic() + self._patience + self._limits.wall_seconds
        reply = self._exchange(line, deadline)
        self._pending, self._patience = b"", 0.0
        if reply is None:
            raise self._killed()
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def _exchange(self, line: bytes, deadline: float) -> bytes | None:
        """Writes a line and reads one; None if the child was late or is gone."""
        stdin, stdout = _pipe(self._process.stdin), _pipe(self._process.stdout)
        reply = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            ready.register(stdin, selectors.EVENT_WRITE)
            while not reply.endswith(b"\n"):
                patience = deadline - time.monotonic()
                events = ready.select(patience) if patience > 0 else []
                if not events:
                    return None
                for key, _ in events:
                    if key.fileobj is stdin:
                        try:
                            line = line[os.write(stdin.fileno(), line[:_CHUNK]) :]
                        except BrokenPipeError:
                            line = b""
                        if not line:
                            ready.unregister(stdin)
                    elif data := os.read(stdout.fileno(), _CHUNK):
                        reply += data
                    else:
                        return None
        return bytes(reply)

    def _killed(self) -> Killed:
        """Ends the child and tells why there was no reply."""
        late = self._process.poll() is None and not self._gone()
        self.close()
        return Killed(late or -(self._process.returncode or 0) in (signal.SIGPROF, signal.SIGXCPU))

    def _gone(self) -> bool:
        """Whether the child has ended by itself; the end of its output may come a little before."""
        try:
            self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            return False
        return True


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
