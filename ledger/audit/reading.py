"""Reading for the audit: every table in the order of its key, side by side, in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import asyncpg
from asyncpg.cursor import Cursor

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Row = asyncpg.Record

CHUNK_ROWS: Final = 5_000
"""How many rows of one table are read at once."""

ANY_NUMBER: Final = 2**63
"""Above every number that a row can have."""

# Each begins with the account, then the number that its rows are in the order of. A null reads all.
ACCOUNTS: Final = """
select a.account, 0, a.account_id, a.welcome_at, b.sequence, b.head, b.available, b.held, b.overdraft,
    b.live_requests, b.live_calls, b.test_requests, b.test_calls
from ledger.accounts a left join ledger.balances b on b.account = a.account
where $1::bigint is null or a.account = $1 order by a.account
"""
ENTRIES: Final = """
select account, sequence, kind, job, at, postings, hash
from ledger.entries where $1::bigint is null or account = $1 order by account, sequence
"""
POSTINGS: Final = """
select account, sequence, debit, credit, credits, operation, quantity
from ledger.postings where $1::bigint is null or account = $1 order by account, sequence, position
"""
GRANTS: Final = """
select account, number, grant_id, expires_at, kind, granted, created_at, remaining, held, live
from ledger.grants where $1::bigint is null or account = $1 order by account, number
"""
JOBS: Final = """
select account, number, job_id, environment, slot, expires_at, sources,
    period, held_credits, held_overage, created_at,
    status, closed_entry, closed_at, charged, returned, over_hold, charged_overage, charged_overdraft,
    segments, overdraft, refunded
from ledger.jobs where $1::bigint is null or account = $1 order by account, number
"""
HOLDS: Final = """
select account, job, environment, slot, expires_at
from ledger.holds where $1::bigint is null or account = $1 order by account, job
"""
REFUNDS: Final = """
select r.account, r.entry, r.refund_id, r.job, r.credits, r.to_overage, r.created_at, r.credits_refunded,
    j.job_id, j.environment, j.refunded
from ledger.refunds r left join ledger.jobs j on j.account = r.account and j.number = r.job
where $1::bigint is null or r.account = $1 order by r.account, r.entry
"""
PERIODS: Final = """
select account, 0, period, live_used, test_used, live_held, test_held, overage_used, overage_held,
    granted, adjusted, charged, refunded, refunded_to_balance, adjusted_up, expired
from ledger.periods where $1::bigint is null or account = $1 order by account, period
"""
USAGE: Final = """
select account, 0, period, day, environment, operation, quantity, credits, refunded, jobs, first_jobs
from ledger.usage_totals where $1::bigint is null or account = $1
order by account, period, day, environment, operation
"""


class Stream:
    """The rows of one statement, read as they are asked for. `count` is how many were handed out."""

    def __init__(self, cursor: Cursor) -> None:
        self.count = 0
        self._cursor = cursor
        self._rows: list[Row] = []
        self._next = 0
        self._exhausted = False

    async def next_account(self) -> int | None:
        """Return the account of the next row, or None after the last."""
        if not await self._ready():
            return None
        account: int = self._rows[self._next][0]
        return account

    async def some(self, account: int) -> list[Row]:
        """Return the next rows of an account, not more than a chunk; none when it has no more."""
        return self._take(account, ANY_NUMBER) if await self._ready() else []

    async def up_to(self, account: int, number: int = ANY_NUMBER) -> list[Row]:
        """Return the rows of an account that are left up to a number."""
        rows: list[Row] = []
        while await self._ready():
            rows += self._take(account, number)
            if self._next < len(self._rows):
                break
        return rows

    def _take(self, account: int, number: int) -> list[Row]:
        end = bisect_right(self._rows, (account, number), lo=self._next, key=lambda row: (row[0], row[1]))
        rows = self._rows[self._next : end]
        self._next = end
        self.count += len(rows)
        return rows

    async def _ready(self) -> bool:
        """Read the next chunk where the last is used up; return whether there is a row."""
        if self._next < len(self._rows):
            return True
        if not self._exhausted:
            self._rows = await self._cursor.fetch(CHUNK_ROWS)
            self._next = 0
            self._exhausted = len(self._rows) < CHUNK_ROWS
        return self._next < len(self._rows)


class Reader:
    """All that an audit reads, by table. Use inside a transaction with one snapshot."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self.accounts = streams["accounts"]
        self.entries = streams["entries"]
        self.postings = streams["postings"]
        self.grants = streams["grants"]
        self.jobs = streams["jobs"]
        self.holds = streams["holds"]
        self.refunds = streams["refunds"]
        self.periods = streams["periods"]
        self.usage = streams["usage_totals"]
        self._streams = streams

    @classmethod
    async def open(cls, connection: Connection, account: int | None) -> Reader:
        """Begin to read one account, or (None) all."""
        await connection.execute("set local plan_cache_mode = force_custom_plan")
        statements = {
            "accounts": ACCOUNTS,
            "entries": ENTRIES,
            "postings": POSTINGS,
            "grants": GRANTS,
            "jobs": JOBS,
            "holds": HOLDS,
            "refunds": REFUNDS,
            "periods": PERIODS,
            "usage_totals": USAGE,
        }
        return cls({name: Stream(await _cursor(connection, sql, account)) for name, sql in statements.items()})

    async def next_account(self) -> int | None:
        """Return the lowest account that any table still has a row of."""
        heads = [await stream.next_account() for stream in self._streams.values()]
        return min((account for account in heads if account is not None), default=None)

    def checked(self) -> dict[str, int]:
        """Return how many rows of each table were read."""
        return {name: stream.count for name, stream in self._streams.items()}


async def _cursor(connection: Connection, sql: str, account: int | None) -> Cursor:
    """Open a cursor over a statement without a name: through a pooler, another client's could have the same."""
    statement = await connection.prepare(sql, name="")
    return await statement.cursor(account)
