"""Entries as they were written: numbered without a gap, chained by hashes, with all postings (A1, A5)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from ledger.audit.findings import Findings
from ledger.audit.reading import Row
from ledger.core.books import GENESIS_HASH, Posting, canonical_text, chain


class Event(msgspec.Struct, frozen=True):
    """An entry as the journal has it, with its postings."""

    sequence: int
    kind: str
    job: int | None
    at: datetime
    postings: tuple[Posting, ...]


class Chain:
    """The chain of one account, checked from its first entry to its last.

    After an entry that is wrong it goes on from what is stored, so that each fault is named once, and the
    first of them first. Where an entry is missing its successor's hash cannot be judged.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._sequence = 0
        self._head: str | None = GENESIS_HASH
        self._orphan = 0

    @property
    def head(self) -> tuple[int, str | None]:
        """Return the number and the hash of the last entry that was read."""
        return self._sequence, self._head

    def events(self, entries: list[Row], postings: list[Row]) -> Iterator[Event]:
        """Give each entry with its postings, having checked both; `postings` go as far as the last entry."""
        position, end = 0, len(postings)
        for account, sequence, kind, job, at, count, stored in entries:
            while position < end and postings[position][1] < sequence:
                self._orphaned(postings[position])
                position += 1
            own = []
            while position < end and postings[position][1] == sequence:
                _, _, debit, credit, credits, operation, quantity = postings[position]
                own.append(Posting(debit, credit, credits, operation, quantity))
                position += 1
            event = Event(sequence, kind, job, at, tuple(own))
            self._check(account, event, count, stored.hex())
            yield event
        self.leftover(postings[position:])

    def leftover(self, postings: list[Row]) -> None:
        """Note postings that no entry is left for."""
        for posting in postings:
            self._orphaned(posting)

    def end(self, sequence: int, head: str) -> None:
        """Compare the end of the chain with the number and the hash of the last entry that was written."""
        if sequence > self._sequence:
            self._findings.note(
                "A5",
                f"the journal ends before its last entry: {_numbers(self._sequence + 1, sequence)} missing",
                sequence,
                self._sequence,
                sequence=self._sequence + 1,
            )
        elif sequence < self._sequence:
            self._findings.note(
                "A5",
                f"the journal goes on past its end: {_numbers(sequence + 1, self._sequence)} too many",
                sequence,
                self._sequence,
                sequence=sequence + 1,
            )
        elif self._head is not None and head != self._head:
            self._findings.note(
                "A5",
                "balances.head is not the hash of the last entry",
                self._head,
                head,
                sequence=sequence or None,
            )

    def _check(self, account: int, event: Event, count: int, stored: str) -> None:
        sequence, postings = event.sequence, event.postings
        if sequence != self._sequence + 1:
            self._missing(sequence)
        if len(postings) != count or not postings:
            self._findings.note("A1", "the number of the entry's postings", count, len(postings), sequence=sequence)
        for posting in postings:
            if posting.credits <= 0 or posting.debit == posting.credit:
                self._unbalanced(sequence, posting)
        if self._head is not None:
            text = canonical_text(account, sequence, event.kind, event.job, event.at, postings)
            expected = chain(self._head, text)
            if expected != stored:
                self._findings.note(
                    "A5",
                    "the entry is not what was written here: it, its place or its hash was changed",
                    expected,
                    stored,
                    sequence=sequence,
                )
        self._sequence, self._head = sequence, stored

    def _missing(self, sequence: int) -> None:
        first, last = self._sequence + 1, sequence - 1
        self._findings.note(
            "A5",
            f"{_numbers(first, last)} missing",
            first,
            sequence,
            sequence=first,
        )
        self._head = None

    def _unbalanced(self, sequence: int, posting: Posting) -> None:
        self._findings.note(
            "A1",
            "a posting moves a positive amount from one account of the books to another",
            None,
            f"{posting.credits} from {posting.debit} to {posting.credit}",
            sequence=sequence,
        )

    def _orphaned(self, posting: Row) -> None:
        sequence = posting[1]
        if sequence != self._orphan:
            self._orphan = sequence
            self._findings.note("A1", "postings without an entry", None, sequence, sequence=sequence)


def _numbers(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"
