"""How a command ends that has started servers: whatever tells it to, they end with it."""

from __future__ import annotations

import signal


def end_as_interrupted() -> None:
    """Let SIGTERM end this process as Ctrl-C does: what it has under way is cancelled, and cleans up.

    So does SIGINT in a process that a shell started in the background, which begins by ignoring it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
