"""`delete_accounts`: accounts whose grace is over go, with all that names them (contract R7).

The months that have ended are closed first; then the account's open holds end and its name goes, in one transaction;
then whatever still carries a name of the account's, its jobs' or its keys', in bounded batches. Entries, postings,
months, usage totals and statements stay: they know only numbers.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import asyncpg

from jobs.closing import close_months, first_open
from jobs.sweep import Context, Sweep
from jobs.work import carry_out, delete_batches, for_each
from ledger.core.commands import AccountDeleted, DeleteAccount

BATCH_ROWS: Final = 2_000
PAGE_ACCOUNTS: Final = 50

DUE: Final = """
select account, account_id, created_at, closed_through from ledger.accounts
where account > $1
    and (deletion_status = 'deleting' or (deletion_status = 'pending' and deletion_executes_at <= $2))
order by account limit $3
"""

REMOVE: Final = tuple(
    f"""
    with doomed as (select ctid from ledger.{table} where account = $1 and {which} limit $2),
    gone as (delete from ledger.{table} where ctid = any(array(select ctid from doomed)) and account = $1)
    select count(*) from doomed
    """  # noqa: S608 (of these constants alone)
    for table, which in (
        ("job_results", "true"),
        ("usage_records", "true"),
        ("refunds", "true"),
        ("jobs", "true"),
        ("grants", "true"),
        ("events", "type = 'job.expired'"),
    )
)
"""What still names jobs, keys, requests, refunds and grants, table by table."""

FINISH: Final = """
update ledger.accounts set deletion_status = 'executed', module_enabled = false, suspended = false,
    payment_method_verified = false, overage_enabled = false, cap_usd = null, credit_price_usd = null, paid_cycles = 0
where account = $1 and deletion_status = 'deleting'
"""


async def run(context: Context) -> None:
    """Delete every account whose grace is over, and go on with those whose deletion was interrupted."""
    now = await context.now()
    last = 0
    while rows := await context.connection.fetch(DUE, last, now, PAGE_ACCOUNTS):
        await _take_names(context, [row for row in rows if row["account_id"] is not None], now)
        for row in rows:
            await _remove(context, row["account"])
        last = rows[-1]["account"]


async def _take_names(context: Context, rows: list[asyncpg.Record], now: datetime) -> None:
    """Close the ended months of accounts, end their holds and take their names away."""
    if rows:
        await close_months(context, [first_open(row) for row in rows], now)

    async def delete(account_id: str) -> None:
        while True:
            outcome = await carry_out(context.engine, DeleteAccount(account_id=account_id))
            if not isinstance(outcome, AccountDeleted):
                return
            context.counts["holds_ended"] += outcome.holds_ended
            if outcome.deleted or not outcome.holds_ended:
                return

    await for_each(context, [row["account_id"] for row in rows], delete)


async def _remove(context: Context, account: int) -> None:
    """Remove the rows of an account that has no name any more; one that was revived meanwhile is left alone."""
    connection = context.connection
    if await connection.fetchval("select account_id from ledger.accounts where account = $1", account) is not None:
        return
    for statement in REMOVE:
        context.counts["rows_deleted"] += await delete_batches(
            connection, statement, account, most=BATCH_ROWS, progress=context.progress
        )
    await connection.execute(FINISH, account)
    context.counts["accounts_deleted"] += 1


SWEEP: Final = Sweep(
    "delete_accounts",
    timedelta(hours=1),
    ("accounts_deleted", "holds_ended", "months_closed", "months_waiting", "overage_credits", "rows_deleted"),
    run,
)
