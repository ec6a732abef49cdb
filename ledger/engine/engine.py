"""The engine: accepts commands, gathers those that wait into batches, and answers each caller."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import asyncpg
import structlog

from ledger import failpoints, metrics, tracing
from ledger.core.commands import Command, Outcome
from ledger.engine.batches import Batches, OnCommit, tell_nobody
from ledger.engine.errors import CommandFailed, DatabaseAway, QueueFull, Unavailable
from ledger.engine.queue import Queue, Waiting
from ledger.engine.room import Room
from pricing.catalog import Catalog, UnknownVersion

FLUSHERS: Final = 2
"""Batches in flight at a time: one is decided while the other is flushed; with more, everybody waits longer."""

STOP_SECONDS_MAX: Final = 20
CATALOG_RETRY_SECONDS: Final = 5

log = structlog.get_logger(__name__)


class Engine:
    """Carries commands out. `start` it, `submit` commands, `stop` it: what was accepted is finished first."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        catalog: Catalog,
        *,
        simulated_clock: bool = False,
        thresholds: tuple[int, ...] = (80, 95),
        queue_max: int = 10_000,
        queue_bytes: int = 64 * 1024 * 1024,
        batch_max: int = 256,
        on_commit: OnCommit = tell_nobody,
    ) -> None:
        self._batches = Batches(
            pool, catalog, simulated_clock=simulated_clock, thresholds=thresholds, on_commit=on_commit
        )
        self._batch_max = batch_max
        self._queue = Queue(Room(queue_max), Room(queue_bytes))
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Start the flushers."""
        metrics.QUEUE_LIMIT.set(self._queue.commands.places)
        self._tasks = [asyncio.create_task(self._flush_for_ever(), name=f"flusher-{n}") for n in range(FLUSHERS)]

    async def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Accept nothing more and finish what was accepted; what is not finished in time is told so."""
        self._stopping = True
        self._wake.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=seconds_max)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in self._queue.clear():
            item.fail(DatabaseAway("the service is stopping"))

    @property
    def waiting(self) -> int:
        """How many commands wait for a batch."""
        return self._queue.size

    def submit(self, command: Command) -> asyncio.Future[Outcome]:
        """Accept a command and return where its outcome will be.

        Raise `QueueFull` when too many wait, of its account or in all. The future raises `Unavailable` (nothing was
        done, or it was done and a repetition will find it), or `CommandFailed`.
        """
        item = Waiting(command, asyncio.get_running_loop().create_future())
        if self._stopping or not self._queue.admits(item):
            metrics.QUEUE_FULL.inc()
            raise QueueFull("too many commands are waiting")
        self._queue.put(item)
        self._wake.set()
        return item.future

    async def execute(self, command: Command) -> Outcome:
        """Submit a command and wait for its outcome; raises what `submit` says."""
        return await self.submit(command)

    async def _flush_for_ever(self) -> None:
        while True:
            items = self._queue.take(self._batch_max)
            if items:
                _note_waits(items)
                await self._flush(items)
            elif self._stopping and not self._queue.size:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _flush(self, items: list[Waiting]) -> None:
        """Carry a batch to its end: whatever happens, every caller hears of it and the accounts are free again."""
        try:
            self._queue.give_back(await self._carry_out(items))
        except asyncio.CancelledError:
            _fail(items, DatabaseAway("the service is stopping"))
            raise
        except Exception:
            log.exception("batch_failed")
            _fail(items, CommandFailed("the command could not be carried out"))
        finally:
            self._queue.done({item.account_id for item in items})
            self._wake.set()

    async def _carry_out(self, items: list[Waiting]) -> list[Waiting]:
        """Run a batch and answer its callers; return the commands that must wait until their account is brought up.

        Where it fails for a defect, it is halved until the command that fails is alone.
        """
        try:
            with tracing.batch([item.span for item in items]):
                outcomes = await self._batches.carry_out([item.command for item in items])
        except Unavailable as error:
            _fail(items, error)
            return []
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to whom it concerns
            metrics.BATCH_FAILURES.labels("defect").inc()
            return await self._halves(items, error)
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome is not None:
                item.answer(outcome)
        failpoints.reached("answer")
        return [item for item, outcome in zip(items, outcomes, strict=True) if outcome is None]

    async def _halves(self, items: list[Waiting], error: Exception) -> list[Waiting]:
        """Run a batch that failed in two parts. What follows a command that must wait waits behind it."""
        if len(items) == 1:
            items[0].fail(_told(items[0].command, error))
            return []
        middle = len(items) // 2
        back = await self._carry_out(items[:middle])
        behind = {item.account_id for item in back}
        back += [item for item in items[middle:] if item.account_id in behind]
        rest = [item for item in items[middle:] if item.account_id not in behind]
        return back + (await self._carry_out(rest) if rest else [])


def _note_waits(items: list[Waiting]) -> None:
    now = time.perf_counter()
    for item in items:
        metrics.QUEUE_SECONDS.observe(now - item.since)
        if item.span is not None:
            tracing.waited(item.span, item.since, now)


def _told(command: Command, error: Exception) -> Exception:
    """Return what the caller of a command that fails by itself is told."""
    if isinstance(error, UnknownVersion):
        return Unavailable(f"{error}: a newer catalog is being deployed", CATALOG_RETRY_SECONDS)
    if isinstance(error, asyncpg.QueryCanceledError):
        return DatabaseAway("the database took too long")
    log.error("command_failed", command=type(command).__name__, exc_info=error)
    return CommandFailed("the command could not be carried out")


def _fail(items: list[Waiting], error: Exception) -> None:
    for item in items:
        item.fail(error)
