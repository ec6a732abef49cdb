"""A ledger to read from: an engine with a simulated clock, and the queries on the same database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

import asyncpg
import msgspec

from ledger.core.commands import PolicyChange, PutAccount
from ledger.database import batch_pool, read_engine
from ledger.embedded import ConnectionUrls
from ledger.engine import Engine
from ledger.queries import Page, PageRequest, Reading
from pricing.catalog import load
from tests.support.history import BOTH, Customer, set_clock

T = TypeVar("T")


class Ledger:
    """What a test plays on: customers, time, and reads as the interface shows them."""

    def __init__(self, engine: Engine, pool: asyncpg.Pool, reading: Reading) -> None:
        self.engine = engine
        self.pool = pool
        self.reading = reading

    async def at(self, now: datetime) -> None:
        """Move the clock."""
        await set_clock(self.pool, now)

    async def customer(self, account_id: str, credits: int = 0) -> Customer:
        """Open an account in both environments, without the welcome, with a purchase of some credits."""
        customer = Customer(self.engine, account_id)
        change = PolicyChange(module_enabled=True, quotas=BOTH)
        await customer.does(PutAccount(account_id=account_id, change=change))
        if credits:
            await customer.gets("opening", "purchase", credits)
        return customer


@contextlib.asynccontextmanager
async def ledger_on(database: ConnectionUrls, now: datetime) -> AsyncIterator[Ledger]:
    """Run an engine on a database, at an instant."""
    reads = read_engine(database.service, 2)
    async with batch_pool(database.service, 2) as batches, asyncpg.create_pool(database.owner, min_size=1) as pool:
        await set_clock(pool, now)
        engine = Engine(batches, load(), simulated_clock=True)
        await engine.start()
        try:
            yield Ledger(engine, pool, Reading(reads, simulated_clock=True))
        finally:
            await engine.stop()
            await reads.dispose()


async def shown(read: Awaitable[Any]) -> Any:
    """Return what a read finds as a client sees it: JSON decoded."""
    found = await read
    assert found is not None
    return msgspec.json.decode(msgspec.json.encode(found))


async def walked(fetch: Callable[[PageRequest], Awaitable[Page[T] | None]], limit: int) -> list[list[T]]:
    """Return every page of a list."""
    pages: list[list[T]] = []
    cursor: str | None = None
    while True:
        page = await fetch(PageRequest(limit, cursor))
        assert page is not None
        pages.append(page.data)
        cursor = page.next_cursor
        if cursor is None:
            return pages
