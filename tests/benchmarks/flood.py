"""Far more than a service can take, in a process of its own: reservations at a fixed rate, whatever is answered.

A reservation that falls due while every connection waits for an answer is not sent, as that of a caller whose own pool
is exhausted; it is counted. A job that was accepted is settled, and its settlement repeated when it may be until it is
accepted too. Latencies are those of what was accepted, from sending to answer.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import msgspec

from tests.benchmarks.figures import percentile
from tests.benchmarks.wire import Connection, Job, Requests
from tests.benchmarks.worker import run_worker, serve_task

TICK_SECONDS: Final = 0.002
DRAIN_SECONDS_MAX: Final = 120.0
RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: *(\d+)\r\n", re.IGNORECASE)


class FloodTask(msgspec.Struct):
    """What to send, to whom, how fast and for how long."""

    host: str
    port: int
    token: str
    prefix: str
    seconds: float
    accounts: list[str]
    rate: float
    """Reservations a second that fall due."""
    connections: int
    result_bytes: int = 0
    """How large the result of each settlement is; none at 0."""


class FloodReport(msgspec.Struct):
    """What it came to; latencies in milliseconds."""

    due: int
    not_sent: int
    accepted: int
    refused: int
    without_retry_after: int
    other: dict[str, int]
    """Answers that should not be there, by the beginning of their text."""
    settled: int
    took_seconds: float
    """From the first reservation to the last settlement."""
    reserve_ms: list[float]
    """p50, p99 and the most."""
    settle_ms: list[float]


async def flood(task: FloodTask) -> FloodReport:
    """Flood the service from a process of its own."""
    return await run_worker("tests.benchmarks.flood", task, FloodReport)


class Flood:
    """The flood while it lasts."""

    def __init__(self, task: FloodTask) -> None:
        self._task = task
        self._requests = Requests(f"{task.host}:{task.port}", task.token)
        self._result = b'"' + b"x" * (task.result_bytes - 2) + b'"' if task.result_bytes else b""
        self._accounts = [account_id.encode() for account_id in task.accounts]
        self._names = (f"{task.prefix}-{n}".encode() for n in itertools.count())
        self._free: list[Connection] = []
        self._busy = 0
        self._begun = time.perf_counter()
        self._later: deque[tuple[float, Job]] = deque()
        self._reserve_ms: list[float] = []
        self._settle_ms: list[float] = []
        self._count: Counter[str] = Counter()
        self._other: Counter[str] = Counter()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def run(self, connections: list[Connection]) -> None:
        """Begin."""
        self._free = connections
        self._begun = time.perf_counter()
        self._tick()

    def break_off(self, error: Exception) -> None:
        """End where a connection was lost: a service that is flooded must not do that."""
        if not self.over.done():
            self.over.set_exception(error)

    def _tick(self) -> None:
        now = time.perf_counter()
        while self._later and self._later[0][0] <= now and self._free:
            self._settle(self._free.pop(), self._later.popleft()[1])
        elapsed = min(now - self._begun, self._task.seconds)
        due = int(elapsed * self._task.rate) - self._count["due"]
        sent = min(due, len(self._free))
        self._count["due"] += due
        self._count["not_sent"] += due - sent
        for _ in range(sent):
            self._reserve(self._free.pop(), (random.choice(self._accounts), next(self._names)))  # noqa: S311
        if elapsed < self._task.seconds or self._later or self._busy:
            asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        elif not self.over.done():
            self.over.set_result(None)

    def _reserve(self, connection: Connection, job: Job) -> None:
        def answered(succeeded: bool, answer: bytes, taken_ms: float) -> None:
            if succeeded:
                self._count["accepted"] += 1
                self._reserve_ms.append(taken_ms)
                self._settle(connection, job)
            else:
                self._refused(answer)
                self._free.append(connection)

        self._send(connection, self._requests.reserve(job), answered)

    def _settle(self, connection: Connection, job: Job) -> None:
        def answered(succeeded: bool, answer: bytes, taken_ms: float) -> None:
            if succeeded:
                self._count["settled"] += 1
                self._settle_ms.append(taken_ms)
            else:
                self._later.append((time.perf_counter() + self._refused(answer), job))
            self._free.append(connection)

        request = self._requests.settle_with(job, self._result) if self._result else self._requests.settle(job)
        self._send(connection, request, answered)

    def _send(self, connection: Connection, request: bytes, then: Callable[[bool, bytes, float], None]) -> None:
        sent = time.perf_counter()
        self._busy += 1

        def answered(succeeded: bool, answer: bytes) -> None:
            self._busy -= 1
            then(succeeded, answer, (time.perf_counter() - sent) * 1_000)

        connection.send(request, answered)

    def _refused(self, answer: bytes) -> float:
        """Count an answer that is no success, and return after how many seconds to try again."""
        if answer[9:12] != b"503":
            self._other[answer[:200].decode(errors="replace")] += 1
            return 1.0
        self._count["refused"] += 1
        found = RETRY_AFTER.search(answer)
        if found is None:
            self._count["without_retry_after"] += 1
            return 1.0
        return float(found[1])

    def report(self) -> FloodReport:
        """Say what it came to."""
        return FloodReport(
            due=self._count["due"],
            not_sent=self._count["not_sent"],
            accepted=self._count["accepted"],
            refused=self._count["refused"],
            without_retry_after=self._count["without_retry_after"],
            other=dict(self._other),
            settled=self._count["settled"],
            took_seconds=time.perf_counter() - self._begun,
            reserve_ms=_three(self._reserve_ms),
            settle_ms=_three(self._settle_ms),
        )


def _three(values: list[float]) -> list[float]:
    return [percentile(values, 50), percentile(values, 99), max(values)] if values else [0.0, 0.0, 0.0]


async def _work(task: FloodTask) -> FloodReport:
    running = Flood(task)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, what: running.break_off(what.get("exception") or RuntimeError(str(what))))
    connections = []
    for _ in range(task.connections):
        _, connection = await loop.create_connection(lambda: Connection(running.break_off), task.host, task.port)
        connections.append(connection)
    running.run(list(connections))
    async with asyncio.timeout(task.seconds + DRAIN_SECONDS_MAX):
        await running.over
    for connection in connections:
        connection.close()
    return running.report()


if __name__ == "__main__":
    gc.disable()  # Nothing here goes in circles, and a pause of the generator would be taken for the service's.
    serve_task(FloodTask, _work)
