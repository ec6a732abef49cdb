"""Periods: calendar months in UTC, half-open, written `2026-11` (contract Q2, T2)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_PERIOD = re.compile(r"(?!0000|9999-12)([0-9]{4})-(0[1-9]|1[0-2])")
_INSTANT = timedelta(microseconds=1)


class InvalidPeriod(ValueError):
    """Not a calendar month written `YYYY-MM`."""


def period_of(instant: datetime) -> str:
    """Return the month an instant lies in; midnight of the 1st is in the new one (T2)."""
    return f"{instant.year:04d}-{instant.month:02d}"


def period_ended_by(end: datetime) -> str:
    """Return the month that what ends at `end` belongs to: an end at midnight of the 1st is the old month's (T4)."""
    return period_of(end - _INSTANT)


def period_start(period: str) -> datetime:
    """Return the first instant of a month, or raise `InvalidPeriod`."""
    match = _PERIOD.fullmatch(period)
    if match is None:
        raise InvalidPeriod(f"{period!r} is not a month written YYYY-MM")
    return datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)


def period_end(period: str) -> datetime:
    """Return the first instant after a month, which is the start of the next."""
    start = period_start(period)
    if start.month == 12:
        return start.replace(year=start.year + 1, month=1)
    return start.replace(month=start.month + 1)


def next_period(period: str) -> str:
    """Return the month that follows."""
    return period_of(period_end(period))


def previous_period(period: str) -> str:
    """Return the month before."""
    return period_ended_by(period_start(period))
