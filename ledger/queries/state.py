"""The state of the whole ledger in a few figures, for metrics: what is open, owed, due or late.

Each statement is bounded by what is open, not by what ever was: it reads along an index, or a table that holds no
history. None of them locks anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import asyncpg
import msgspec

from ledger.core.commands import ENVIRONMENTS
from ledger.core.periods import next_period, period_end, period_of, period_start, previous_period

OUTBOX_MAX: Final = 100_000
"""Events that an endpoint has yet to be given are counted up to here: past that, how many does not matter."""

SLOTS: Final = ("request", "call")

# The reservation's instant is in the job, which is reached by its key.
HOLDS: Final = """
select environment, slot, count(*) as open, min(created_at) as oldest, min(expires_at) as due
from (
    select h.environment, h.slot, h.expires_at,
        (select j.created_at from ledger.jobs j where j.account = h.account and j.number = h.job) as created_at
    from ledger.holds h
) open
group by environment, slot
"""

OVERDRAFT: Final = """
select coalesce(sum(overdraft), 0)::bigint as credits, count(distinct account) as accounts
from ledger.jobs where overdraft > 0
"""

# The table's own constraint makes it impossible: only where somebody took that away is there anything to look for.
NEGATIVE: Final = """
select case
    when exists (select from pg_constraint where conrelid = 'ledger.balances'::regclass
                 and conname = 'balances_available_check' and convalidated) then 0
    else (select count(*) from ledger.balances where available < 0)
end
"""

OVERAGE: Final = """
select coalesce(sum(overage_used), 0)::bigint as used, coalesce(sum(overage_held), 0)::bigint as held,
    coalesce(sum(overage_used::numeric * overage_price), 0)::bigint as used_usd,
    coalesce(sum(overage_held::numeric * overage_price), 0)::bigint as held_usd
from ledger.periods where period = $1 and overage_price is not null
"""

UNCLOSED: Final = """
select count(*) as accounts, min(closed_through) as closed_through,
    min(created_at) filter (where closed_through is null) as created_at
from ledger.accounts
where account_id is not null and created_at < $1 and (closed_through is null or closed_through < $2)
"""

# A service of before there were `succeeded_counts` leaves them as they are: what it did is in `counts` alone.
SWEEPS: Final = """
select name, started_at, finished_at, succeeded_at, counts, error,
    case when finished_at = succeeded_at then counts else succeeded_counts end as succeeded_counts
from ledger.sweeps
"""

# What was turned into a delivery and is not through, and what was not even turned into one.
OUTBOX: Final = """
select p.name, waiting.events + coming.events as events, least(waiting.oldest, coming.oldest) as oldest
from ledger.endpoints p
cross join lateral (
    select count(*) as events, min(created_at) as oldest
    from (select d.created_at from ledger.deliveries d
          where d.endpoint = p.name and d.status = 'pending' and d.replay = 0 limit $1) d
) waiting
cross join lateral (
    select count(*) as events, min(created) as oldest
    from (select e.created
          from (select position from ledger.events
                where environment = p.environment and position > p.position order by position limit $1) behind
          join ledger.events e on e.position = behind.position and e.type = any(p.types)) e
) coming
where p.name = any($2)
"""


class OpenHolds(msgspec.Struct, frozen=True):
    """The open holds of an environment's slot. `oldest` and `due` are the first reservation and the first deadline."""

    open: int = 0
    oldest: datetime | None = None
    due: datetime | None = None


class Overage(msgspec.Struct, frozen=True):
    """Overage of the current month: credits, and micro-dollars at each account's own price."""

    used: int
    held: int
    used_usd: int
    held_usd: int


class Backlog(msgspec.Struct, frozen=True):
    """The events that an endpoint has yet to be given; `oldest` is the first of them."""

    events: int
    oldest: datetime | None


class SweepState(msgspec.Struct, frozen=True):
    """The last run of a sweep, on whichever replica; one without an end is at it, or was cut off."""

    started_at: datetime
    finished_at: datetime | None
    succeeded_at: datetime | None
    counts: Mapping[str, int]
    failed: bool
    succeeded_counts: Mapping[str, int]
    """What the run did that succeeded last, whatever became of those after it."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The figures, as of one moment."""

    now: datetime
    holds: Mapping[tuple[str, str], OpenHolds]
    """By environment and slot: all there are."""
    overdraft_credits: int
    overdraft_accounts: int
    negative_accounts: int
    overage: Overage
    unclosed_accounts: int
    """Accounts with a month that ended and is not closed."""
    unclosed_since: datetime | None
    """When the oldest month ended that is not closed."""
    sweeps: Mapping[str, SweepState]
    """By name: those that ever ran."""
    outbox: Mapping[str, Backlog]
    """By the name of the endpoint."""

    def since(self, instant: datetime | None) -> float:
        """Return the seconds from an instant to now; 0 where there is none, or it has not come."""
        return 0.0 if instant is None else max(0.0, (self.now - instant) / timedelta(seconds=1))


Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy


async def read_state(connection: Connection, endpoints: Sequence[str], *, simulated_clock: bool) -> State:
    """Read the figures, all of one moment; `endpoints` are those whose backlog matters. Raise what asyncpg raises."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        clock = "select now from ledger.clock" if simulated_clock else "select clock_timestamp()"
        now: datetime = await connection.fetchval(clock)
        period = period_of(now)
        overdraft = await connection.fetchrow(OVERDRAFT)
        overage = await connection.fetchrow(OVERAGE, period)
        unclosed = await connection.fetchrow(UNCLOSED, period_start(period), previous_period(period))
        assert overdraft is not None
        assert overage is not None
        assert unclosed is not None
        return State(
            now=now,
            holds=_holds(await connection.fetch(HOLDS)),
            overdraft_credits=overdraft["credits"],
            overdraft_accounts=overdraft["accounts"],
            negative_accounts=await connection.fetchval(NEGATIVE),
            overage=Overage(*overage.values()),
            unclosed_accounts=unclosed["accounts"],
            unclosed_since=_unclosed_since(unclosed["closed_through"], unclosed["created_at"]),
            sweeps={row["name"]: _sweep(row) for row in await connection.fetch(SWEEPS)},
            outbox={
                row["name"]: Backlog(row["events"], row["oldest"])
                for row in await connection.fetch(OUTBOX, OUTBOX_MAX, endpoints)
            },
        )


def _holds(rows: Sequence[asyncpg.Record]) -> Mapping[tuple[str, str], OpenHolds]:
    found = {(row["environment"], row["slot"]): OpenHolds(row["open"], row["oldest"], row["due"]) for row in rows}
    return {(place, slot): found.get((place, slot), OpenHolds()) for place in ENVIRONMENTS for slot in SLOTS}


def _unclosed_since(closed_through: str | None, created_at: datetime | None) -> datetime | None:
    """Return when the oldest open month ended: the one after the last that is closed, or the first of an account."""
    months = [] if closed_through is None else [next_period(closed_through)]
    months += [] if created_at is None else [period_of(created_at)]
    return period_end(min(months)) if months else None


def _sweep(row: asyncpg.Record) -> SweepState:
    return SweepState(
        row["started_at"],
        row["finished_at"],
        row["succeeded_at"],
        _counts(row["counts"]),
        row["error"] is not None,
        _counts(row["succeeded_counts"]),
    )


def _counts(text: str | None) -> Mapping[str, int]:
    return {} if text is None else msgspec.json.decode(text, type=dict[str, int])
