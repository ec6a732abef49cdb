"""Usage added up: by month or by day of settlement, by operation, environment and day (contract A4, J14, R6)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, func, or_, select

from ledger import schema
from ledger.core.commands import Environment
from ledger.core.periods import period_end, period_of, period_start
from ledger.queries.snapshot import AccountAsked, AnyRow, AnySelect, Reading, Snapshot

Group = Literal["operation", "environment", "day"]

GROUPS: Final[tuple[Group, ...]] = ("operation", "environment", "day")
"""What usage can be grouped by."""

BY_OPERATION: Final[tuple[Group, ...]] = ("operation",)

_DAY: Final = timedelta(days=1)


class UsageTotals(msgspec.Struct, frozen=True):
    """What the ledger charged, what it gave back, and how many jobs it charged."""

    credits: int
    refunded_credits: int
    net_credits: int
    jobs: int


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of usage; it names what it is grouped by, and has a unit and quantity where that is the operation."""

    operation: str | UnsetType = UNSET
    unit: str | UnsetType = UNSET
    quantity: int | UnsetType = UNSET
    credits: int
    refunded_credits: int
    jobs: int
    environment: Environment | UnsetType = UNSET
    day: date | UnsetType = UNSET


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of [from, to)."""

    start: date = msgspec.field(name="from")
    end: date = msgspec.field(name="to")
    totals: UsageTotals
    lines: list[UsageLine]


class UsageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which usage is asked for: of a month (J14), or settled on days [start, end); without either, this month's."""

    period: str | None = None
    days: tuple[date, date] | None = None
    environment: Environment | None = None
    group_by: Collection[Group] = BY_OPERATION


async def usage(reading: Reading, account_id: str, wanted: UsageFilter) -> UsageView | None:
    """Return an account's usage; None where there is no such account."""
    async with reading.snapshot() as snapshot:
        account = await snapshot.account(account_id)
        if account is None:
            return None
        start, end, counted = _range(account, wanted)
        conditions = [*counted, *_in(wanted.environment)]
        rows = await snapshot.rows(_totals(account.number, conditions))
        lines = await usage_lines(snapshot, account.number, conditions, wanted.group_by)
        return UsageView(start=start, end=end, totals=_total(rows[0]), lines=lines)


def _range(account: AccountAsked, wanted: UsageFilter) -> tuple[date, date, list[ColumnElement[bool]]]:
    """Return the days that are asked for, and the condition of what counts in them."""
    if wanted.days is not None:
        start, end = wanted.days
        return start, end, _settled_between(start, end)
    period = wanted.period or period_of(account.now)
    return period_start(period).date(), period_end(period).date(), in_period(period)


def _settled_between(start: date, end: date) -> list[ColumnElement[bool]]:
    """Return the condition of a day of settlement; the month of such a job is the day's or that of the day before."""
    column = schema.usage_totals.c
    first = start - _DAY if start > date.min else start
    return [
        column.period.between(first.isoformat()[:7], end.isoformat()[:7]),
        column.day >= start,
        column.day < end,
    ]


def _in(environment: Environment | None) -> list[ColumnElement[bool]]:
    return [] if environment is None else [schema.usage_totals.c.environment == environment]


def in_period(period: str) -> list[ColumnElement[bool]]:
    """Return the condition of what counts in a month."""
    return [schema.usage_totals.c.period == period]


async def usage_lines(
    snapshot: Snapshot, account: int, conditions: list[ColumnElement[bool]], group_by: Collection[Group]
) -> list[UsageLine]:
    """Return the usage that conditions describe, a line for each group; lines of nothing are left out."""
    rows = await snapshot.rows(_lines(account, conditions, group_by))
    return [_line(row, group_by) for row in rows]


def _lines(account: int, conditions: list[ColumnElement[bool]], group_by: Collection[Group]) -> AnySelect:
    column = schema.usage_totals.c
    groups: list[ColumnElement[Any]] = [
        column[name] for name in ("day", "environment", "operation") if name in group_by
    ]
    # A job counts once in a line: by its operations where lines have one, else by the first of them.
    jobs, more = column.first_jobs, []
    if "operation" in group_by:
        jobs, more = column.jobs, [column.unit]
    return (
        select(
            *groups,
            *more,
            func.sum(column.quantity).label("quantity"),
            func.sum(column.credits).label("credits"),
            func.sum(column.refunded).label("refunded"),
            func.sum(jobs).label("jobs"),
        )
        .where(column.account == account, *conditions, or_(column.credits > 0, column.refunded > 0))
        .group_by(*groups, *more)
        .order_by(*groups, *more)
    )


def _line(row: AnyRow, group_by: Collection[Group]) -> UsageLine:
    line = UsageLine(
        credits=int(row.credits),
        refunded_credits=int(row.refunded),
        jobs=int(row.jobs),
        environment=row.environment if "environment" in group_by else UNSET,
        day=row.day if "day" in group_by else UNSET,
    )
    if "operation" not in group_by:
        return line
    return msgspec.structs.replace(line, operation=row.operation, unit=row.unit, quantity=int(row.quantity))


def _totals(account: int, conditions: list[ColumnElement[bool]]) -> AnySelect:
    column = schema.usage_totals.c
    return select(
        func.coalesce(func.sum(column.credits), 0).label("credits"),
        func.coalesce(func.sum(column.refunded), 0).label("refunded"),
        func.coalesce(func.sum(column.first_jobs), 0).label("jobs"),
    ).where(column.account == account, *conditions)


def _total(row: AnyRow) -> UsageTotals:
    credits, refunded, jobs = (int(figure) for figure in row)
    return UsageTotals(credits, refunded, credits - refunded, jobs)
