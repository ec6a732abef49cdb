"""What an audit finds: discrepancies that name the rule, the place, and both figures."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TypedDict, Unpack

import msgspec

Rule = Literal["A1", "A2", "A3", "A4", "A5", "A6", "A7"]
Figure = int | str | bool | None

LISTED_MAX: Final = 1_000
"""How many discrepancies a report lists; the rest is counted."""

LISTED_OF_ACCOUNT_MAX: Final = 100
"""How many of them one account may take up, so that the others are heard of too."""


class Place(TypedDict, total=False):
    """Where something is wrong: an entry, a job or a grant by name or number, a month."""

    sequence: int | None
    job: str | int | None
    grant: str | int | None
    period: str | None


class Discrepancy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is not as contract section A says. `expected` is what the journal makes it.

    Accounts, jobs and grants are named as customers know them; where that name is gone, by our own number.
    """

    rule: Rule
    account_id: str | int
    what: str
    expected: Figure
    found: Figure
    sequence: int | None = None
    job_id: str | int | None = None
    grant_id: str | int | None = None
    period: str | None = None


class AuditReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an audit read, by table, and what it found wrong: `LISTED_MAX` of it, and how much more."""

    ok: bool
    checked: dict[str, int]
    discrepancies: list[Discrepancy]
    unlisted: int = 0


class Findings:
    """Collects what is wrong, of one account after the other."""

    def __init__(self) -> None:
        self.discrepancies: list[Discrepancy] = []
        self.unlisted = 0
        self.account_id: str | int = 0
        """The account that is being audited."""
        self._of_account = 0

    def begin(self, account_id: str | int) -> None:
        """Go on to the next account."""
        self.account_id = account_id
        self._of_account = 0

    def note(self, rule: Rule, what: str, expected: object, found: object, **place: Unpack[Place]) -> None:
        """Note one discrepancy of the account; past the bounds it is only counted."""
        self._of_account += 1
        if self._of_account > LISTED_OF_ACCOUNT_MAX or len(self.discrepancies) >= LISTED_MAX:
            self.unlisted += 1
            return
        self.discrepancies.append(
            Discrepancy(
                rule=rule,
                account_id=self.account_id,
                what=what,
                expected=_figure(expected),
                found=_figure(found),
                sequence=place.get("sequence"),
                job_id=place.get("job"),
                grant_id=place.get("grant"),
                period=place.get("period"),
            )
        )

    def compare(
        self,
        rule: Rule,
        names: Iterable[str],
        expected: tuple[object, ...],
        found: tuple[object, ...],
        **place: Unpack[Place],
    ) -> None:
        """Note each figure of a row that is not what it should be."""
        if expected == found:
            return
        for name, should, does in zip(names, expected, found, strict=True):
            if should != does:
                self.note(rule, name, should, does, **place)


def _figure(value: object) -> Figure:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
