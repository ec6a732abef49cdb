"""What live balances are published from: accounts as time has left them, and when a hold of theirs ends first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import text

from ledger.core.account import Account
from ledger.queries.snapshot import Reading, Snapshot

_FIRST_ENDS: Final = text("""
select w.account, h.expires_at from unnest(cast(:accounts as bigint[])) w (account)
cross join lateral (
    select h.expires_at from ledger.holds h
    where h.account = w.account and h.expires_at > :after order by h.expires_at limit 1
) h
""")


async def first_ends(reading: Reading, accounts: Sequence[int], after: datetime) -> Mapping[int, datetime]:
    """Return when the first hold of each account, by number, ends behind an instant; without one it is not there."""
    async with reading.snapshot() as snapshot:
        return await _first_ends(snapshot, accounts, after)


async def page_of_accounts(
    reading: Reading, after: int, limit: int
) -> tuple[Sequence[Account], Mapping[int, datetime]]:
    """Return so many accounts behind a number, brought up to now in memory, and when the first hold of each ends."""
    async with reading.snapshot() as snapshot:
        accounts = await snapshot.many_brought_up(after, limit)
        if not accounts:
            return [], {}
        ends = await _first_ends(snapshot, [a.number for a in accounts], max(a.at for a in accounts))
        return accounts, ends


async def _first_ends(snapshot: Snapshot, accounts: Sequence[int], after: datetime) -> Mapping[int, datetime]:
    rows = await snapshot.run(_FIRST_ENDS, {"accounts": list(accounts), "after": after})
    return {row.account: row.expires_at for row in rows}
