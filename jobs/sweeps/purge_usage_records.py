"""`purge_usage_records`: the usage record of a request is deleted after 400 days (contract R3).

It goes from account to account along the primary key, so that what it costs follows from the number of accounts and
of the rows that go, and not from how many rows stay or where on the disk they are.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from jobs.sweep import Context, Sweep
from jobs.work import delete_batches
from ledger.queries.records import KEPT

BATCH_ROWS: Final = 2_000
PAGE_ACCOUNTS: Final = 500

PAGE: Final = "select account from ledger.accounts where account > $1 order by account limit $2"

PURGE: Final = """
with doomed as (
    select r.account, r.closed_at, r.job from unnest($1::bigint[]) w (account)
    cross join lateral (
        select account, closed_at, job from ledger.usage_records
        where account = w.account and closed_at <= $2 order by closed_at limit $3
    ) r limit $3
), gone as (
    delete from ledger.usage_records r using doomed d
    where r.account = d.account and r.closed_at = d.closed_at and r.job = d.job
)
select count(*) from doomed
"""


async def run(context: Context) -> None:
    """Delete what was closed 400 days ago or earlier, each batch a transaction of its own."""
    until = await context.now() - KEPT
    last = 0
    while rows := await context.connection.fetch(PAGE, last, PAGE_ACCOUNTS):
        accounts = [row["account"] for row in rows]
        context.counts["records_deleted"] += await delete_batches(
            context.connection, PURGE, accounts, until, most=BATCH_ROWS, progress=context.progress
        )
        last = accounts[-1]


SWEEP: Final = Sweep("purge_usage_records", timedelta(days=1), ("records_deleted",), run)
