"""A ledger with a mirror in Redis, in this process, for tests that look at what Redis shows of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import asyncpg
import redis

from ledger.database import batch_pool, read_engine
from ledger.embedded import ConnectionUrls
from ledger.engine import Engine
from ledger.engine.batches import OnCommit, tell_nobody
from ledger.events.link import connect
from ledger.events.mirror import Mirror
from ledger.queries import Reading
from pricing.catalog import load
from tests.support.history import set_clock
from tests.support.reading import Ledger

PREFIX = "ledger:"
UNTIL_SECONDS_MAX = 60.0


@contextlib.asynccontextmanager
async def ledger_telling(
    database: ConnectionUrls, now: datetime | None, on_commit: OnCommit = tell_nobody
) -> AsyncIterator[Ledger]:
    """Run an engine on a database: at an instant of a simulated clock, or (None) by the real one."""
    reads = read_engine(database.service, 4)
    async with batch_pool(database.service, 2) as batches, asyncpg.create_pool(database.owner, min_size=1) as pool:
        if now is not None:
            await set_clock(pool, now)
        engine = Engine(batches, load(), simulated_clock=now is not None, on_commit=on_commit)
        await engine.start()
        try:
            yield Ledger(engine, pool, Reading(reads, simulated_clock=now is not None))
        finally:
            await engine.stop()
            await reads.dispose()


@contextlib.asynccontextmanager
async def mirror_of(
    database: ConnectionUrls, redis_url: str, *, simulated_clock: bool, length: int = 100_000
) -> AsyncIterator[Mirror]:
    """Run a mirror of a database in a Redis."""
    reads = read_engine(database.service, 4)
    reading = Reading(reads, simulated_clock=simulated_clock)
    mirror = Mirror(connect(redis_url), reading, prefix=PREFIX, stream_length=length)
    await mirror.start()
    try:
        yield mirror
    finally:
        await mirror.stop()
        await reads.dispose()


@contextlib.asynccontextmanager
async def mirrored(database: ConnectionUrls, redis_url: str, now: datetime | None = None) -> AsyncIterator[Ledger]:
    """Run an engine, and a mirror that hears of its commits: what a service does."""
    async with (
        mirror_of(database, redis_url, simulated_clock=now is not None) as mirror,
        ledger_telling(database, now, mirror.committed) as ledger,
    ):
        yield ledger


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for a condition, which may be a coroutine function, and return what it came to. Redis may be away."""
    found: Any = None
    try:
        async with asyncio.timeout(UNTIL_SECONDS_MAX):
            while True:
                with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                    found = condition()
                    if isinstance(found, Awaitable):
                        found = await found
                    if found:
                        return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"it did not come to that: {what or condition} is {found!r}") from None
