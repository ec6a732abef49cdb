"""`expire_grants`: what is left of a grant past its end leaves the balance, by an entry (contract T4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from jobs.sweep import Context, Sweep
from jobs.work import bring_up, due_accounts, for_each

# A grant that is over and only held still has nothing to enter: what comes back of the hold expires with it (F2).
DUE: Final = """
select g.expires_at, g.account, a.account_id
from (
    select distinct expires_at, account from ledger.grants
    where live and remaining > 0 and expires_at <= $1 and (expires_at, account) > ($2, $3)
    order by expires_at, account limit $4
) g join ledger.accounts a on a.account = g.account
order by g.expires_at, g.account
"""


async def run(context: Context) -> None:
    """Bring every account with a grant that is over up to now."""

    async def expire(account_id: str) -> None:
        done = await bring_up(context.engine, account_id)
        context.counts["accounts"] += done.grants_expired > 0
        context.counts["grants_expired"] += done.grants_expired
        context.counts["credits_expired"] += done.credits_expired

    async for account_ids in due_accounts(context, DUE):
        await for_each(context, account_ids, expire)


SWEEP: Final = Sweep("expire_grants", timedelta(minutes=5), ("accounts", "grants_expired", "credits_expired"), run)
