"""Deliveries in the database: made of events, claimed by whoever sends them, and recorded (contract V4, R5).

Any number of replicas work on one endpoint. Each step is one short transaction, so that a pooler may stand in between:

- *fan out* turns the events behind an endpoint's position into deliveries, under the lock of the endpoint's row;
- *claim* takes what is due, for as long as a lease lasts: what a crash left behind is due again when it ends;
- *record* writes how an attempt went, unless the lease was lost meanwhile.

Of the deliveries of one account to one endpoint only the first has an instant at which it is due: so they are sent in
order, and one account's trouble is not another's. Who ends one gives the next its instant, under the endpoint's lock,
so that none is made unseen in between. A replay is due at once, beside that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import asyncpg

from ledger.events.endpoints import Endpoint
from ledger.events.envelopes import Event
from ledger.events.ladder import Status

LEASE: Final = timedelta(seconds=30)
"""How long whoever claims a delivery has for sending and recording it. An attempt takes a third of it at most."""

PAGE_EVENTS: Final = 500

REGISTER: Final = """
insert into ledger.endpoints as e (name, environment, types, position)
select $1, $2, $3, case when $4 then 0 else coalesce((select max(position) from ledger.events), 0) end
on conflict (name) do update set environment = excluded.environment, types = excluded.types
where (e.environment, e.types) is distinct from (excluded.environment, excluded.types)
"""

# The limits here and in CLAIM leave the planner nothing to guess: whatever it believes, a few rows are read by a key.
BEHIND: Final = """
select e.position from ledger.endpoints p cross join lateral (
    select position from ledger.events where environment = $2 and position > p.position order by position limit 1
) e
where p.name = $1
"""

LOCK: Final = "select position from ledger.endpoints where name = $1 for no key update"

FAN_OUT: Final = """
with page as materialized (
    select position, id, account, type from ledger.events
    where environment = $2 and position > $3 order by position limit $4
), wanted as (
    select *, row_number() over (partition by account order by position) as turn from page where type = any($5)
), made as (
    insert into ledger.deliveries (endpoint, account, event_id, id, type, created_at, next_attempt_at)
    select $1, account, id, id, type, $6::timestamptz, case when turn = 1 and (
        select true from ledger.deliveries d
        where d.endpoint = $1 and d.account = w.account and d.status = 'pending' and d.replay = 0 limit 1
    ) is null then $6 end
    from wanted w order by position
)
update ledger.endpoints set position = (select max(position) from page)
where name = $1 and exists (select from page)
returning (select count(*) from page)
"""

CLAIM: Final = """
with due as (
    select delivery from ledger.deliveries
    where endpoint = $1 and next_attempt_at <= $2 and (claimed_until is null or claimed_until <= clock_timestamp())
    order by next_attempt_at limit $3 for update skip locked
), claimed as (
    update ledger.deliveries d set claimed_until = clock_timestamp() + $4::interval
    from due where d.delivery = due.delivery
    returning d.delivery, d.claimed_until, d.id, d.event_id, d.account, d.replay, d.attempts
)
select c.*, e.*, a.account_id from claimed c
left join lateral (
    select true as told, type, created, environment, data from ledger.events where id = c.event_id limit 1
) e on true
left join lateral (select account_id from ledger.accounts where account = c.account limit 1) a on true
"""

RECORD: Final = """
update ledger.deliveries set attempts = $3, status = $4, next_attempt_at = $5, status_code = $6, error = $7,
    finished_at = $8, claimed_until = null
where delivery = $1 and claimed_until = $2
returning true
"""

ADD_ATTEMPT: Final = """
insert into ledger.delivery_attempts (delivery, number, at, status_code, error, milliseconds)
values ($1, $2, $3, $4, $5, $6)
"""

NEXT_OF_ACCOUNT: Final = """
update ledger.deliveries set next_attempt_at = $3 where next_attempt_at is null and delivery = (
    select delivery from ledger.deliveries
    where endpoint = $1 and account = $2 and status = 'pending' and replay = 0 order by delivery limit 1
)
"""

GIVE_BACK: Final = """
update ledger.deliveries d set claimed_until = null
from unnest($1::bigint[], $2::timestamptz[]) w (delivery, claimed_until)
where d.delivery = w.delivery and d.claimed_until = w.claimed_until
"""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this process may send until its lease ends.

    `now` is the ledger's clock as it was claimed (T3); `event` is None where a deletion removed it meanwhile (R7).
    """

    delivery: int
    claimed_until: datetime
    endpoint: str
    id: str
    account: int
    is_replay: bool
    attempts: int
    now: datetime
    event: Event | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt went: with the status of a whole answer, or the name of what was in its way."""

    status_code: int | None
    error: str | None
    milliseconds: int


class Deliveries:
    """The deliveries of a database, by the clock that every decision uses (T3)."""

    def __init__(self, pool: asyncpg.Pool, *, simulated_clock: bool) -> None:
        self._pool = pool
        self._now = "select now from ledger.clock" if simulated_clock else "select clock_timestamp()"

    async def register(self, endpoint: Endpoint) -> None:
        """Let an endpoint begin with what happens from now on, or go on where it was when it was configured before."""
        await self._pool.execute(
            REGISTER, endpoint.name, endpoint.environment, list(endpoint.types), endpoint.from_start
        )

    async def fan_out(self, endpoint: Endpoint) -> bool:
        """Turn a page of events into deliveries, and tell whether there may be more. Locks the endpoint's row."""
        async with self._pool.acquire() as connection:
            if await connection.fetchval(BEHIND, endpoint.name, endpoint.environment) is None:
                return False
            async with connection.transaction(isolation="read_committed"):
                position = await connection.fetchval(LOCK, endpoint.name)
                now = await connection.fetchval(self._now)
                page = (endpoint.environment, position, PAGE_EVENTS, list(endpoint.types), now)
                return bool(await connection.fetchval(FAN_OUT, endpoint.name, *page) == PAGE_EVENTS)

    async def claim(self, endpoint: Endpoint, most: int) -> list[Claimed]:
        """Claim what is due, as much as may be sent at once. Passes over rows that others have locked."""
        async with self._pool.acquire() as connection:
            now = await connection.fetchval(self._now)
            rows = await connection.fetch(CLAIM, endpoint.name, now, most, LEASE)
        return [_claimed(row, endpoint.name, now) for row in rows]

    async def record(self, sent: Claimed, status: Status, again_in: timedelta | None, attempt: Attempt | str) -> bool:
        """Record how an attempt went and what becomes of the delivery; False where the lease was lost before.

        Args:
            sent: what was sent; where it ends, the next of its account becomes due. Locks the endpoint's row then.
            status: what it is from now on.
            again_in: in how long it is due again; None where it ended.
            attempt: the attempt; or, where there was nothing to send, why.
        """
        async with self._pool.acquire() as connection, connection.transaction(isolation="read_committed"):
            if again_in is None:
                await connection.execute(LOCK, sent.endpoint)
            now = await connection.fetchval(self._now)
            made = attempt if isinstance(attempt, Attempt) else None
            recorded = await connection.fetchval(
                RECORD,
                sent.delivery,
                sent.claimed_until,
                sent.attempts + (made is not None),
                status,
                None if again_in is None else now + again_in,
                made and made.status_code,
                made.error if made else attempt,
                now if again_in is None else None,
            )
            if recorded and made:
                number = sent.attempts + 1
                tried = (sent.now, made.status_code, made.error, made.milliseconds)
                await connection.execute(ADD_ATTEMPT, sent.delivery, number, *tried)
            if recorded and again_in is None and not sent.is_replay:
                await connection.execute(NEXT_OF_ACCOUNT, sent.endpoint, sent.account, now)
            return bool(recorded)

    async def give_back(self, unsent: Sequence[Claimed]) -> None:
        """Let others send at once what this process claimed and will not send."""
        await self._pool.execute(GIVE_BACK, [c.delivery for c in unsent], [c.claimed_until for c in unsent])


def _claimed(row: asyncpg.Record, endpoint: str, now: datetime) -> Claimed:
    event = None
    if row["told"]:
        event = Event(
            id=row["event_id"],
            type=row["type"],
            created=row["created"],
            environment=row["environment"],
            account_id=row["account_id"],
            data=row["data"].encode(),
        )
    return Claimed(
        delivery=row["delivery"],
        claimed_until=row["claimed_until"],
        endpoint=endpoint,
        id=row["id"],
        account=row["account"],
        is_replay=row["replay"] > 0,
        attempts=row["attempts"],
        now=now,
        event=event,
    )
