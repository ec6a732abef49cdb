"""When a delivery that failed is tried again, and when no more (contract V4)."""

from __future__ import annotations

from datetime import timedelta
from secrets import SystemRandom
from typing import Final, Literal

Status = Literal["pending", "delivered", "exhausted", "gone", "undeliverable"]
"""What became of a delivery: it ends `delivered` by a 2xx, `exhausted` by the last failure, `gone` by a 410, and
`undeliverable` where there is nothing to send."""

DELAYS: Final = tuple(timedelta(minutes=minutes) for minutes in (0, 1, 5, 15, 60, 180, 360))
"""How long each attempt waits at most, from the failure of the one before; half of that at least."""

GONE: Final = 410

_chance: Final = SystemRandom()


def draw() -> float:
    """Return a number from 0 to 1 by chance, so that receivers that failed together are not tried together."""
    return _chance.random()


def after(attempts: int, status_code: int | None, drawn: float) -> tuple[Status, timedelta | None]:
    """Return what becomes of a delivery after some attempts, and in how long it is tried again if it is.

    Args:
        attempts: how many were made, the last one included.
        status_code: what that one was answered with; None where no whole answer came.
        drawn: from 0 (the shortest delay) to 1 (the longest).
    """
    if status_code is not None and 200 <= status_code < 300:
        return "delivered", None
    if status_code == GONE:
        return "gone", None
    if attempts >= len(DELAYS):
        return "exhausted", None
    return "pending", DELAYS[attempts] * (1 + drawn) / 2
