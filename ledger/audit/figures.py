"""What the journal of one account adds up to, and what one entry of it does.

The journal says how credits move. Where they count follows from what stands beside it: the environment of a
job, the end of a grant. After a deletion (R7) these rows are gone, and less is known: `deleted`.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import date, datetime
from typing import Final

import msgspec

from ledger.audit.chain import Event
from ledger.audit.findings import Findings
from ledger.audit.reading import Row

OVERAGE: Final = 0
OVERDRAFT: Final = -1
"""Who pays, as `jobs.sources` and `jobs.segments` write it: a grant by its number, or one of these."""

UsageKey = tuple[str, date, str | None, str]
"""Month, day, environment (None where it is not known any more), operation."""


Part = tuple[int, int]
"""A source, and the credits that it gives or gets."""


def month_of(instant: datetime) -> str:
    """Return the month that an instant lies in, as `2026-11`."""
    return f"{instant.year:04d}-{instant.month:02d}"


class Usage:
    """What usage of one operation, on one day and in one environment adds up to."""

    __slots__ = ("credits", "first_jobs", "jobs", "quantity", "refunded")

    def __init__(self) -> None:
        self.quantity = self.credits = self.refunded = self.jobs = self.first_jobs = 0

    def figures(self) -> tuple[int, int, int, int, int]:
        """Return the figures in the order of the columns of `usage_totals`."""
        return (self.quantity, self.credits, self.refunded, self.jobs, self.first_jobs)


class Quota:
    """What the jobs of one month and one environment used and hold."""

    __slots__ = ("held", "used")

    def __init__(self) -> None:
        self.used = self.held = 0


class Movement(msgspec.Struct):
    """What the postings of one entry do, collected for when they have all been read."""

    event: Event
    month: str
    held: tuple[Part, ...] = ()
    """Of what is held, in the order taken."""
    returned: tuple[Part, ...] = ()
    """Of what a hold gives back."""
    direct: tuple[Part, ...] = ()
    """Of what is charged beyond the hold."""
    consumed: tuple[tuple[str, int, int], ...] = ()
    """Operation, credits and quantity, of what is charged."""
    refunded: tuple[tuple[str, int], ...] = ()
    """Operation and credits, of what is refunded."""
    from_hold: int = 0
    to_overage: int = 0
    granted: int = 0
    own_grant: str | None = None
    """The kind of the grant that the entry puts."""


class Figures:
    """The figures of one account, as far as its journal has been read."""

    def __init__(self, findings: Findings, *, deleted: bool) -> None:
        self.findings = findings
        self.deleted = deleted
        self.available = 0
        self.overdraft = 0
        self.remaining: defaultdict[int, int] = defaultdict(int)
        """By grant."""
        self.held: defaultdict[int, int] = defaultdict(int)
        """By grant."""
        self.overage: defaultdict[str, int] = defaultdict(int)
        """Held and used, by month."""
        self.overage_held: defaultdict[str, int] = defaultdict(int)
        self.months: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        """The other figures of `periods`, by month."""
        self.quotas: defaultdict[tuple[str, str | None], Quota] = defaultdict(Quota)
        """By month and environment."""
        self.usage: defaultdict[UsageKey, Usage] = defaultdict(Usage)
        self.grants: dict[int, Row] = {}
        """The rows of the grants, by number."""
        self.welcome_at: datetime | None = None
        self._below_zero: set[int] = set()
        self._had_both = False

    def grant_name(self, number: int) -> str | int:
        """Return a grant's name, or else its number."""
        row = self.grants.get(number)
        return number if row is None else row["grant_id"]

    def credit(self, grant: int, credits: int) -> None:
        """Put credits into a grant."""
        self.remaining[grant] += credits
        self.available += credits

    def debit(self, grant: int, credits: int, event: Event) -> None:
        """Take credits out of a grant, which must have them (A6)."""
        left = self.remaining[grant] = self.remaining[grant] - credits
        self.available -= credits
        if left < 0 and grant not in self._below_zero:
            self._below_zero.add(grant)
            self.findings.note(
                "A6", "a grant below zero", 0, left, sequence=event.sequence, grant=self.grant_name(grant)
            )

    def welcome(self, event: Event) -> None:
        """Note a second welcome (A6)."""
        if self.welcome_at is None:
            self.welcome_at = event.at
        else:
            self.findings.note("A6", "a second welcome", 1, 2, sequence=event.sequence)

    def check_overdraft(self, event: Event) -> None:
        """Note the first entry that leaves something available while there is an overdraft (A6)."""
        if self.overdraft and self.available and not self._had_both:
            self._had_both = True
            self.findings.note(
                "A6",
                "available credits while there is an overdraft",
                0,
                self.available,
                sequence=event.sequence,
            )
