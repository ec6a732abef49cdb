"""What is kept beside the journal of an account, compared with what the journal adds up to (A2, A3, A4)."""

from __future__ import annotations

from typing import Final

from ledger.audit.books import Books
from ledger.audit.figures import Figures, Usage, UsageKey
from ledger.audit.findings import Findings
from ledger.audit.reading import Row

BALANCE_COLUMNS: Final = (
    "balances.available",
    "balances.held",
    "balances.overdraft",
    "balances.live_requests",
    "balances.live_calls",
    "balances.test_requests",
    "balances.test_calls",
)
SLOTS: Final = (("live", "request"), ("live", "call"), ("test", "request"), ("test", "call"))
GRANT_COLUMNS: Final = ("grants.remaining", "grants.held", "grants.live")
HOLD_COLUMNS: Final = ("holds.environment", "holds.slot", "holds.expires_at")
USED_AND_HELD: Final = ("live_used", "test_used", "live_held", "test_held")
OVERAGE: Final = ("overage_used", "overage_held")
FLOWS: Final = ("granted", "adjusted", "charged", "refunded", "refunded_to_balance", "adjusted_up", "expired")
USAGE_COLUMNS: Final = ("quantity", "credits", "refunded", "jobs", "first_jobs")

UsageFigures = dict[UsageKey, tuple[int, ...]]


def compare_balances(findings: Findings, books: Books, row: Row) -> None:
    """Compare an account's balances, and its slots with its open jobs."""
    open_slots = [(hold.row["environment"], hold.row["slot"]) for hold in books.jobs.open.values() if hold.row]
    expected = (
        books.figures.available,
        sum(books.figures.held.values()),
        books.figures.overdraft,
        *(open_slots.count(slot) for slot in SLOTS),
    )
    found = row[6:13]
    findings.compare("A2", BALANCE_COLUMNS[:3], expected[:3], found[:3])
    if not books.deleted:
        findings.compare("A2", BALANCE_COLUMNS[3:], expected[3:], found[3:])
        if books.jobs.overdraft != books.figures.overdraft:
            findings.note("A3", "the sum of jobs.overdraft", books.figures.overdraft, books.jobs.overdraft)
    elif sum(found[3:]) != len(books.jobs.open):
        findings.note("A2", "open jobs in balances", len(books.jobs.open), sum(found[3:]))


def compare_grants(findings: Findings, books: Books) -> None:
    """Compare what remains of each grant, and what is held of it."""
    for number, row in books.figures.grants.items():
        remaining, held = books.figures.remaining.get(number, 0), books.figures.held.get(number, 0)
        expected = (remaining, held, remaining > 0 or held > 0)
        findings.compare("A2", GRANT_COLUMNS, expected, row[7:10], sequence=number, grant=row["grant_id"])


def compare_holds(findings: Findings, books: Books, rows: list[Row]) -> None:
    """Compare the rows of open jobs with the jobs that the journal leaves open (A3)."""
    left = dict(books.jobs.open)
    for row in rows:
        hold = left.pop(row["job"], None)
        if hold is None:
            findings.note("A3", "holds: a job that is not open", None, row["job"], job=row["job"])
        elif hold.row is not None:
            job = hold.row
            expected = (job["environment"], job["slot"], job["expires_at"])
            findings.compare("A3", HOLD_COLUMNS, expected, row[2:5], **hold.place)
    for hold in left.values():
        credits = sum(credits for _, credits in hold.parts)
        findings.note(
            "A3",
            "holds: the row of an open job is missing",
            credits,
            None,
            **hold.place,
        )
    for hold in books.jobs.open.values():
        if hold.row is not None and hold.row["status"] != "reserved":
            findings.note("A3", "jobs.status", "reserved", hold.row["status"], **hold.place)


def compare_periods(findings: Findings, books: Books, rows: list[Row]) -> None:
    """Compare the figures of each month. A month without a row has none."""
    figures = books.figures
    names_of_months = {*figures.months, *figures.overage, *(month for month, _ in figures.quotas)}
    months = {month: _month_figures(figures, month) for month in names_of_months}
    found = {row["period"]: dict(row.items()) for row in rows}
    if books.deleted:
        _without_places(months)
        _without_places(found)
        expired = sum(month.get("expired", 0) for month in months.values())
        if found and expired != (sums := sum(month["expired"] for month in found.values())):
            findings.note("A2", "periods.expired, of all months", expired, sums)
    names = ("used", "held", *OVERAGE, *FLOWS[:-1]) if books.deleted else (*USED_AND_HELD, *OVERAGE, *FLOWS)
    for month in sorted(found if books.deleted else {*months, *found}):
        findings.compare(
            "A2",
            [f"periods.{name}" for name in names],
            tuple(months.get(month, {}).get(name, 0) for name in names),
            tuple(found.get(month, {}).get(name, 0) for name in names),
            period=month,
        )


def _month_figures(figures: Figures, month: str) -> dict[str, int]:
    held = figures.overage_held.get(month, 0)
    result = {
        **figures.months.get(month, {}),
        "overage_used": figures.overage.get(month, 0) - held,
        "overage_held": held,
    }
    for (quota_month, environment), quota in figures.quotas.items():
        if quota_month == month:
            result[f"{environment}_used"] = quota.used
            result[f"{environment}_held"] = quota.held
    return result


def _without_places(months: dict[str, dict[str, int]]) -> None:
    """Add up the environments of each month, where it is no longer known which job was in which."""
    for figures in months.values():
        for name in ("used", "held"):
            figures[name] = sum(figures.get(f"{place}_{name}", 0) for place in ("live", "test", None))


def compare_usage(findings: Findings, books: Books, rows: list[Row]) -> None:
    """Compare the usage totals with the postings to and from `consumed` (A4)."""
    expected: UsageFigures = {key: usage.figures() for key, usage in books.figures.usage.items()}
    found: UsageFigures = {(row[2], row[3], row[4], row[5]): row[6:11] for row in rows}
    if books.deleted:
        expected, found = _without_environments(expected), _without_environments(found)
    keys = found.keys() if books.deleted else expected.keys() | found.keys()
    nothing = Usage().figures()
    for key in sorted(keys, key=str):
        period, day, environment, operation = key
        place = f"{operation}, {environment or 'both environments'}, {day}"
        findings.compare(
            "A4",
            [f"usage_totals.{name} of {place}" for name in USAGE_COLUMNS],
            expected.get(key, nothing),
            found.get(key, nothing),
            period=period,
        )


def _without_environments(
    usage: UsageFigures,
) -> UsageFigures:
    result: UsageFigures = {}
    for (period, day, _, operation), figures in usage.items():
        key = (period, day, None, operation)
        result[key] = tuple(map(sum, zip(result.get(key, (0,) * len(figures)), figures, strict=True)))
    return result
