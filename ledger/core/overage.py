"""Overage: payment history -> the provider's ceiling -> the effective cap, in micro-dollars (contract O1-O7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

CycleStatus = Literal["open", "paid_on_time", "paid_late", "overdue", "returned"]

MICRO_USD = 1_000_000
CEILING_STEPS = ((6, 500 * MICRO_USD), (3, 100 * MICRO_USD), (0, 20 * MICRO_USD))
"""Cycles paid on time, and the ceiling that they earn (O3)."""

_STARTS_AGAIN = frozenset({"overdue", "returned", "paid_late"})


def usd_text(micro: int) -> str:
    """Write micro-dollars as a decimal string with at least two decimals: `20.00`, `0.001`."""
    dollars, rest = divmod(micro, MICRO_USD)
    decimals = f"{rest:06d}".rstrip("0")
    return f"{dollars}.{decimals.ljust(2, '0')}"


def paid_cycles(cycles: Mapping[str, CycleStatus]) -> int:
    """Count the cycles paid on time since the last that was overdue, returned or paid late (O3, O4).

    Cycles count in the order of their months by their present status, so a correction counts as if it had always
    been so.
    """
    count = 0
    for month in sorted(cycles):
        if cycles[month] in _STARTS_AGAIN:
            count = 0
        elif cycles[month] == "paid_on_time":
            count += 1
    return count


def provider_ceiling(paid: int) -> int:
    """Return the ceiling in micro-dollars that a number of cycles paid on time earns (O3)."""
    return next(ceiling for cycles, ceiling in CEILING_STEPS if paid >= cycles)


def effective_cap(own_cap: int | None, paid: int) -> int:
    """Return the lower of the own cap and the ceiling, in micro-dollars; no own cap means the ceiling (O2)."""
    ceiling = provider_ceiling(paid)
    return ceiling if own_cap is None else min(own_cap, ceiling)


def cap_credits(cap: int, credit_price: int) -> int:
    """Return how many whole credits a cap admits; both arguments in micro-dollars (O7)."""
    return cap // credit_price
