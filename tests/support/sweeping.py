"""A year in which something falls due for every sweep, and how to run one on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import asyncpg

from jobs import work
from jobs.sweep import Progress
from jobs.sweeps import (
    SWEEPS,
    close_period,
    delete_accounts,
    grant_welcome,
    purge_results,
    purge_usage_records,
)
from ledger.api.services import Services
from ledger.app import running_services
from ledger.core import commands
from ledger.core.commands import Command, Line, Outcome
from ledger.settings import Settings
from tests.support.history import Customer, set_clock

START = datetime(2026, 9, 12, 12, tzinfo=UTC)
AUTUMN = datetime(2027, 9, 20, 12, tzinfo=UTC)
"""Deletions are asked for."""
LAST_DAY = datetime(2027, 10, 25, tzinfo=UTC)
END = LAST_DAY + timedelta(hours=12)
"""Now: 408 days after the start."""

KEPT = ("keeps-1", "keeps-2", "keeps-3")
LEAVING = ("zebra-1", "zebra-2")
"""Every name that they give begins so: account, jobs, grants, keys, requests, metadata, results, reasons."""
OWED = ("owed-1", "owed-2", "owed-3")


@contextlib.asynccontextmanager
async def services_on(url: str) -> AsyncIterator[Services]:
    """Run the services of a process on a database whose clock stands still."""
    async with running_services(Settings(database_url=url, simulated_clock=True)) as services:
        yield services


async def sweep(services: Services, name: str, progress: Progress | None = None) -> dict[str, int]:
    """Run one sweep, and return what it counted."""
    done = await services.sweeps.run(name, progress)
    assert done is not None
    return done.counts


def small_pages() -> Iterator[tuple[ModuleType, str, int]]:
    """Return what makes pages of two accounts and batches of three rows, so that there is always a next one."""
    for module in (work, close_period, delete_accounts, grant_welcome, purge_results, purge_usage_records):
        for name, size in (("PAGE_ACCOUNTS", 2), ("BATCH_ROWS", 3)):
            if hasattr(module, name):
                yield module, name, size


async def sweep_and_die(url: str, name: str, pages: int) -> None:
    """Run a sweep in this process, and kill the process after so many pages as `kill -9` would."""
    for module, constant, size in small_pages():
        setattr(module, constant, size)
    calls = itertools.count(1)

    def die(_: int) -> None:
        if next(calls) == pages:
            os.kill(os.getpid(), signal.SIGKILL)

    async with services_on(url) as services:
        await sweep(services, name, die)


async def sweep_all(services: Services) -> None:
    """Run every sweep."""
    for name in SWEEPS:
        await sweep(services, name)


async def carry_out(services: Services, command: Command) -> Outcome:
    """Carry a command out that must not be refused."""
    outcome = await services.engine.submit(command)
    assert not isinstance(outcome, commands.Refused), (command, outcome)
    return outcome


async def write_year(url: str) -> None:
    """Fill a fresh database with a year, up to `END`."""
    async with services_on(url) as services:
        await set_clock(services.pool, START)
        customers = [Customer(services.engine, name) for name in (*KEPT, *LEAVING)]
        for customer in customers:
            await _first_day(services, customer)
        await _owed(services)
        await set_clock(services.pool, AUTUMN)
        for customer in customers:
            await _works(services, customer, "autumn")
        for name in LEAVING:
            code = f"del_{name[-1]}"
            await carry_out(services, commands.RequestDeletion(account_id=name, confirmation_code=code))
        await set_clock(services.pool, LAST_DAY - timedelta(hours=18))
        for customer in customers:
            await _works(services, customer, "yesterday")
        await set_clock(services.pool, LAST_DAY)
        for customer in customers:
            await _last_day(services, customer)
        await set_clock(services.pool, END)


async def _first_day(services: Services, customer: Customer) -> None:
    await customer.opens()
    await customer.gets(f"{customer.account_id}-purchase", "purchase", 5_000)
    await customer.changes(overage_enabled=True, credit_price_usd=1_000)
    await _works(services, customer, "first")
    await customer.reserves(f"{customer.account_id}-over", ("tts_synthesis", 8_000))
    await customer.settles(f"{customer.account_id}-over", ("tts_synthesis", 8_000))
    await customer.gets(f"{customer.account_id}-later", "purchase", 20_000)


async def _owed(services: Services) -> None:
    """Accounts that ought to have been welcomed, and were not."""
    for name in OWED:
        change = commands.PolicyChange(module_enabled=True, payment_method_verified=True, access="suspended")
        await carry_out(services, commands.PutAccount(account_id=name, change=change))
    await services.pool.execute("update ledger.accounts set suspended = false where account_id = any($1)", OWED)


async def _works(services: Services, customer: Customer, when: str) -> None:
    """Two jobs with results, usage records and metadata, one of them refunded in part; one released; one lost."""
    name = customer.account_id
    for number in (1, 2):
        job = f"{name}-{when}-{number}"
        await carry_out(
            services,
            commands.Reserve(
                account_id=name,
                job_id=job,
                environment="live",
                lines=(Line("document_analysis", 1),),
                idempotency_key=f"{job}-key",
                fingerprint=f"{job}-fingerprint",
                metadata=f'{{"loan":"{job}-loan"}}'.encode(),
            ),
        )
        await carry_out(
            services,
            commands.Settle(
                account_id=name,
                job_id=job,
                lines=(Line("document_analysis", 1),),
                result=f'{{"text":"{job}-result"}}'.encode(),
                record=commands.Record(f"{job}-request", 200, 12, f"{job}-prefix"),
            ),
        )
    refund = commands.Refund(
        account_id=name, job_id=f"{name}-{when}-1", refund_id=f"{name}-{when}-rf", credits=15, reason=f"{name}-reason"
    )
    await carry_out(services, refund)
    await customer.reserves(f"{name}-{when}-lost", ("agent_turn", 1), ttl_seconds=60)


async def _last_day(services: Services, customer: Customer) -> None:
    """A grant that ends before the end, holds that are due, some that are open, and results that are kept still."""
    name = customer.account_id
    end = LAST_DAY + timedelta(hours=6)
    put = commands.PutGrant(
        account_id=name,
        grant_id=f"{name}-six",
        kind="plan",
        credits=2_000,
        expires_at=end,
        reference=f"{name}-reference",
    )
    await carry_out(services, put)
    await _works(services, customer, "last")
    await customer.reserves(f"{name}-open", ("agent_turn", 2), ttl_seconds=86_400)
    await customer.reserves(f"{name}-call", ("voice_call_minute", 60), environment="test", ttl_seconds=86_400)


async def dump(url: str, *, without: tuple[str, ...] = ("sweeps", "clock")) -> dict[str, list[str]]:
    """Return the rows of every table as text, sorted; of events all but the order of those of different accounts."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'ledger' order by 1")
        names = [row[0] for row in tables if row[0] not in without]
        return {name: await _rows(connection, name) for name in names}
    finally:
        await connection.close()


async def _rows(connection: asyncpg.Connection, table: str) -> list[str]:
    what = "(account, once, type, environment, created, data::text)" if table == "events" else "t"
    return [row[0] for row in await connection.fetch(f"select {what}::text from ledger.{table} t order by 1")]


async def fetch(services: Services, sql: str, *arguments: Any) -> list[asyncpg.Record]:
    """Return the rows of a statement."""
    rows: list[asyncpg.Record] = await services.pool.fetch(sql, *arguments)
    return rows


if __name__ == "__main__":
    asyncio.run(sweep_and_die(sys.argv[1], sys.argv[2], int(sys.argv[3])))
