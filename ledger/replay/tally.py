"""What a replay saw: counts, credits, latencies and everything that was not as it should be."""

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Audit", "OperationTotals", "Problem", "Tally", "percentile"]

SAMPLES_MAX = 10


class Problem(enum.Enum):
    """The ways in which a replay can go wrong; each has its sentence in the report."""

    REFUSED = "refused by mistake"
    LOST = "lost"
    WRONG_CHARGE = "charged wrongly"
    DUPLICATE = "answered differently when sent twice"
    UNEXPECTED = "answered in an unexpected way"
    BALANCE = "balances that do not follow from the charges"


@dataclass(slots=True)
class OperationTotals:
    """Jobs of one operation, and their credits: reserved + over_hold = charged + returned + left_open."""

    jobs: int = 0
    already_done: int = 0
    reserved: int = 0
    charged: int = 0
    returned: int = 0
    over_hold: int = 0
    left_open: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """The service's audit of itself: `summary` says what it found, or why there is no answer."""

    ok: bool
    summary: str


@dataclass(slots=True)
class Tally:
    """The running account of a replay. Credits are whole, times are seconds."""

    operations: defaultdict[str, OperationTotals] = field(default_factory=lambda: defaultdict(OperationTotals))
    charged_by_account: Counter[str] = field(default_factory=Counter)
    earlier_credits: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    problems: Counter[Problem] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    retries: int = 0
    seconds: float = 0.0
    late_seconds_max: float = 0.0
    balances_checked: int = 0
    audit: Audit | None = None
    stopped: str | None = None

    def problem(self, kind: Problem, text: str) -> None:
        """Count a problem, and keep the sentence if it is among the first of its kind."""
        self.problems[kind] += 1
        if self.problems[kind] <= SAMPLES_MAX:
            self.samples.append(f"{text} [{kind.value}]")

    def answered(self, command: str, seconds: float) -> None:
        """Count a command that has its answer, `seconds` after it was first sent."""
        self.commands[command] += 1
        self.latencies.append(seconds)

    @property
    def ok(self) -> bool:
        """Whether nothing was refused by mistake, nothing lost, every check held and the audit is clean."""
        return not self.problems and self.stopped is None and self.audit is not None and self.audit.ok


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The exact percentile (nearest rank) of values in ascending order; of none, NaN."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
