"""What was measured: one value a round for each figure, medians over the rounds, percentiles within one."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least so many percent of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("there is no percentile of nothing")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


class Figures:
    """The figures of a run by name, such as `http.hot.pairs_per_second`."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[float]] = defaultdict(list)
        self.worst: set[str] = set()
        """Those of which the highest value counts, and no median: what must never be."""

    def note(self, name: str, value: float, *, worst: bool = False) -> None:
        """Add what a round came to."""
        self.rounds[name].append(value)
        if worst:
            self.worst.add(name)

    def value(self, name: str) -> float | None:
        """Return the median over the rounds, or the highest value; None where nothing was measured."""
        values = self.rounds.get(name)
        if not values:
            return None
        return max(values) if name in self.worst else statistics.median(values)

    def values(self) -> dict[str, float]:
        """Return the value of every figure that was measured."""
        return {name: value for name in self.rounds if (value := self.value(name)) is not None}

    def add(self, others: Figures, prefix: str) -> None:
        """Take over another run's figures, with a word before their names."""
        for name, rounds in others.rounds.items():
            self.rounds[f"{prefix}.{name}"] = rounds
        self.worst |= {f"{prefix}.{name}" for name in others.worst}
