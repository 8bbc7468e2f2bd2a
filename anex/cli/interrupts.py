"""Ctrl-C that is neither lost nor fatal.

A KeyboardInterrupt that Python raises inside JAX's own callbacks is swallowed
there, or ends the process in C++.  So while JAX is on the stack the signal is
only noted, and the command stops at its next `check`: after a compiled
function, after a token.  A second Ctrl-C ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

INTERRUPTED = 130
_noted = threading.Event()


def install() -> None:
    """Take the signal over where Python's own handler has it (a shell may have it ignored)."""
    _noted.clear()
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)


def check() -> None:
    """Stop here if the signal came.

    Raises:
        KeyboardInterrupt: It did.
    """
    if _noted.is_set():
        raise KeyboardInterrupt


def handled() -> None:
    """The command dealt with the signal and goes on: the next one is a first one again."""
    _noted.clear()


def _handle(number: int, frame: FrameType | None) -> None:
    if _noted.is_set():
        os._exit(INTERRUPTED)
    _noted.set()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).split(".")[0] in ("jax", "jaxlib"):
            return
        frame = frame.f_back
    raise KeyboardInterrupt
