"""How much memory a process holds while something runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

import psutil

MIB: Final = 2**20
INTERVAL_SECONDS: Final = 0.02


def rss(pid: int) -> int:
    """Return the resident bytes of a process."""
    return int(psutil.Process(pid).memory_info().rss)


@contextlib.contextmanager
def peak_rss(pid: int) -> Iterator[list[int]]:
    """Give the resident bytes of a process: at the beginning and, once the block is over, at most."""
    process = psutil.Process(pid)
    seen = [process.memory_info().rss]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(INTERVAL_SECONDS):
            with contextlib.suppress(psutil.Error):
                seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()
        seen[:] = [seen[0], max(seen)]
