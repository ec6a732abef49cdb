"""The load generator, in a process of its own: streams of reservations and settlements over HTTP.

A *closed* stream has so many connections, each of which sends its next request when the last was answered: it finds
the most that the service does. An *open* stream sends at a fixed rate, whatever the service does. Its latencies count
from the instant at which a request was meant to be sent, also where it had to wait for a connection or for the
reservation that it settles: a service that stalls is charged for all that should have been sent meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from tests.benchmarks.figures import percentile
from tests.benchmarks.wire import Connection, Job, Requests
from tests.benchmarks.worker import run_worker, serve_task

SETTLE_AFTER_SECONDS: Final = 0.5
"""How long after its reservation an open stream settles a job."""
TICK_SECONDS: Final = 0.001
"""The grain of the loop's timers: what is due within half of it is sent at once, and counts from then."""
DRAIN_SECONDS_MAX: Final = 60.0


class Stream(msgspec.Struct):
    """One kind of traffic. With a `rate` in pairs a second it is open; with a `batch`, so many commands a request."""

    name: str
    accounts: list[str]
    connections: int = 64
    rate: float | None = None
    batch: int = 0


class LoadTask(msgspec.Struct):
    """What to send, to whom, and for how long; the warm-up is not counted."""

    host: str
    port: int
    token: str
    prefix: str
    seconds: float
    streams: list[Stream]
    warm_up_seconds: float = 1.0


class StreamReport(msgspec.Struct):
    """What a stream came to; latencies in milliseconds, of requests."""

    pairs_per_second: float
    p50: float
    p99: float
    reserve_p50: float
    settle_p50: float
    requests: int
    refused: int
    refusal: str = ""


async def measure(task: LoadTask) -> dict[str, StreamReport]:
    """Run the streams side by side in a process of its own and return what each came to, by its name."""
    return await run_worker("tests.benchmarks.load", task, dict[str, StreamReport])


class Tally:
    """What a stream counts: requests that belong to the window between warm-up and end."""

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end
        self.reserve_ms: list[float] = []
        self.settle_ms: list[float] = []
        self.pairs = 0
        self.refused = 0
        self.refusal = b""

    def counts(self, instant: float) -> bool:
        return self.start <= instant < self.end

    def refuse(self, answer: bytes) -> None:
        self.refused += 1
        self.refusal = self.refusal or answer[:2_000]

    def report(self) -> StreamReport:
        both = self.reserve_ms + self.settle_ms
        return StreamReport(
            pairs_per_second=self.pairs / (self.end - self.start),
            p50=percentile(both, 50),
            p99=percentile(both, 99),
            reserve_p50=percentile(self.reserve_ms, 50),
            settle_p50=percentile(self.settle_ms, 50),
            requests=len(both),
            refused=self.refused,
            refusal=self.refusal.decode(errors="replace"),
        )


class Sender:
    """What every stream is made of: its connections, its requests, its tally, and when it is over."""

    def __init__(self, stream: Stream, task: LoadTask, start: float) -> None:
        self.accounts = [account_id.encode() for account_id in stream.accounts]
        self.batch = stream.batch
        self.requests = Requests(f"{task.host}:{task.port}", task.token)
        self.tally = Tally(start, start + task.seconds)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._names = (f"{task.prefix}-{stream.name}-{n}".encode() for n in itertools.count())

    def new_job(self, account: bytes | None = None) -> Job:
        return account or random.choice(self.accounts), next(self._names)  # noqa: S311 - no secret

    def break_off(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class Closed(Sender):
    """Sends on every connection as soon as the last answer is there; with a batch, so many commands at a time."""

    def run(self, connections: list[Connection]) -> None:
        self._busy = len(connections)
        for connection in connections:
            self._begin(connection)

    def _begin(self, connection: Connection) -> None:
        if time.perf_counter() >= self.tally.end:
            self._busy -= 1
            if not self._busy:
                self.finish()
            return
        jobs = [self.new_job() for _ in range(self.batch or 1)]
        request = self.requests.reserve_all(jobs) if self.batch else self.requests.reserve(jobs[0])
        self._send(connection, request, self.tally.reserve_ms, lambda: self._settle(connection, jobs))

    def _settle(self, connection: Connection, jobs: list[Job]) -> None:
        request = self.requests.settle_all(jobs) if self.batch else self.requests.settle(jobs[0])

        def settled() -> None:
            if self.tally.counts(time.perf_counter()):
                self.tally.pairs += len(jobs)
            self._begin(connection)

        self._send(connection, request, self.tally.settle_ms, settled)

    def _send(self, connection: Connection, request: bytes, taken_ms: list[float], then: Callable[[], None]) -> None:
        sent = time.perf_counter()

        def answered(succeeded: bool, answer: bytes) -> None:
            now = time.perf_counter()
            if not succeeded or (self.batch and answer.count(b'"status":20') != self.batch):
                self.tally.refuse(answer)
                self._begin(connection)
                return
            if self.tally.counts(now):
                taken_ms.append((now - sent) * 1_000)
            then()

        connection.send(request, answered)


class Open(Sender):
    """Sends at fixed instants, account by account in turn."""

    def __init__(self, stream: Stream, task: LoadTask, start: float) -> None:
        super().__init__(stream, task, start)
        assert stream.rate is not None
        self._interval = 1 / stream.rate
        self._lag = (math.ceil(SETTLE_AFTER_SECONDS / self._interval) + 0.5) * self._interval
        self._turns = itertools.cycle(self.accounts)
        self._next = time.perf_counter()
        self._settlements: deque[tuple[float, Job]] = deque()
        self._ready: deque[tuple[float, Job, bool]] = deque()
        self._reserving: dict[Job, float | None] = {}
        """Jobs whose reservation is not answered, each with when its settlement was due, if it was."""
        self._unsettled: set[Job] = set()
        """Jobs whose reservation was refused: there is nothing to settle."""
        self._in_flight = 0

    def run(self, connections: list[Connection]) -> None:
        self._free = connections
        self._tick()

    def _tick(self) -> None:
        now = time.perf_counter() + TICK_SECONDS / 2
        while self._next <= now and self._next < self.tally.end:
            job = self.new_job(next(self._turns))
            self._ready.append((self._next, job, False))
            self._settlements.append((self._next + self._lag, job))
            self._reserving[job] = None
            self._next += self._interval
        while self._settlements and self._settlements[0][0] <= now:
            due, job = self._settlements.popleft()
            if job in self._reserving:
                self._reserving[job] = due
            elif job not in self._unsettled:
                self._ready.append((due, job, True))
        self._send_ready()
        if self._settlements or self._next < self.tally.end:
            upcoming = min(self._next, self._settlements[0][0]) if self._settlements else self._next
            asyncio.get_running_loop().call_later(max(TICK_SECONDS, upcoming - now), self._tick)

    def _send_ready(self) -> None:
        while self._ready and self._free:
            due, job, settles = self._ready.popleft()
            self._send(self._free.pop(), due, job, settles)
        idle = not (self._ready or self._reserving or self._settlements or self._in_flight)
        if idle and self._next >= self.tally.end:
            self.finish()

    def _send(self, connection: Connection, due: float, job: Job, settles: bool) -> None:
        begun = min(due, time.perf_counter())
        self._in_flight += 1

        def answered(succeeded: bool, answer: bytes) -> None:
            self._in_flight -= 1
            self._free.append(connection)
            if not succeeded:
                self.tally.refuse(answer)
            elif self.tally.counts(due):
                taken_ms = self.tally.settle_ms if settles else self.tally.reserve_ms
                taken_ms.append((time.perf_counter() - begun) * 1_000)
                self.tally.pairs += settles
            if not settles:
                self._reserved(job, succeeded)
            self._send_ready()

        connection.send(self.requests.settle(job) if settles else self.requests.reserve(job), answered)

    def _reserved(self, job: Job, succeeded: bool) -> None:
        settle_due = self._reserving.pop(job)
        if not succeeded:
            self._unsettled.add(job)
        elif settle_due is not None:
            self._ready.appendleft((settle_due, job, True))


async def generate(task: LoadTask) -> dict[str, StreamReport]:
    """Run the streams side by side in this process and return what each came to, by its name."""
    start = time.perf_counter() + task.warm_up_seconds
    senders = {
        stream.name: Closed(stream, task, start) if stream.rate is None else Open(stream, task, start)
        for stream in task.streams
    }
    asyncio.get_running_loop().set_exception_handler(lambda _, what: _break_off(senders.values(), what))
    opened = [await _connect(task, senders[stream.name], stream.connections) for stream in task.streams]
    for sender, connections in zip(senders.values(), opened, strict=True):
        sender.run(list(connections))
    async with asyncio.timeout(task.warm_up_seconds + task.seconds + DRAIN_SECONDS_MAX):
        await asyncio.gather(*(sender.over for sender in senders.values()))
    for connection in itertools.chain.from_iterable(opened):
        connection.close()
    return {name: sender.tally.report() for name, sender in senders.items()}


def _break_off(senders: Iterable[Sender], what: dict[str, Any]) -> None:
    """End everything where a callback failed, in place of waiting for what will not come."""
    for sender in senders:
        sender.break_off(what.get("exception") or RuntimeError(what["message"]))


async def _connect(task: LoadTask, sender: Sender, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        _, connection = await loop.create_connection(lambda: Connection(sender.break_off), task.host, task.port)
        made.append(connection)
    return made


if __name__ == "__main__":
    gc.disable()  # Nothing here goes in circles, and a pause of the generator would be taken for the service's.
    serve_task(LoadTask, generate)
