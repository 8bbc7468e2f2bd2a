"""For tests that interrupt a child."""

import signal
import sys

LAUNCHER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def restore_interrupts() -> None:
    """A suite started in the background inherits that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interruptible(*arguments: str) -> list[str]:
    """The command of a Python that can be interrupted, however the suite was started.

    A process of its own does that, as no code may run between the fork and the
    start of a child: JAX has threads.
    """
    return [sys.executable, "-c", LAUNCHER, *arguments]
