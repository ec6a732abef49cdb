"""The peer's work, run by the Python of the peer's own environment: nothing of this project can be imported here."""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from typing import Any

from credit_ledger import metering
from sqlalchemy import Engine, create_engine

HELD, RETURNED = 11, 4


class Run:
    """Threads that each take credits for a job and give some back, again and again."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.accounts: list[str] = task["accounts"]
        self.prefix: str = task["prefix"]
        self.start = time.perf_counter() + task["warm_up_seconds"]
        self.end = self.start + task["seconds"]
        self.engine: Engine = create_engine(task["url"], pool_size=task["threads"])
        self.numbers = itertools.count()
        self.taken_ms: list[float] = []

    def call_again_and_again(self) -> None:
        """Work until the window is over; only what ends within it counts."""
        while time.perf_counter() < self.end:
            account, job = random.choice(self.accounts), f"{self.prefix}-{next(self.numbers)}"  # noqa: S311 - no secret
            self._timed(metering.decrement, account, HELD, f"{job}-reserve")
            self._timed(metering.grant, account, RETURNED, f"{job}-settle")

    def _timed(self, call: Any, account: str, credits: int, key: str) -> None:
        begun = time.perf_counter()
        charge = call(account, credits, idempotency_key=key, engine=self.engine)
        now = time.perf_counter()
        if not charge.ok or charge.deduped:
            raise RuntimeError(f"the peer did not carry {key} out: {charge}")
        if self.start <= now < self.end:
            self.taken_ms.append((now - begun) * 1_000)


def main() -> None:
    """Read the task, run the threads, and write how long each call took, in milliseconds."""
    task = json.load(sys.stdin)
    run = Run(task)
    threads = [threading.Thread(target=run.call_again_and_again) for _ in range(task["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    json.dump(run.taken_ms, sys.stdout)


if __name__ == "__main__":
    main()
