"""The books of one account, kept a second time: entry by entry, the figures, the grants and the jobs."""

from __future__ import annotations

from typing import Final

from ledger.audit.chain import Event
from ledger.audit.figures import Figures, Movement, month_of
from ledger.audit.findings import Findings
from ledger.audit.jobs import Jobs
from ledger.audit.moves import move
from ledger.audit.reading import Row

GRANT_COLUMNS: Final = ("grants.kind", "grants.granted", "grants.created_at")


class Books:
    """One account as far as its journal has been read."""

    def __init__(self, findings: Findings, *, deleted: bool) -> None:
        self.figures = Figures(findings, deleted=deleted)
        self.jobs = Jobs(self.figures)
        self._findings = findings
        self._grant_rows: dict[int, Row] = {}
        self._month = (0, 0)
        self._month_name = ""

    @property
    def deleted(self) -> bool:
        """Whether the account's names, and the rows that had them, are gone (R7)."""
        return self.figures.deleted

    def expect(self, grants: list[Row], jobs: list[Row], refunds: list[Row]) -> None:
        """Take the rows that the entries to come have put."""
        self._grant_rows.update((row[1], row) for row in grants)
        self.jobs.expect(jobs, refunds)

    def enter(self, event: Event) -> None:
        """Add an entry."""
        at = event.at
        if (at.year, at.month) != self._month:
            self._month, self._month_name = (at.year, at.month), month_of(at)
        movement = Movement(event, self._month_name)
        for posting in event.postings:
            try:
                move(self.figures, movement, posting)
            except ValueError:
                found = f"{posting.debit} to {posting.credit}, {posting.operation}"
                what = f"no {event.kind} moves credits so"
                self._findings.note("A7", what, None, found, sequence=event.sequence)
        match event.kind:
            case "reserve":
                self.jobs.reserved(movement)
            case "settle" | "release" | "expire":
                self.jobs.closed(movement)
            case "refund":
                self.jobs.refunded(movement)
        if movement.own_grant is not None:
            self._granted(movement)
        self.figures.check_overdraft(event)

    def note_rows_without_entries(self) -> None:
        """Note rows that no entry has put, once the entries that could have are read."""
        for row in self._grant_rows.values():
            self.figures.grants[row[1]] = row
            self._findings.note("A2", "grants: no entry puts it", None, row["granted"], grant=row["grant_id"])
        self._grant_rows.clear()
        self.jobs.note_rows_without_entries()

    def _granted(self, movement: Movement) -> None:
        """Find the row of the grant that an entry puts."""
        event = movement.event
        row = self._grant_rows.pop(event.sequence, None)
        if row is not None:
            self.figures.grants[event.sequence] = row
            expected = (movement.own_grant, movement.granted, event.at)
            self._findings.compare(
                "A2", GRANT_COLUMNS, expected, row[4:7], sequence=event.sequence, grant=row["grant_id"]
            )
        elif not self.deleted:
            what, granted = "grants: its row is missing", movement.granted
            self._findings.note("A2", what, granted, None, sequence=event.sequence, grant=event.sequence)
