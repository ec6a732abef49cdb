"""Snapshots of the database: what one answer is read from, and the instant it is read at (contract T3)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Row, Select, TextClause, case, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ledger import schema
from ledger.core.account import Account
from ledger.core.timeline import bring_up_to
from ledger.database import PoolUse, is_away, may_be_read_later, use_of_engine
from ledger.store.loading import load_many, load_one

AnyRow = Row[*tuple[Any, ...]]
AnySelect = Select[*tuple[Any, ...]]


class DatabaseAway(Exception):
    """The database cannot be read now; trying again later may help."""


class NotYet(ValueError):
    """What is asked for lies in the future; the message says what does."""


class AccountAsked(msgspec.Struct, frozen=True):
    """The account that a query is about: our number for it, and the instant that the answer is as of."""

    number: int
    now: datetime


class Reading:
    """Where reads come from: an engine of read-only connections, whose JSON is left as text, and the clock."""

    def __init__(self, engine: AsyncEngine, *, simulated_clock: bool = False) -> None:
        self._engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._simulated_clock = simulated_clock

    def use(self) -> PoolUse:
        """Return how its connections are used at this moment."""
        return use_of_engine(self._engine)

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """Open a snapshot: all that is read within it stood in the database at one moment.

        Raise `DatabaseAway` where the database is not there, goes away in between, or lets the read wait too long.
        """
        try:
            async with self._engine.connect() as connection:
                yield Snapshot(connection, simulated_clock=self._simulated_clock)
        except Exception as error:
            if is_away(error):
                raise DatabaseAway("the database is away") from error
            if may_be_read_later(error):
                raise DatabaseAway("the database is too busy") from error
            raise


class Snapshot:
    """One snapshot of the database, and the ways to read from it."""

    def __init__(self, connection: AsyncConnection, *, simulated_clock: bool) -> None:
        self._connection = connection
        self._simulated_clock = simulated_clock

    async def rows(self, statement: AnySelect) -> Sequence[AnyRow]:
        """Return all rows of a statement."""
        return (await self._connection.execute(statement)).all()

    async def first(self, statement: AnySelect) -> AnyRow | None:
        """Return the first row of a statement, or None."""
        return (await self._connection.execute(statement)).first()

    async def run(self, statement: TextClause, given: Mapping[str, Any]) -> Sequence[AnyRow]:
        """Return all rows of a statement that is written in SQL, with what is given of its parameters."""
        return (await self._connection.execute(statement, dict(given))).all()

    async def account(self, account_id: str) -> AccountAsked | None:
        """Return the account of a name, and now; or None. Now is never before what was decided last (T3)."""
        row = await self.first(self.accounts().where(schema.accounts.c.account_id == account_id))
        return None if row is None else AccountAsked(row.account, row.now)

    async def now(self) -> datetime:
        """Return the instant of the clock that every decision uses (T3)."""
        row = await self.first(select(self._clock()))
        assert row is not None
        now: datetime = row[0]
        return now

    def _clock(self) -> ColumnElement[datetime]:
        return select(schema.clock.c.now).scalar_subquery() if self._simulated_clock else func.clock_timestamp()

    def accounts(self) -> AnySelect:
        """Return the statement that reads accounts, to be narrowed: number, name, and now as `account` has it."""
        now = func.greatest(self._clock(), schema.balances.c.at).label("now")
        return select(schema.accounts.c.account, schema.accounts.c.account_id, now).join_from(
            schema.accounts, schema.balances, schema.accounts.c.account == schema.balances.c.account
        )

    async def brought_up(self, account_id: str) -> Account | None:
        """Return an account brought up to now in memory, or None where there is none (T1, T4).

        What time has decided and nobody entered yet is in `changes.entries`; `at` is the instant.
        """
        if await self.account(account_id) is None:
            return None
        batch = await load_one(await self._driver(), account_id, simulated_clock=self._simulated_clock)
        account = batch.accounts[account_id]
        bring_up_to(account, batch.now)
        return account

    async def many_brought_up(self, after: int, limit: int) -> list[Account]:
        """Return so many accounts with a name, by number behind one, each brought up to now in memory."""
        column = schema.accounts.c
        named = select(column.account).where(column.account > after, column.account_id.is_not(None))
        numbers = [row.account for row in await self.rows(named.order_by(column.account).limit(limit))]
        batch = await load_many(await self._driver(), numbers, simulated_clock=self._simulated_clock)
        for account in batch.accounts.values():
            bring_up_to(account, batch.now)
        return sorted(batch.accounts.values(), key=lambda account: account.number)

    async def _driver(self) -> Any:
        """Return the driver's own connection, in the transaction that the first statement has begun."""
        return (await self._connection.get_raw_connection()).driver_connection

    async def entries_before(self, account: int, instant: datetime) -> int:
        """Return how many entries of an account are of before an instant, which is the number of the last of them.

        Entries are numbered without gaps in the order of their instants, so it is found by halving: no index on the
        instants is needed.
        """
        row = await self.first(_entries_before(account, instant))
        assert row is not None
        return int(row[0])


def _entries_before(account: int, instant: datetime) -> AnySelect:
    bounds = (
        select(literal(0, BigInteger).label("low"), schema.balances.c.sequence.label("high"))
        .where(schema.balances.c.account == account)
        .cte("bounds", recursive=True)
    )
    halved = (
        select(bounds.c.low, bounds.c.high, ((bounds.c.low + bounds.c.high + 1) // 2).label("middle"))
        .where(bounds.c.low < bounds.c.high)
        .subquery("halved")
    )
    middle_at = (
        select(schema.entries.c.at)
        .where(schema.entries.c.account == account, schema.entries.c.sequence == halved.c.middle)
        .scalar_subquery()
    )
    tried = select(halved.c.low, halved.c.high, halved.c.middle, (middle_at < instant).label("before")).subquery(
        "tried"
    )
    step = select(
        case((tried.c.before, tried.c.middle), else_=tried.c.low),
        case((tried.c.before, tried.c.high), else_=tried.c.middle - 1),
    )
    search = bounds.union_all(step)
    return select(search.c.low).where(search.c.low >= search.c.high)
