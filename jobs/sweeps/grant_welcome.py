"""`grant_welcome`: the welcome, for whom it is owed to and who for a failure of ours has not got it (contract F5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from jobs.sweep import Context, Sweep
from jobs.work import PAGE_ACCOUNTS, bring_up, for_each
from ledger.core.granting import WELCOME_CREDITS

OWED: Final = """
select account, account_id from ledger.accounts
where welcome_at is null and module_enabled and payment_method_verified and not suspended
    and account_id is not null and account > $1
order by account limit $2
"""


async def run(context: Context) -> None:
    """Bring every account that is owed a welcome up to now."""

    async def welcome(account_id: str) -> None:
        if (await bring_up(context.engine, account_id)).welcome_granted:
            context.counts["welcomes_granted"] += 1
            context.counts["credits_granted"] += WELCOME_CREDITS

    last = 0
    while rows := await context.connection.fetch(OWED, last, PAGE_ACCOUNTS):
        await for_each(context, [row["account_id"] for row in rows], welcome)
        last = rows[-1]["account"]


SWEEP: Final = Sweep("grant_welcome", timedelta(minutes=15), ("welcomes_granted", "credits_granted"), run)
