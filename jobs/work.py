"""The commands that sweeps give to the engine, a page of accounts at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Final, TypeVar

import structlog

from jobs.sweep import Connection, Context
from ledger.core.commands import BringUp, BroughtUp, Command, Outcome
from ledger.engine import CommandFailed, Engine, QueueFull

PAGE_ACCOUNTS: Final = 250
"""How many accounts are dealt with at once: about one batch of the engine, so that customers get their turns."""

PATIENCE: Final = 60
"""How often a command is offered to an engine whose queue is full."""

BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")
log = structlog.get_logger(__name__)


async def carry_out(engine: Engine, command: Command) -> Outcome:
    """Carry one command out; while the engine has too much to do, wait. Raise what `Engine.submit` says."""
    for _ in range(PATIENCE):
        try:
            return await engine.submit(command)
        except QueueFull as full:
            await asyncio.sleep(full.retry_after)
    return await engine.submit(command)


async def bring_up(engine: Engine, account_id: str) -> BroughtUp:
    """Enter what time has decided for an account, all of it; nothing where the account is gone."""
    done = BroughtUp()
    while True:
        outcome = await carry_out(engine, BringUp(account_id=account_id))
        if not isinstance(outcome, BroughtUp):
            return done
        done.holds_expired += outcome.holds_expired
        done.grants_expired += outcome.grants_expired
        done.credits_returned += outcome.credits_returned
        done.credits_expired += outcome.credits_expired
        done.welcome_granted |= outcome.welcome_granted
        if not outcome.more:
            return done


async def for_each(context: Context, items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Do a work for a page of accounts, all at once: the engine makes batches of it.

    An account that fails for a defect of ours is passed over and counted; the others are not kept waiting by it.
    """
    results = await asyncio.gather(*(work(item) for item in items), return_exceptions=True)
    for result in results:
        if isinstance(result, CommandFailed):
            context.failed += 1
        elif isinstance(result, BaseException):
            raise result
    if results:
        context.progress(len(results))


async def due_accounts(context: Context, sql: str) -> AsyncIterator[list[str]]:
    """Go through the accounts of which something is due by now, in the order of its instants, page by page.

    `sql` gives distinct (expires_at, account, account_id) up to $1, after ($2, $3), at most $4.
    """
    now = await context.now()
    key: tuple[datetime, int] = (BEGINNING, 0)
    while rows := await context.connection.fetch(sql, now, *key, PAGE_ACCOUNTS):
        yield list(dict.fromkeys(row["account_id"] for row in rows))
        key = (rows[-1]["expires_at"], rows[-1]["account"])


async def delete_batches(
    connection: Connection, sql: str, *arguments: object, most: int, progress: Callable[[int], None]
) -> int:
    """Delete rows batch by batch, each a transaction of its own, until fewer than `most` are left; return how many.

    `sql` takes the arguments and then `most`, and returns how many rows it deleted.
    """
    total = 0
    while True:
        deleted: int = await connection.fetchval(sql, *arguments, most)
        total += deleted
        if deleted:
            progress(deleted)
        if deleted < most:
            return total
