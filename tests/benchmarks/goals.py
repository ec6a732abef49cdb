"""What speed is wanted, as data: each goal compares a figure with another of the same run, or with a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tests.benchmarks.figures import Figures


@dataclass(frozen=True)
class Goal:
    """A figure is to be at least, or at most, so many times another; or so much, where there is no other."""

    figure: str
    bound: Literal["≥", "≤"]
    limit: float
    base: str | None = None

    def judge(self, figures: Figures) -> Verdict | None:
        """Compare the two; return None where one of the two was not measured."""
        value = figures.value(self.figure)
        base = 1.0 if self.base is None else figures.value(self.base)
        if value is None or base is None:
            return None
        measured = value / base if base else float("inf")
        return Verdict(self, measured, measured >= self.limit if self.bound == "≥" else measured <= self.limit)


@dataclass(frozen=True)
class Verdict:
    """How a goal stands."""

    goal: Goal
    measured: float
    met: bool


def _ahead_of_peer() -> list[Goal]:
    return [
        Goal(f"{row}.{shape}.pairs_per_second", "≥", 5, f"peer.{shape}.pairs_per_second")
        for row in ("http", "engine", "batch")
        for shape in ("hot", "uniform")
    ]


GOALS: Final = (
    Goal("http.hot.pairs_per_second", "≥", 2, "floor.hot.16.pairs_per_second"),
    Goal("http.hot.pairs_per_second", "≥", 3.5, "floor.hot.64.pairs_per_second"),
    Goal("http.uniform.pairs_per_second", "≥", 0.6, "floor.uniform.16.pairs_per_second"),
    Goal("http.hot.pairs_per_second", "≥", 0.9, "http.uniform.pairs_per_second"),
    Goal("engine.hot.pairs_per_second", "≥", 3.5, "floor.hot.16.pairs_per_second"),
    Goal("engine.uniform.pairs_per_second", "≥", 1.1, "floor.uniform.16.pairs_per_second"),
    Goal("batch.hot.commands_per_second", "≥", 8, "floor.hot.16.pairs_per_second"),
    *_ahead_of_peer(),
    Goal("open.hot.p50_ms", "≤", 7),
    Goal("open.hot.p99_ms", "≤", 25),
    Goal("open.hot.refused", "≤", 0),
    Goal("lone.reserve.p50_ms", "≤", 2, "lone.floor_and_bare_ms"),
    Goal("lone.settle.p50_ms", "≤", 2, "lone.floor_and_bare_ms"),
    Goal("noisy.quiet.p99_ms", "≤", 2, "noisy.alone.p99_ms"),
    Goal("memory.most_mib", "≤", 200),
    Goal("memory.last_round_mib", "≤", 1.2, "memory.first_round_mib"),
    Goal("audit.discrepancies", "≤", 0),
)
"""Pairs are a reservation and its settlement; `hot` is one busy account, `uniform` 1,000 accounts."""

HISTORY_ROWS: Final = ("engine", "http", "batch", "lone")
"""What is measured with a history and without."""

FLAT: Final = 0.85
"""How much of its speed, at least, a ledger keeps with ten million postings."""


def _flat_with_history() -> list[Goal]:
    rates = ["batch.{}.commands_per_second", "engine.{}.pairs_per_second", "http.{}.pairs_per_second"]
    fast = [rate.format(shape) for rate in rates for shape in ("hot", "uniform")]
    soon = ["lone.reserve.p50_ms", "lone.settle.p50_ms"]
    soon += [
        f"{row}.{shape}.{name}"
        for row in ("engine", "http")
        for shape in ("hot", "uniform")
        for name in ("p50_ms", "p99_ms")
    ]
    return [Goal(f"full.{name}", "≥", FLAT, f"empty.{name}") for name in fast] + [
        Goal(f"full.{name}", "≤", 1 / FLAT, f"empty.{name}") for name in soon
    ]


HISTORY_GOALS: Final = (
    *_flat_with_history(),
    Goal("full.reads.usage.p50_ms", "≤", 10),
    Goal("full.reads.first_page.p50_ms", "≤", 10),
    Goal("full.reads.far_page.p50_ms", "≤", 10),
    Goal("empty.audit.discrepancies", "≤", 0),
)
