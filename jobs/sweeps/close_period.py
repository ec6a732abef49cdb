"""`close_period`: months that have ended are closed, once no hold of them is open (contract V6).

Each month's statement is kept as it stands then, and `period.closed` tells what is to be invoiced.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from jobs.closing import close_months, first_open
from jobs.sweep import Context, Sweep
from jobs.work import PAGE_ACCOUNTS
from ledger.core.periods import period_of, period_start, previous_period

OPEN: Final = """
select account, account_id, created_at, closed_through from ledger.accounts
where account > $1 and account_id is not null and created_at < $2
    and (closed_through is null or closed_through < $3)
order by account limit $4
"""


async def run(context: Context) -> None:
    """Close, for every account, every month since it was opened that has ended and is not closed, oldest first."""
    now = await context.now()
    current = period_of(now)
    last = 0
    while rows := await context.connection.fetch(
        OPEN, last, period_start(current), previous_period(current), PAGE_ACCOUNTS
    ):
        await close_months(context, [first_open(row) for row in rows], now)
        context.counts["accounts"] += len(rows)
        last = rows[-1]["account"]


SWEEP: Final = Sweep(
    "close_period", timedelta(days=1), ("accounts", "months_closed", "months_waiting", "overage_credits"), run
)
