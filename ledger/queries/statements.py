"""Statements: what a month did to an account's balance (`api.md`: the identity; contract J14, T1, T4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from sqlalchemy import select

from ledger import schema
from ledger.core import books
from ledger.core.account import Account, Period
from ledger.core.overage import usd_text
from ledger.core.periods import period_end, period_of
from ledger.queries.balance import INSTANT, books_at
from ledger.queries.snapshot import AnyRow, AnySelect, NotYet, Reading, Snapshot
from ledger.queries.usage import BY_OPERATION, UsageLine, in_period, usage_lines

MONTH_FIELDS: Final = Period.__struct_fields__
"""The columns of `periods` that `month_of` reads."""

Status = Literal["open", "closed"]


class OverageCharged(msgspec.Struct, frozen=True):
    """What is to be invoiced for a month: overage used, less refunds of it, at the price it was held at."""

    credits: int
    usd: str


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One month. Opening + granted + adjusted + refunded_to_balance − charged_from_balance − expired = closing.

    The balance is all grants, what is held included, less the overdraft.
    """

    period: str
    status: Status
    opening_balance: int
    granted: int
    adjusted: int
    charged: int
    charged_from_balance: int
    refunded: int
    refunded_to_balance: int
    expired: int
    closing_balance: int
    overage: OverageCharged
    overdraft: int
    charges: list[UsageLine]


decode_statement: Final = msgspec.json.Decoder(Statement).decode


async def statement(reading: Reading, account_id: str, period: str) -> Statement | None:
    """Return the statement of a month; None where there is no such account.

    That of a month that was closed is the one that was kept then, never added up again. Raise `NotYet` for a month
    that has not begun.
    """
    async with reading.snapshot() as snapshot:
        return await statement_in(snapshot, account_id, period)


async def statement_in(snapshot: Snapshot, account_id: str, period: str) -> Statement | None:
    """Return the same as `statement`, from a snapshot that is open already."""
    kept = await snapshot.first(_kept(account_id, period))
    if kept is not None:
        return decode_statement(kept.statement)
    account = await snapshot.brought_up(account_id)
    if account is None:
        return None
    if period > period_of(account.at):
        raise NotYet("period: the month has not begun")
    return await _open_statement(snapshot, account, period)


def _kept(account_id: str, period: str) -> AnySelect:
    account, kept = schema.accounts.c, schema.statements.c
    return (
        select(kept.statement)
        .join_from(schema.accounts, schema.statements, account.account == kept.account)
        .where(account.account_id == account_id, kept.period == period)
    )


async def _open_statement(snapshot: Snapshot, account: Account, period: str) -> Statement:
    """Add up a month that is not closed, with what time has decided and nobody entered yet (T4)."""
    months = {row.period: month_of(row) for row in await snapshot.rows(_months(account.number, period))}
    months |= {name: account.peek(name) for name in account.changes.periods if name <= period}
    return statement_of(
        period,
        months,
        status="open",
        overdraft=await _overdraft(snapshot, account, period),
        charges=await usage_lines(snapshot, account.number, in_period(period), BY_OPERATION),
    )


def statement_of(
    period: str,
    months: Mapping[str, Period],
    *,
    status: Status,
    overdraft: int,
    charges: list[UsageLine],
) -> Statement:
    """Return the statement of a month, given it and all months before it that have figures.

    `overdraft` is what is left of it at the month's end.
    """
    month = months.get(period, Period(period))
    opening = sum(_net(earlier) for name, earlier in months.items() if name < period)
    return Statement(
        period=period,
        status=status,
        opening_balance=opening,
        granted=month.granted,
        adjusted=month.adjusted,
        charged=month.charged,
        charged_from_balance=month.charged_to_balance,
        refunded=month.refunded,
        refunded_to_balance=month.refunded_to_balance,
        expired=month.expired,
        closing_balance=opening + _net(month),
        overage=OverageCharged(month.overage_used, usd_text(month.overage_micro_usd)),
        overdraft=overdraft,
        charges=charges,
    )


def month_of(row: AnyRow) -> Period:
    """Return a month as its row has it."""
    return Period(*(getattr(row, name) for name in MONTH_FIELDS))


def _months(account: int, upto: str) -> AnySelect:
    column = schema.periods.c
    return select(*(column[name] for name in MONTH_FIELDS)).where(column.account == account, column.period <= upto)


def _net(month: Period) -> int:
    """Return what a month added to the balance."""
    came = month.granted + month.adjusted + month.refunded_to_balance
    return came - month.charged_to_balance - month.expired


async def _overdraft(snapshot: Snapshot, account: Account, period: str) -> int:
    """Return the overdraft at the end of a month; of the current one, now."""
    if period == period_of(account.at):
        return account.overdraft
    left = await books_at(snapshot, account, period_end(period) - INSTANT)
    return -left[books.OVERDRAFT]
