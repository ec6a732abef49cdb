"""Usage of a month in the columns of FOCUS 1.2, the FinOps Open Cost & Usage Specification.

Which columns are FOCUS's, which are ours and which are left out is in this folder's README.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from sqlalchemy import or_, select

from ledger import schema
from ledger.core.periods import period_end, period_start
from ledger.export.columns import AccountNamed, Cell, Column, Content, Part, Row
from ledger.queries.snapshot import AnyRow, AnySelect, Snapshot

COLUMNS: Final = (
    Column("BillingAccountId"),
    Column("BillingPeriodEnd", "instant"),
    Column("BillingPeriodStart", "instant"),
    Column("ChargeCategory"),
    Column("ChargeFrequency"),
    Column("ChargePeriodEnd", "instant"),
    Column("ChargePeriodStart", "instant"),
    Column("PricingCurrency"),
    Column("PricingCurrencyEffectiveCost", "integer"),
    Column("PricingQuantity", "integer"),
    Column("PricingUnit"),
    Column("ServiceCategory"),
    Column("ServiceName"),
    Column("SkuId"),
    Column("SubAccountId"),
    Column("SubAccountType"),
    Column("x_Jobs", "integer"),
    Column("x_JobsOnce", "integer"),
)
"""FOCUS's columns by name, then ours, as the specification asks."""

CURRENCY: Final = "Credits"
"""A virtual currency, as FOCUS 1.2 has it: credits are priced in, money is not."""

_DAY: Final = timedelta(days=1)


async def read(snapshot: Snapshot, account: AccountNamed, period: str) -> AsyncIterator[Part]:
    """Give the usage of a month: by day, environment and operation, what was charged and what was refunded."""
    start, end = period_start(period), period_end(period)
    rows: list[Row] = []
    for usage in await snapshot.rows(_usage(account.number, period)):
        values: dict[str, Cell] = {
            "BillingAccountId": account.shown,
            "BillingPeriodStart": start,
            "BillingPeriodEnd": end,
            **_common(usage),
        }
        if usage.credits:
            rows.append(_row(values, _charged(usage)))
        if usage.refunded:
            rows.append(_row(values, _refunded(usage)))
    yield Part(rows)


def _usage(account: int, period: str) -> AnySelect:
    column = schema.usage_totals.c
    return (
        select(schema.usage_totals)
        .where(column.account == account, column.period == period, or_(column.credits > 0, column.refunded > 0))
        .order_by(column.day, column.environment, column.operation)
    )


def _common(usage: AnyRow) -> dict[str, Cell]:
    return {
        "ChargePeriodStart": _midnight(usage.day),
        "ChargePeriodEnd": _midnight(usage.day + _DAY),
        "PricingCurrency": CURRENCY,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Gateway",
        "SkuId": usage.operation,
        "SubAccountId": usage.environment,
        "SubAccountType": "Environment",
    }


def _charged(usage: AnyRow) -> dict[str, Cell]:
    return {
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "PricingCurrencyEffectiveCost": usage.credits,
        "PricingQuantity": usage.quantity,
        "PricingUnit": usage.unit,
        "x_Jobs": usage.jobs,
        "x_JobsOnce": usage.first_jobs,
    }


def _refunded(usage: AnyRow) -> dict[str, Cell]:
    return {
        "ChargeCategory": "Credit",
        "ChargeFrequency": "One-Time",
        "PricingCurrencyEffectiveCost": -usage.refunded,
    }


def _row(*parts: dict[str, Cell]) -> Row:
    values = {name: value for part in parts for name, value in part.items()}
    return tuple(values.get(column.name) for column in COLUMNS)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


USAGE: Final = Content(COLUMNS, read)
