"""What is to go wrong, in which order: made from a seed, so that the same seed makes the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.failpoints import BATCH_POINTS

KILLS: Final = frozenset({"kill_service", "kill_postgres", "kill_backend", "failpoint"})
"""The faults by which a process dies."""

FAULTS: Final[Mapping[str, int]] = {
    "kill_service": 40,
    "kill_postgres": 18,
    "kill_backend": 20,
    "failpoint": 16,
    "stop_service": 3,
    "freeze_service": 4,
    "freeze_postgres": 4,
    "freeze_backend": 4,
    "cut": 4,
    "swallow": 8,
    "delay": 3,
    "stall": 4,
    "refuse": 3,
    "fill_disk": 3,
    "exhaust": 3,
    "migrate": 3,
    "skew_clock": 3,
}
"""Every fault, and how often it is drawn. `faults.py` has a method of each name."""

SERVICES: Final = frozenset({"kill_service", "failpoint", "stop_service", "freeze_service", "migrate", "skew_clock"})
"""What happens to services while others on the same PostgreSQL go on."""

EMBEDDED: Final = frozenset(
    {"kill_service", "kill_postgres", "kill_backend", "failpoint", "stop_service", "freeze_service", "freeze_postgres"}
)
"""What can happen to a service that runs its own PostgreSQL: nothing stands between the two."""

CLOCKS: Final = ("-400d", "-31d", "-1h", "-20s", "+20s", "+1h", "+31d", "+400d")
"""How far a system clock can be off: by a hold, an hour, a month, and longer than anything is kept."""

GAP_SECONDS: Final = (0.05, 0.6)
HOLD_SECONDS: Final = (0.3, 1.5)


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    gap_seconds: float
    """How long everything works before it."""
    hold_seconds: float
    """How long it lasts, if it is one that lasts."""
    pick: float
    """Which of several it hits, as a fraction of their number."""
    settled: bool
    """Whether it waits until the service that it hits answers; else it may hit one that is just starting."""
    point: str
    """Which failpoint is armed, if it is that."""
    turn: int
    """The so-manieth time at which that acts."""

    def choose(self, count: int) -> int:
        """Return which of so many is hit."""
        return int(self.pick * count)


def faults(seed: str, allowed: Sequence[str]) -> Iterator[Fault]:
    """Yield one fault after the other, for ever."""
    rng = random.Random(seed)  # noqa: S311 - a plan that can be made again, no secret
    weights = [FAULTS[name] for name in allowed]
    while True:
        yield Fault(
            name=rng.choices(allowed, weights)[0],
            gap_seconds=round(rng.uniform(*GAP_SECONDS), 3),
            hold_seconds=round(rng.uniform(*HOLD_SECONDS), 3),
            pick=rng.random(),
            settled=rng.random() < 0.7,
            point=rng.choice(BATCH_POINTS),
            turn=rng.randint(1, 30),
        )
