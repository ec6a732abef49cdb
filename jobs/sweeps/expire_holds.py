"""`expire_holds`: holds whose deadline has passed go back, and `job.expired` is told (contract J5, V2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from jobs.sweep import Context, Sweep
from jobs.work import bring_up, due_accounts, for_each

DUE: Final = """
select h.expires_at, h.account, a.account_id
from (
    select distinct expires_at, account from ledger.holds
    where expires_at <= $1 and (expires_at, account) > ($2, $3)
    order by expires_at, account limit $4
) h join ledger.accounts a on a.account = h.account
order by h.expires_at, h.account
"""


async def run(context: Context) -> None:
    """Bring every account with a hold that is due up to now."""

    async def expire(account_id: str) -> None:
        done = await bring_up(context.engine, account_id)
        context.counts["accounts"] += done.holds_expired > 0
        context.counts["holds_expired"] += done.holds_expired
        context.counts["credits_returned"] += done.credits_returned

    async for account_ids in due_accounts(context, DUE):
        await for_each(context, account_ids, expire)


SWEEP: Final = Sweep("expire_holds", timedelta(seconds=30), ("accounts", "holds_expired", "credits_returned"), run)
