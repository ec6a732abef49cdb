"""Where lines of the log go: to a stream at once, or by a thread of their own that may wait for the stream's reader.

Writing to a pipe whose reader has stopped reading takes until it reads again. In the service nobody may wait for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import BinaryIO, Final, Protocol

WAITING_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much may wait to be written; a line past that is dropped."""

GATHER_SECONDS: Final = 0.02
"""How long lines are gathered before they are written in one piece: waking the thread costs more than a line."""

FLUSH_SECONDS_MAX: Final = 2.0
"""How long the end of the service waits for the last lines to be taken."""

RETRY_SECONDS: Final = 0.05
"""How soon a stream that takes nothing now, and does not wait, is tried again."""


_pause: Final = threading.Event().wait
"""Waits for so long; `time.sleep` fails where the system's clock is not what it seems (libfaketime)."""


class Lines(Protocol):
    """Takes whole lines, without their line feed. It never fails: there would be nowhere to say so."""

    def msg(self, line: bytes) -> None:
        """Take a line."""


class AtOnce:
    """Writes lines to a stream at once; one that cannot be written is lost."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def msg(self, line: bytes) -> None:
        """Write a line."""
        try:
            self._stream.write(line + b"\n")
            self._stream.flush()
        except (OSError, ValueError):  # Full, gone or closed.
            pass

    debug = info = warning = error = exception = critical = msg


class ByThread:
    """Hands lines to a thread that writes them, in order; what does not fit in is dropped.

    Whoever logs never waits for the stream. `flush` it at the end: a process that is killed loses what was logged in
    its last hundredths of a second.

    Args:
        stream: where lines go.
        on_dropped: called for each line that is dropped.
    """

    def __init__(self, stream: BinaryIO, on_dropped: Callable[[], None]) -> None:
        # Without the buffer in between: its lock would be the thread's when the interpreter ends and flushes it.
        self._write = getattr(stream, "raw", stream).write
        self._on_dropped = on_dropped
        self._lines: list[bytes] = []
        self._waiting = 0
        """How many bytes are not written yet, those that the thread has taken included."""
        # Reentrant: what the garbage collector ends in the middle of it may log as well.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        threading.Thread(target=self._work, name="log", daemon=True).start()

    def msg(self, line: bytes) -> None:
        """Take a line to be written soon, or drop it."""
        size = len(line) + 1
        with self._lock:
            fits = self._waiting + size <= WAITING_BYTES_MAX
            if fits:
                self._waiting += size
                self._lines.append(line)
                if len(self._lines) == 1:
                    self._changed.notify_all()
        if not fits:
            self._on_dropped()

    debug = info = warning = error = exception = critical = msg

    def flush(self, seconds_max: float = FLUSH_SECONDS_MAX) -> None:
        """Wait until all that was logged is written, for so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, seconds_max)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
            _pause(GATHER_SECONDS)
            with self._lock:
                taken, self._lines = self._lines, []
            text = b"\n".join(taken) + b"\n"
            self._write_all(text)
            with self._changed:
                self._waiting -= len(text)
                self._changed.notify_all()

    def _write_all(self, text: bytes) -> None:
        rest = memoryview(text)
        try:
            while rest:
                written = self._write(rest)
                if written is None:  # Whoever started us made it a stream that does not wait.
                    _pause(RETRY_SECONDS)
                rest = rest[written or 0 :]
        except (OSError, ValueError):  # Full, gone or closed: these lines are lost.
            pass
