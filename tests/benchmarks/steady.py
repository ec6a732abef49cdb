"""Traffic at a steady rate for hours, in a process of its own: the jobs of a request trace, over and over.

Jobs are as `ledger.replay` makes them of a trace (every kind of operation, calls that are transferred, releases, holds
that expire, reservations and settlements that are sent twice); some are refunded besides. Their rate is fixed, in place
of the trace's. A latency counts from the instant at which the request was due, also where it waited for a connection or
for the reservation that it closes; a repetition and a refund are due when what comes before them is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from ledger.replay.bodies import job_path, release, reservation, settlement
from ledger.replay.trace import NS_PER_SECOND, Close, JobPlan, Row, plan_job, read_trace
from tests.benchmarks.figures import percentile
from tests.benchmarks.wire import Connection, Requests
from tests.benchmarks.worker import read_lines, serve_lines

BUSY: Final = "acct-0"
"""The account with half of the jobs."""
STEM: Final = "soak"
REFUNDED_EVERY: Final = 89
DRAIN_SECONDS_MAX: Final = 120.0


class SteadyTask(msgspec.Struct):
    """What to send, to whom, at what rate, and for how long."""

    host: str
    port: int
    token: str
    trace: str
    accounts: int
    """How many there are beside the busy one."""
    rate: float
    """Jobs a second."""
    window_seconds: float
    windows: int
    connections: int


class Latency(msgspec.Struct):
    """In milliseconds, of requests."""

    p50: float
    p99: float
    most: float


class Traffic(msgspec.Struct):
    """What came of one window's requests, each counted when it was answered."""

    requests: int
    refused: int
    refusal: str
    """The first of them."""
    pairs: int
    """Jobs that were closed: reserved, and settled or released."""
    open: int
    """Jobs that wait for their close."""
    all: Latency
    commands: dict[str, Latency]
    counts: dict[str, int]


def measure(task: SteadyTask) -> AsyncGenerator[Traffic, None]:
    """Send from a process of its own, and give what came of each window when it is over."""
    return read_lines("tests.benchmarks.steady", task, Traffic)


def account_ids(accounts: int) -> list[str]:
    """Return the names of the busy account and of so many others."""
    return [BUSY, *(f"acct-{number}" for number in range(1, accounts + 1))]


def plan_jobs(rows: Iterable[Row], accounts: int) -> Iterator[JobPlan]:
    """Plan one job after the other, without end: every second is the busy account's, the others take turns."""
    for number, row in enumerate(itertools.cycle(rows), 1):
        owner = 0 if number % 2 == 0 else 1 + number // 2 % accounts
        plan = plan_job(STEM, row._replace(number=number))
        yield replace(plan, account_id=f"acct-{owner}")


def is_refunded(plan: JobPlan) -> bool:
    """Tell whether a credit of a job is given back: some of those that always cost something."""
    return plan.operation == "agent_turn" and plan.close is Close.SETTLE and plan.row.number % REFUNDED_EVERY == 0


class Tally:
    """Counts the requests of the window that is running."""

    def __init__(self) -> None:
        self._taken_ms: defaultdict[str, list[float]] = defaultdict(list)
        self._counts: Counter[str] = Counter()
        self._refused = 0
        self._refusal = b""

    def note(self, command: str, taken_ms: float, succeeded: bool, answer: bytes) -> None:
        """Count a request that was answered; the latency of one that was refused counts as well."""
        self._taken_ms[command].append(taken_ms)
        if succeeded:
            self._counts[command] += 1
        else:
            self._refused += 1
            self._refusal = self._refusal or answer[:2_000]

    def report(self, open_jobs: int) -> Traffic:
        """Sum the window up."""
        every = list(itertools.chain.from_iterable(self._taken_ms.values()))
        return Traffic(
            requests=len(every),
            refused=self._refused,
            refusal=self._refusal.decode(errors="replace"),
            pairs=self._counts["settle"] + self._counts["release"],
            open=open_jobs,
            all=_latency(every),
            commands={command: _latency(taken_ms) for command, taken_ms in self._taken_ms.items()},
            counts=dict(self._counts),
        )


def _latency(taken_ms: list[float]) -> Latency:
    if not taken_ms:
        return Latency(0, 0, 0)
    return Latency(percentile(taken_ms, 50), percentile(taken_ms, 99), max(taken_ms))


class Steady:
    """The traffic while it lasts."""

    def __init__(self, task: SteadyTask) -> None:
        self._task = task
        self._requests = Requests(f"{task.host}:{task.port}", task.token)
        self._free: asyncio.Queue[Connection] = asyncio.Queue()
        """First in, first out: no connection is idle for so long that the service closes it."""
        self._tally = Tally()
        self._jobs: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def windows(self) -> AsyncIterator[Traffic]:
        """Send, and give what came of each window; then close at once what is open."""
        task, rows = self._task, read_trace(Path(self._task.trace)).rows
        gc.freeze()  # The trace is no garbage: to look at it again and again would pause the generator.
        connections = await self._connect()
        start = time.perf_counter()
        sending = asyncio.create_task(self._send(plan_jobs(rows, task.accounts), start))
        sending.add_done_callback(self._ended)
        try:
            for number in range(1, task.windows + 1):
                yield await self._window(start + number * task.window_seconds)
            self._over.set()
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                await asyncio.gather(sending, *self._jobs)
        finally:
            for job in (sending, *self._jobs):
                job.cancel()
            for connection in connections:
                connection.close()

    async def _window(self, end: float) -> Traffic:
        """Return what has come of a window once it ends; raise what broke it off."""
        await asyncio.wait([self._broken], timeout=end - time.perf_counter())
        if self._broken.done():
            self._broken.result()
        tally, self._tally = self._tally, Tally()
        return tally.report(len(self._jobs))

    async def _connect(self) -> list[Connection]:
        loop, made = asyncio.get_running_loop(), []
        for _ in range(self._task.connections):
            _, connection = await loop.create_connection(
                lambda: Connection(self._break_off), self._task.host, self._task.port
            )
            made.append(connection)
            self._free.put_nowait(connection)
        return made

    async def _send(self, plans: Iterator[JobPlan], start: float) -> None:
        for number, plan in enumerate(plans):
            due = start + number / self._task.rate
            await self._until(due)
            if self._over.is_set():
                return
            job = asyncio.create_task(self._live(plan, due))
            self._jobs.add(job)
            job.add_done_callback(self._ended)

    async def _live(self, plan: JobPlan, due: float) -> None:
        """Reserve a job, and close it when its time has come."""
        path = job_path(plan)
        reserve = self._requests.request("PUT", path, reservation(plan, STEM, 1.0))
        if not await self._repeat("reserve", reserve, due, plan.reserve_times) or plan.close is Close.EXPIRE:
            return
        close_due = due + plan.close_after_ns / NS_PER_SECOND
        await self._until(close_due)
        if self._over.is_set():
            close_due = time.perf_counter()
        command = plan.close.value
        body = settlement(plan, STEM) if plan.close is Close.SETTLE else release(plan, STEM)
        close = self._requests.request("POST", f"{path}/{command}", body)
        if await self._repeat(command, close, close_due, plan.settle_times) and is_refunded(plan):
            refund = msgspec.json.encode({"refund_id": f"rf-{plan.row.number}", "credits": 1, "reason": STEM})
            request = self._requests.request("POST", f"{path}/refunds", refund)
            await self._ask("refund", request, time.perf_counter())

    async def _repeat(self, command: str, request: bytes, due: float, times: int) -> bool:
        succeeded = await self._ask(command, request, due)
        for _ in range(times - 1):
            await self._ask(f"{command} again", request, time.perf_counter())
        return succeeded

    async def _ask(self, command: str, request: bytes, due: float) -> bool:
        connection = await self._free.get()
        begun = min(due, time.perf_counter())
        answered: asyncio.Future[tuple[bool, bytes]] = asyncio.get_running_loop().create_future()
        connection.send(request, lambda succeeded, answer: answered.set_result((succeeded, answer)))
        succeeded, answer = await answered
        self._free.put_nowait(connection)
        self._tally.note(command, (time.perf_counter() - begun) * 1_000, succeeded, answer)
        return succeeded

    async def _until(self, due: float) -> None:
        """Wait until something is due, or all is over."""
        delay = due - time.perf_counter()
        if delay > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), delay)

    def _ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            self._break_off(error)

    def _break_off(self, error: BaseException) -> None:
        """End everything, in place of waiting for what will not come."""
        if not self._broken.done():
            self._broken.set_exception(error)


async def send(task: SteadyTask) -> AsyncIterator[Traffic]:
    """Send from this process, and give what came of each window."""
    async for traffic in Steady(task).windows():
        yield traffic


if __name__ == "__main__":
    serve_lines(SteadyTask, send)
