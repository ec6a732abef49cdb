"""Events: what there is to tell, in the order in which it was committed (contract V3, V5)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import select

from ledger import schema
from ledger.core.account import EventType
from ledger.core.commands import Environment
from ledger.queries.paging import Cursors, Number, PageRequest
from ledger.queries.snapshot import AnyRow, AnySelect, Reading

EVERYBODY: Final = 0
"""Where a cursor names its account: positions are the whole ledger's."""


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `account_id` is null once a deletion took the account's name (R7)."""

    id: str
    type: EventType
    created: datetime
    environment: Environment
    account_id: str | None
    data: msgspec.Raw


class EventPage(msgspec.Struct, frozen=True):
    """Events in order; `next_cursor` is always there, to go on from."""

    data: list[EventView]
    next_cursor: str


_cursors: Final = Cursors("events", tuple[Number])


async def events(reading: Reading, account_id: str | None, page: PageRequest) -> EventPage:
    """Return the events behind a cursor, of one account or of all; raise `InvalidCursor`.

    Nothing is committed behind a cursor later: positions are given under a lock that is held until the commit.
    """
    key = _cursors.read(EVERYBODY, page.cursor) or (0,)
    async with reading.snapshot() as snapshot:
        statement = _events(key[0], page.limit)
        if account_id is not None:
            account = await snapshot.account(account_id)
            if account is None:
                return EventPage([], _cursors.write(EVERYBODY, key))
            statement = statement.where(schema.events.c.account == account.number)
        rows = await snapshot.rows(statement)
    return EventPage([_view(row) for row in rows], _cursors.write(EVERYBODY, (rows[-1].position,) if rows else key))


async def events_behind(
    reading: Reading, environment: Environment, position: int, limit: int
) -> list[tuple[int, EventView]]:
    """Return the events of an environment behind a position, in order, each with its own position."""
    event = schema.events.c
    # Its positions alone come from the environment's index, whatever the planner believes of the other one's events.
    positions = (
        select(event.position)
        .where(event.environment == environment, event.position > position)
        .order_by(event.position)
        .limit(limit)
    )
    statement = _events(position, limit).where(event.position.in_(positions.scalar_subquery()))
    async with reading.snapshot() as snapshot:
        rows = await snapshot.rows(statement)
    return [(row.position, _view(row)) for row in rows]


async def position_but(reading: Reading, environment: Environment, count: int) -> int:
    """Return the position of the newest event of an environment but so many; 0 where there are no more than those."""
    event = schema.events.c
    statement = (
        select(event.position)
        .where(event.environment == environment)
        .order_by(event.position.desc())
        .offset(count)
        .limit(1)
    )
    async with reading.snapshot() as snapshot:
        row = await snapshot.first(statement)
    return 0 if row is None else int(row.position)


async def still_named(reading: Reading, positions: Sequence[int]) -> set[int]:
    """Return those of some positions whose event is there and whose account has a name: no deletion took it (R7)."""
    event, account = schema.events.c, schema.accounts.c
    statement = (
        select(event.position)
        .join_from(schema.events, schema.accounts, event.account == account.account)
        .where(event.position.in_(positions), account.account_id.is_not(None))
    )
    async with reading.snapshot() as snapshot:
        return {row.position for row in await snapshot.rows(statement)}


def _view(row: AnyRow) -> EventView:
    return EventView(
        id=row.id,
        type=row.type,
        created=row.created,
        environment=row.environment,
        account_id=row.account_id,
        data=msgspec.Raw(row.data.encode()),
    )


def _events(after: int, limit: int) -> AnySelect:
    event, account = schema.events.c, schema.accounts.c
    return (
        select(event.position, event.id, event.type, event.created, event.environment, event.data, account.account_id)
        .join_from(schema.events, schema.accounts, event.account == account.account)
        .where(event.position > after)
        .order_by(event.position)
        .limit(limit)
    )
