"""Statements: what a month did to an account's balance (`api.md`: the identity; contract J14, T1, T4)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from sqlalchemy import select

from ledger import schema
from ledger.core import books
from ledger.core.account import Account, Period
from ledger.core.overage import usd_text
from ledger.core.periods import period_end, period_of
from ledger.queries.balance import INSTANT, books_at
from ledger.queries.snapshot import AnySelect, NotYet, Reading, Snapshot
from ledger.queries.usage import BY_OPERATION, UsageLine, in_period, usage_lines

_FIELDS: Final = Period.__struct_fields__


class OverageCharged(msgspec.Struct, frozen=True):
    """What is to be invoiced for a month: overage used, less refunds of it; no USD without the price of a credit."""

    credits: int
    usd: str | None


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One month. Opening + granted + adjusted + refunded_to_balance − charged_from_balance − expired = closing.

    The balance is all grants, what is held included, less the overdraft.
    """

    period: str
    status: Literal["open", "closed"]
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


async def statement(reading: Reading, account_id: str, period: str) -> Statement | None:
    """Return the statement of a month; None where there is no such account.

    Raise `NotYet` for a month that has not begun.
    """
    async with reading.snapshot() as snapshot:
        account = await snapshot.brought_up(account_id)
        if account is None:
            return None
        if period > period_of(account.at):
            raise NotYet("period: the month has not begun")
        # A month that was closed has a statement that is kept: from then on, that is what is read here.
        return await _open_statement(snapshot, account, period)


async def _open_statement(snapshot: Snapshot, account: Account, period: str) -> Statement:
    """Add up a month that is not closed, with what time has decided and nobody entered yet (T4)."""
    rows = await snapshot.rows(_months(account.number, period))
    months = {row.period: Period(*(getattr(row, name) for name in _FIELDS)) for row in rows}
    months |= {name: account.peek(name) for name in account.changes.periods if name <= period}
    month = months.pop(period, Period(period))
    opening = sum(_net(earlier) for earlier in months.values())
    price = account.policy.credit_price_usd
    overage = month.overage_used
    return Statement(
        period=period,
        status="open",
        opening_balance=opening,
        granted=month.granted,
        adjusted=month.adjusted,
        charged=month.charged,
        charged_from_balance=_charged_from_balance(month),
        refunded=month.refunded,
        refunded_to_balance=month.refunded_to_balance,
        expired=month.expired,
        closing_balance=opening + _net(month),
        overage=OverageCharged(overage, _usd(overage, price)),
        overdraft=await _overdraft(snapshot, account, period),
        charges=await usage_lines(snapshot, account.number, in_period(period), BY_OPERATION),
    )


def _months(account: int, upto: str) -> AnySelect:
    column = schema.periods.c
    return select(*(column[name] for name in _FIELDS)).where(column.account == account, column.period <= upto)


def _charged_from_balance(month: Period) -> int:
    """Return the part of a month's charges that grants or the overdraft paid: all but what overage paid.

    `overage_used` is net of the refunds that overage got back, which are those that did not go to the balance.
    """
    return month.charged - month.overage_used - (month.refunded - month.refunded_to_balance)


def _net(month: Period) -> int:
    """Return what a month added to the balance."""
    came = month.granted + month.adjusted + month.refunded_to_balance
    return came - _charged_from_balance(month) - month.expired


def _usd(credits: int, price: int | None) -> str | None:
    if price is None:
        return None if credits else usd_text(0)
    return usd_text(credits * price)


async def _overdraft(snapshot: Snapshot, account: Account, period: str) -> int:
    """Return the overdraft at the end of a month; of the current one, now."""
    if period == period_of(account.at):
        return account.overdraft
    left = await books_at(snapshot, account, period_end(period) - INSTANT)
    return -left[books.OVERDRAFT]
