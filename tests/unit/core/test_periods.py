"""Periods are calendar months in UTC, and half-open (Q2, T2, T4)."""

from __future__ import annotations

import pytest

from ledger.core.periods import (
    InvalidPeriod,
    next_period,
    period_end,
    period_ended_by,
    period_of,
    period_start,
    previous_period,
)
from tests.support.core import instant


@pytest.mark.parametrize(
    ("what", "at", "lies_in", "ended_by"),
    [
        ("the middle of a month", "2026-11-15T12:00:00", "2026-11", "2026-11"),
        ("the last microsecond", "2026-11-30T23:59:59.999999", "2026-11", "2026-11"),
        (
            "midnight of the 1st: the new month, but what ends then was the old one's",
            "2026-12-01",
            "2026-12",
            "2026-11",
        ),
        ("a microsecond later", "2026-12-01T00:00:00.000001", "2026-12", "2026-12"),
        ("the turn of the year", "2027-01-01", "2027-01", "2026-12"),
        ("a leap day", "2028-02-29T23:59:59", "2028-02", "2028-02"),
        ("an early year keeps its four digits", "0987-06-05", "0987-06", "0987-06"),
    ],
)
def test_the_month_an_instant_lies_in_and_the_month_that_it_ends(
    what: str, at: str, lies_in: str, ended_by: str
) -> None:
    """T2, T4."""
    assert (period_of(instant(at)), period_ended_by(instant(at))) == (lies_in, ended_by), what


@pytest.mark.parametrize(
    ("month", "start", "end", "previous", "following"),
    [
        ("2026-11", "2026-11-01", "2026-12-01", "2026-10", "2026-12"),
        ("2026-12", "2026-12-01", "2027-01-01", "2026-11", "2027-01"),
        ("2027-01", "2027-01-01", "2027-02-01", "2026-12", "2027-02"),
        ("2028-02", "2028-02-01", "2028-03-01", "2028-01", "2028-03"),
    ],
)
def test_where_a_month_begins_and_ends(month: str, start: str, end: str, previous: str, following: str) -> None:
    """Q2."""
    assert (period_start(month), period_end(month)) == (instant(start), instant(end))
    assert (previous_period(month), next_period(month)) == (previous, following)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026",
        "2026-13",
        "2026-00",
        "2026-1",
        "26-11",
        "0000-01",
        "2026-11-01",
        "2026-11\n",
        "２０２６-１１",
        "٢٠٢٦-11",
    ],
)
def test_what_is_not_a_month_is_refused(text: str) -> None:
    with pytest.raises(InvalidPeriod, match="not a month written YYYY-MM"):
        period_start(text)
