"""Replays: an event is delivered once more, by hand, under a new id (contract V4); and the record of deliveries.

A replay is one more delivery, which a running service sends within a second or so; nothing of the first is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import asyncpg

NOW: Final = "select coalesce((select now from ledger.clock), clock_timestamp())"

EVENT: Final = "select account, type, environment from ledger.events where id = $1"

ENDPOINTS: Final = "select name, environment, types from ledger.endpoints order by name for no key update"

REPLAY: Final = """
insert into ledger.deliveries (endpoint, account, event_id, replay, id, type, created_at, next_attempt_at)
select name, $3, $2, replay, $2 || ':r' || replay, $4, $5, $5
from unnest($1::text[]) name cross join lateral (
    select coalesce(max(d.replay), 0) + 1 as replay from ledger.deliveries d
    where d.event_id = $2 and d.endpoint = name
) n
returning endpoint, id
"""

DELIVERIES: Final = """
select endpoint, id, type, status, attempts, status_code, error, created_at, finished_at, next_attempt_at
from ledger.deliveries
where ($1::text is null or endpoint = $1) and ($2::text is null or event_id = $2)
order by delivery desc limit $3
"""


class NotReplayed(Exception):
    """There is nothing to replay, or nobody to replay it to; the message says which."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A new delivery, and the endpoint that it goes to."""

    endpoint: str
    id: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One line of the record: a delivery, and how its last attempt went."""

    endpoint: str
    id: str
    type: str
    status: str
    attempts: int
    status_code: int | None
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    next_attempt_at: datetime | None


async def replay(pool: asyncpg.Pool, event_id: str, endpoint: str | None) -> list[Replay]:
    """Deliver an event once more, to the endpoints that receive its kind or to the one named among them.

    Locks the endpoints' rows, so that two replays never get the same number. Raise `NotReplayed`.
    """
    async with pool.acquire() as connection, connection.transaction(isolation="read_committed"):
        event = await connection.fetchrow(EVENT, event_id)
        if event is None:
            raise NotReplayed(f"there is no event {event_id}")
        known = await connection.fetch(ENDPOINTS)
        if endpoint is not None and endpoint not in [row["name"] for row in known]:
            names = ", ".join(row["name"] for row in known) or "none"
            raise NotReplayed(f"there is no endpoint {endpoint}; there are: {names}")
        wanted = [
            row["name"]
            for row in known
            if endpoint in (None, row["name"])
            and row["environment"] == event["environment"]
            and event["type"] in row["types"]
        ]
        if not wanted:
            who = "no endpoint receives" if endpoint is None else f"the endpoint {endpoint} does not receive"
            raise NotReplayed(f"{who} {event['type']} of {event['environment']}")
        now = await connection.fetchval(NOW)
        rows = await connection.fetch(REPLAY, wanted, event_id, event["account"], event["type"], now)
    return [Replay(row["endpoint"], row["id"]) for row in rows]


async def deliveries(
    pool: asyncpg.Pool, *, endpoint: str | None, event_id: str | None, most: int
) -> Sequence[Delivery]:
    """Return the newest deliveries of the record, of one endpoint and of one event where these are given."""
    return [Delivery(**row) for row in await pool.fetch(DELIVERIES, endpoint, event_id, most)]


def shown(instant: datetime | None) -> str:
    """Return an instant as the command line shows it."""
    return "" if instant is None else instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
