"""Closing the months of a page of accounts: oldest first, each statement kept as it stands (contract V6, section S)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg
import msgspec

from jobs.sweep import Context
from jobs.work import bring_up, carry_out, for_each
from ledger.core.commands import ClosePeriod, PeriodClosed
from ledger.core.periods import next_period, period_of
from ledger.queries.closing import closing_statements
from ledger.queries.statements import Statement

# Most accounts have nothing to enter, and are spared the way through the engine.
DUE: Final = """
select a.account_id from ledger.accounts a
where a.account = any($1::bigint[]) and (
    exists (select from ledger.holds h where h.account = a.account and h.expires_at <= $2)
    or exists (select from ledger.grants g
               where g.account = a.account and g.live and g.remaining > 0 and g.expires_at <= $2)
)
"""


class Closing(msgspec.Struct):
    """An account with months to close, and the first of them."""

    account: int
    account_id: str
    period: str


def first_open(row: asyncpg.Record) -> Closing:
    """Return an account with its first month that is not closed; the row has `closed_through` and `created_at`."""
    closed: str | None = row["closed_through"]
    period = period_of(row["created_at"]) if closed is None else next_period(closed)
    return Closing(row["account"], row["account_id"], period)


async def close_months(context: Context, page: Sequence[Closing], now: datetime) -> None:
    """Close every month of a page of accounts that has ended, up to the first of each that has an open hold."""
    due = await context.connection.fetch(DUE, [closing.account for closing in page], now)

    async def enter(account_id: str) -> None:
        await bring_up(context.engine, account_id)

    if due:
        await for_each(context, [row["account_id"] for row in due], enter)
    current = period_of(now)
    left = [closing for closing in page if closing.period < current]
    while left:
        left = [closing for closing in await _close_one_each(context, left) if closing.period < current]


async def _close_one_each(context: Context, page: Sequence[Closing]) -> list[Closing]:
    """Close one month of each account, and return those that are closed, with the month that follows."""
    by_period: defaultdict[str, list[Closing]] = defaultdict(list)
    for closing in page:
        by_period[closing.period].append(closing)
    closed: list[Closing] = []
    for period, accounts in sorted(by_period.items()):
        statements = await closing_statements(context.primary, [closing.account for closing in accounts], period)
        ready = [closing for closing in accounts if closing.account in statements]
        context.counts["months_waiting"] += len(accounts) - len(ready)

        async def close(closing: Closing, statements: dict[int, Statement] = statements) -> None:
            if await _close(context, closing, statements[closing.account]):
                closed.append(closing)

        await for_each(context, ready, close)
    for closing in closed:
        closing.period = next_period(closing.period)
    return closed


async def _close(context: Context, closing: Closing, statement: Statement) -> bool:
    """Close one month, and return whether it is closed, by us or by somebody before us."""
    text = msgspec.json.encode(statement)
    command = ClosePeriod(account_id=closing.account_id, period=closing.period, statement=text)
    outcome = await carry_out(context.engine, command)
    if not isinstance(outcome, PeriodClosed):
        return False
    if outcome.closed:
        context.counts["months_closed"] += 1
        context.counts["overage_credits"] += statement.overage.credits
    context.counts["months_waiting"] += outcome.waiting
    return not outcome.waiting
