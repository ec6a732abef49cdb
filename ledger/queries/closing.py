"""The statements of months that are to be closed, of many accounts at once (contract V6).

Read for a page of accounts in a few statements, each of the figures that `statements` shows of one account. A month is
ready once it has ended, nothing that counts in it is still to be entered and no hold of it, or of a month before, is
open: from then on none of its figures changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from sqlalchemy import select, text

from ledger import schema
from ledger.core.periods import period_end
from ledger.queries.snapshot import Reading, Snapshot
from ledger.queries.statements import MONTH_FIELDS, Statement, decode_statement, month_of, statement_of
from ledger.queries.usage import UsageLine

# Ended, and still to be entered: it counts in the month that it ended with (T4). Due holds are held, and seen there.
READY: Final = text("""
select a.account from ledger.accounts a
where a.account = any(cast(:accounts as bigint[]))
    and not exists (select from ledger.grants g where g.account = a.account and g.live and g.remaining > 0
                    and g.expires_at <= cast(:ended as timestamptz))
""")

MONTHS: Final = text(f"""
select account, {", ".join(MONTH_FIELDS)} from ledger.periods
where account = any(cast(:accounts as bigint[])) and period <= :period
""")  # noqa: S608 (of the names of columns alone)

USAGE: Final = text("""
select account, operation, unit, sum(quantity) as quantity, sum(credits) as credits, sum(refunded) as refunded,
    sum(jobs) as jobs
from ledger.usage_totals
where account = any(cast(:accounts as bigint[])) and period = :period and (credits > 0 or refunded > 0)
group by account, operation, unit order by account, operation, unit
""")

# The overdraft at the month's end is today's, less what moved it since. Entries are in the order of their instants, so
# the last of the month is found by halving.
OVERDRAFT: Final = text("""
select b.account, b.overdraft - case when b.at < cast(:ended as timestamptz) then 0 else coalesce((
    select sum(case when p.debit = 'overdraft' then p.credits else -p.credits end) from ledger.postings p
    where p.account = b.account and p.sequence > (
        with recursive bounds (low, high) as (
            select 0::bigint, b.sequence
            union all
            select case when e.at < cast(:ended as timestamptz) then h.middle else h.low end,
                case when e.at < cast(:ended as timestamptz) then h.high else h.middle - 1 end
            from (select low, high, (low + high + 1) / 2 as middle from bounds where low < high) h
            join ledger.entries e on e.account = b.account and e.sequence = h.middle
        )
        select low from bounds where low >= high
    ) and (p.debit = 'overdraft' or p.credit = 'overdraft')
), 0) end as overdraft
from ledger.balances b where b.account = any(cast(:accounts as bigint[]))
""")


async def closing_statements(reading: Reading, accounts: Sequence[int], period: str) -> dict[int, Statement]:
    """Return the statements, as closed, of a month that has ended, by account; those that must wait are left out."""
    async with reading.snapshot() as snapshot:
        ended = period_end(period)
        asked = {"accounts": list(accounts), "period": period, "ended": ended}
        entered = [row.account for row in await snapshot.run(READY, asked)]
        months = defaultdict(list)
        for row in await snapshot.run(MONTHS, asked):
            months[row.account].append(month_of(row))
        ready = [
            account for account in entered if not any(month.live_held or month.test_held for month in months[account])
        ]
        asked["accounts"] = ready
        lines = await _lines(snapshot, asked)
        overdrafts = {account: int(left) for account, left in await snapshot.run(OVERDRAFT, asked)}
    return {
        account: statement_of(
            period,
            {month.period: month for month in months[account]},
            status="closed",
            overdraft=overdrafts[account],
            charges=lines[account],
        )
        for account in ready
    }


async def statement_of_deleted(snapshot: Snapshot, account: int, period: str) -> Statement:
    """Return the statement of a month of an account whose name is gone, by its number (R7).

    Its grants and holds went with the name, so that time has nothing left to decide: what is not kept as closed is
    added up of what is there.
    """
    column = schema.statements.c
    kept = await snapshot.first(select(column.statement).where(column.account == account, column.period == period))
    if kept is not None:
        return decode_statement(kept.statement)
    asked = {"accounts": [account], "period": period, "ended": period_end(period)}
    months = [month_of(row) for row in await snapshot.run(MONTHS, asked)]
    overdrafts = {number: int(left) for number, left in await snapshot.run(OVERDRAFT, asked)}
    return statement_of(
        period,
        {month.period: month for month in months},
        status="open",
        overdraft=overdrafts.get(account, 0),
        charges=(await _lines(snapshot, asked))[account],
    )


async def _lines(snapshot: Snapshot, asked: dict[str, object]) -> defaultdict[int, list[UsageLine]]:
    lines: defaultdict[int, list[UsageLine]] = defaultdict(list)
    for row in await snapshot.run(USAGE, asked):
        lines[row.account].append(
            UsageLine(
                operation=row.operation,
                unit=row.unit,
                quantity=int(row.quantity),
                credits=int(row.credits),
                refunded_credits=int(row.refunded),
                jobs=int(row.jobs),
            )
        )
    return lines
