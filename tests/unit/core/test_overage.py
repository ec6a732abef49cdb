"""Payment history -> ceiling -> cap -> credits (O2, O3, O4, O7)."""

from __future__ import annotations

import pytest

from ledger.core.overage import (
    MICRO_USD,
    CycleStatus,
    cap_credits,
    effective_cap,
    paid_cycles,
    provider_ceiling,
)

PAID: CycleStatus = "paid_on_time"


def history(*statuses: CycleStatus) -> dict[str, CycleStatus]:
    """Months from January on, with what became of their invoices."""
    return {f"2026-{month:02d}": status for month, status in enumerate(statuses, start=1)}


@pytest.mark.parametrize(
    ("what", "months", "cycles", "ceiling"),
    [
        ("a new account", history(), 0, 20),
        ("one month not yet paid", history("open"), 0, 20),
        ("two paid on time", history(PAID, PAID), 2, 20),
        ("three paid on time", history(PAID, PAID, PAID), 3, 100),
        ("five paid on time", history(*[PAID] * 5), 5, 100),
        ("six paid on time", history(*[PAID] * 6), 6, 500),
        ("twelve paid on time: the absolute maximum", history(*[PAID] * 12), 12, 500),
        ("the present month is open", history(PAID, PAID, PAID, "open"), 3, 100),
        ("an open month between counts neither way", history(PAID, "open", PAID, PAID), 3, 100),
        ("the last is overdue", history(*[PAID] * 6, "overdue"), 0, 20),
        ("the last was returned", history(*[PAID] * 6, "returned"), 0, 20),
        ("the last was paid late", history(*[PAID] * 6, "paid_late"), 0, 20),
        ("the count starts again", history(*[PAID] * 6, "overdue", PAID, PAID), 2, 20),
        ("three since the setback", history("overdue", PAID, PAID, PAID), 3, 100),
        ("two setbacks", history(PAID, "overdue", PAID, "paid_late", PAID), 1, 20),
        (
            "months count in their order, not in the order recorded",
            {"2026-03": "overdue", "2026-01": PAID, "2026-05": PAID, "2026-04": PAID, "2026-06": PAID},
            3,
            100,
        ),
        ("across a year", {"2027-01": PAID, "2026-12": "overdue", "2026-11": PAID}, 1, 20),
    ],
)
def test_the_ladder(what: str, months: dict[str, CycleStatus], cycles: int, ceiling: int) -> None:
    """O3, O4: 20 USD, 100 after 3 cycles paid on time, 500 after 6; a setback starts the count again."""
    assert paid_cycles(months) == cycles, what
    assert provider_ceiling(cycles) == ceiling * MICRO_USD, what


@pytest.mark.parametrize(
    ("what", "own_usd", "cycles", "credit_price", "cap_usd", "credits"),
    [
        ("no cap of its own: the ceiling", None, 0, 1_000, 20, 20_000),
        ("no cap of its own: the highest ceiling", None, 6, 1_000, 500, 500_000),
        ("its own cap is lower", 5, 0, 1_000, 5, 5_000),
        ("its own cap is higher: the ceiling", 50, 0, 1_000, 20, 20_000),
        ("its own cap, once earned", 50, 3, 1_000, 50, 50_000),
        ("a cap of nothing", 0, 6, 1_000, 0, 0),
        ("a part of a credit is none", None, 0, 3, 20, 6_666_666),
        ("a credit dearer than the cap", 1, 0, 1_000_001, 1, 0),
        ("a credit of exactly the cap", 1, 0, 1_000_000, 1, 1),
    ],
)
def test_the_cap(what: str, own_usd: int | None, cycles: int, credit_price: int, cap_usd: int, credits: int) -> None:
    """O2, O7: the lower of the two, in whole credits."""
    cap = effective_cap(None if own_usd is None else own_usd * MICRO_USD, cycles)
    assert cap == cap_usd * MICRO_USD, what
    assert cap_credits(cap, credit_price) == credits, what
