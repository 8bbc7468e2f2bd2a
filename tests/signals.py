"""For tests that interrupt a child."""

import signal


def restore_interrupts() -> None:
    """Runs in the child: a suite started in the background inherits that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
