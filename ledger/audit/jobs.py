"""Jobs, from reservation to last refund: what the journal says of each against what its row says (A3)."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from ledger.audit.figures import OVERAGE, OVERDRAFT, Figures, Movement, Part
from ledger.audit.findings import Place
from ledger.audit.reading import Row

CLOSED_BY: Final = {"settle": "settled", "release": "released", "expire": "expired"}
OPENED_COLUMNS: Final = ("jobs.period", "jobs.held_credits", "jobs.held_overage", "jobs.created_at")
CLOSED_COLUMNS: Final = (
    "jobs.status",
    "jobs.closed_entry",
    "jobs.closed_at",
    "jobs.charged",
    "jobs.returned",
    "jobs.over_hold",
    "jobs.charged_overage",
    "jobs.charged_overdraft",
)
REFUND_COLUMNS: Final = ("refunds.job", "refunds.credits", "refunds.to_overage", "refunds.created_at")

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_decode_sources = msgspec.json.Decoder(tuple[Part, ...])
_decode_segments = msgspec.json.Decoder(list[tuple[str, int, int]])


class Hold:
    """What an open job holds, source by source in the order taken, and the job's row where it is still there."""

    __slots__ = ("credits", "environment", "month", "number", "parts", "quota", "row")

    def __init__(self, number: int, month: str, parts: tuple[Part, ...], row: Row | None, figures: Figures) -> None:
        self.number = number
        self.month = month
        self.parts = parts
        self.row = row
        self.environment: str | None = None if row is None else row["environment"]
        self.quota = figures.quotas[month, self.environment]
        self.credits = 0

    @property
    def place(self) -> Place:
        """Where in the journal it was reserved, and the job's name or else its number."""
        return {"sequence": self.number, "job": self.number if self.row is None else self.row["job_id"]}


class Charge:
    """What was charged for a job of whose refunds, by its row, some are still to come in the journal."""

    __slots__ = ("left", "refunded", "row")

    def __init__(self, row: Row, left: dict[str, int]) -> None:
        self.row = row
        self.left = left
        """By operation."""
        self.refunded = 0


class Jobs:
    """The jobs of one account, as far as its journal has been read."""

    def __init__(self, figures: Figures) -> None:
        self.open: dict[int, Hold] = {}
        self.overdraft = 0
        """What the rows of the jobs say that nobody has paid yet."""
        self._figures = figures
        self._findings = figures.findings
        self._rows: dict[int, Row] = {}
        self._refund_rows: dict[int, Row] = {}
        self._charges: dict[int, Charge] = {}
        self._strays: dict[int, tuple[Row | None, int]] = {}
        """Refunds of jobs whose rows show no more of them: the refund's row, and the credits."""

    def expect(self, jobs: list[Row], refunds: list[Row]) -> None:
        """Take the rows that the entries to come have put."""
        self._rows.update((row[1], row) for row in jobs)
        self._refund_rows.update((row[1], row) for row in refunds)

    def note_rows_without_entries(self) -> None:
        """Note rows that no entry has put, once the entries that could have are read."""
        for row in self._rows.values():
            self._findings.note("A3", "jobs: no entry reserves it", None, row["status"], job=row["job_id"])
        for row in self._refund_rows.values():
            self._findings.note("A3", "refunds: no entry makes it", None, row["credits"], job=row["job_id"])
        self._rows.clear()
        self._refund_rows.clear()

    def end(self) -> None:
        """Note jobs whose rows show other refunds than the journal, once it is read."""
        for charge in self._charges.values():
            row = charge.row
            self._findings.note("A3", "jobs.refunded", charge.refunded, row["refunded"], job=row["job_id"])
        for number, (refund, credits) in self._strays.items():
            found = None if refund is None else refund["refunded"]
            name = number if refund is None or refund["job_id"] is None else refund["job_id"]
            self._findings.note("A3", "jobs.refunded", (found or 0) + credits, found, job=name)

    # -- reserving -----------------------------------------------------------------------------------------

    def reserved(self, movement: Movement) -> None:
        """Open a job: what it holds counts in the month it is reserved in (J14)."""
        event, month, figures = movement.event, movement.month, self._figures
        row = self._rows.pop(event.sequence, None)
        hold = self.open[event.sequence] = Hold(event.sequence, month, movement.held, row, figures)
        overage = 0
        for source, credits in movement.held:
            hold.credits += credits
            if source == OVERAGE:
                overage += credits
            else:
                figures.held[source] += credits
        if overage:
            figures.overage_held[month] += overage
        hold.quota.held += hold.credits
        if row is not None:
            self._compare_opened(hold, row, (month, hold.credits, overage, event.at))
        elif not figures.deleted:
            self._findings.note("A3", "jobs: its row is missing", hold.credits, None, **hold.place)

    def _compare_opened(self, hold: Hold, row: Row, expected: tuple[object, ...]) -> None:
        if expected != (found := row[7:11]):
            self._findings.compare("A3", OPENED_COLUMNS, expected, found, **hold.place)
        sources = row["sources"]
        if sources != _encode(hold.parts).decode() and _decoded(_decode_sources, sources) != hold.parts:
            self._findings.note("A3", "jobs.sources", str(hold.parts), sources, **hold.place)

    # -- closing -------------------------------------------------------------------------------------------

    def closed(self, movement: Movement) -> None:
        """End a job: its hold is gone whole, and what it was charged counts."""
        event = movement.event
        hold = None if event.job is None else self.open.pop(event.job, None)
        if hold is None:
            what = f"a {event.kind} of a job that is not open"
            self._findings.note("A3", what, None, event.job, sequence=event.sequence, job=event.job)
            return
        paid = self._end_hold(hold, movement)
        charged = self._count(hold, movement)
        if hold.row is not None:
            self._compare_closed(hold.row, movement, charged, paid)

    def _end_hold(self, hold: Hold, movement: Movement) -> dict[int, int]:
        """Take a hold out of the figures, and return what each source paid of the charge (F3)."""
        figures = self._figures
        paid: dict[int, int] = {}
        for source, credits in hold.parts:
            paid[source] = paid.get(source, 0) + credits
            if source == OVERAGE:
                figures.overage_held[hold.month] -= credits
            else:
                figures.held[source] -= credits
        hold.quota.held -= hold.credits
        left = hold.credits - movement.from_hold
        for source, credits in movement.returned:
            left -= credits
            paid[source] = paid.get(source, 0) - credits
        if left:
            place: Place = {**hold.place, "sequence": movement.event.sequence}
            self._findings.note("A3", "what a closed job holds", 0, left, **place)
        if movement.returned and min(paid.values(), default=0) < 0:
            place = {**hold.place, "sequence": movement.event.sequence}
            what = "a hold gives back what it did not take"
            self._findings.note("A3", what, str(hold.parts), str(movement.returned), **place)
        for source, credits in movement.direct:
            paid[source] = paid.get(source, 0) + credits
        return paid

    def _count(self, hold: Hold, movement: Movement) -> int:
        """Count a charge in the month of its job (J14) and in its operations' usage (A4); return it."""
        if not movement.consumed:
            return 0
        charged = 0
        seen: list[str] = []
        day = movement.event.at.date()
        for operation, credits, quantity in movement.consumed:
            charged += credits
            usage = self._figures.usage[hold.month, day, hold.environment, operation]
            usage.credits += credits
            usage.quantity += quantity
            if operation not in seen:
                usage.jobs += 1
                usage.first_jobs += not seen
                seen.append(operation)
        hold.quota.used += charged
        self._figures.months[hold.month]["charged"] += charged
        return charged

    def _compare_closed(self, row: Row, movement: Movement, charged: int, paid: dict[int, int]) -> None:
        event = movement.event
        expected = (
            CLOSED_BY[event.kind],
            event.sequence,
            event.at,
            charged,
            sum(credits for _, credits in movement.returned),
            charged - movement.from_hold,
            paid.get(OVERAGE, 0),
            paid.get(OVERDRAFT, 0),
        )
        place: Place = {"sequence": event.sequence, "job": row["job_id"]}
        if expected != (found := row[11:19]):
            self._findings.compare("A3", CLOSED_COLUMNS, expected, found, **place)
        if event.kind == "expire" and event.at != row["expires_at"]:
            self._findings.note("A3", "jobs.expires_at", event.at, row["expires_at"], **place)
        self.overdraft += row["overdraft"]
        if not row["refunded"] and _as_first_written(row, movement, paid):
            return
        left: dict[str, int] = {}
        for operation, credits, _ in movement.consumed:
            left[operation] = left.get(operation, 0) + credits
        if not row["refunded"]:
            self._compare_segments(row, left, None if paid.get(OVERDRAFT) else paid)
            return
        self._charges[row["number"]] = Charge(row, left)
        if row["refunded"] > charged:
            self._findings.note("A3", "jobs.refunded, more than charged", charged, row["refunded"], **place)

    def _compare_segments(self, row: Row, left: dict[str, int], paid: dict[int, int] | None) -> None:
        """Compare what can still be refunded: by operation; and by source, where none can have changed since."""
        operations: dict[str, int] = {}
        sources: dict[int, int] = {}
        for operation, source, credits in _decoded(_decode_segments, row["segments"]) or ():
            operations[operation] = operations.get(operation, 0) + credits
            sources[source] = sources.get(source, 0) + credits
        for what, expected, found in (
            ("jobs.segments, by operation", _without_zeros(left), operations),
            ("jobs.segments, by source", sources if paid is None else _without_zeros(paid), sources),
            ("jobs.overdraft", sources.get(OVERDRAFT, 0), row["overdraft"]),
        ):
            if expected != found:
                self._findings.note("A3", what, _text(expected), _text(found), job=row["job_id"])

    # -- refunding -----------------------------------------------------------------------------------------

    def refunded(self, movement: Movement) -> None:
        """Count a refund in the month it is made in (J14), and compare its row and its job's."""
        event, figures = movement.event, self._figures
        row = self._refund_rows.pop(event.sequence, None)
        charge = None if event.job is None else self._charges.get(event.job)
        known = row if charge is None else charge.row
        environment = None if known is None else known["environment"]
        credits = 0
        for operation, part in movement.refunded:
            credits += part
            figures.usage[movement.month, event.at.date(), environment, operation].refunded += part
        month = figures.months[movement.month]
        month["refunded"] += credits
        month["refunded_to_balance"] += credits - movement.to_overage
        if row is not None:
            self._compare_refund(movement, row, credits)
        elif not figures.deleted:
            place: Place = {"sequence": event.sequence, "job": event.job}
            self._findings.note("A3", "refunds: its row is missing", credits, None, **place)
        if charge is not None:
            self._take_back(charge, row, movement, credits)
        elif event.job is not None and not figures.deleted:
            before = self._strays.get(event.job, (None, 0))[1]
            self._strays[event.job] = (row, before + credits)

    def _compare_refund(self, movement: Movement, row: Row, credits: int) -> None:
        event = movement.event
        expected = (event.job, credits, movement.to_overage, event.at)
        place: Place = {"sequence": event.sequence, "job": row["job_id"] or row["job"]}
        self._findings.compare("A3", REFUND_COLUMNS, expected, row[3:7], **place)

    def _take_back(self, charge: Charge, row: Row | None, movement: Movement, credits: int) -> None:
        """Take a refund out of its charge, which is done with once the refunds of the job's row are there."""
        charge.refunded += credits
        for operation, part in movement.refunded:
            charge.left[operation] = charge.left.get(operation, 0) - part
        place: Place = {"sequence": movement.event.sequence, "job": charge.row["job_id"]}
        if min(charge.left.values(), default=0) < 0:
            self._findings.note("A3", "more is refunded than was charged", None, _text(charge.left), **place)
        if row is not None and row["credits_refunded"] != charge.refunded:
            found = row["credits_refunded"]
            self._findings.note("A3", "refunds.credits_refunded", charge.refunded, found, **place)
        if charge.refunded == charge.row["refunded"]:
            self._compare_segments(charge.row, charge.left, None)
            del self._charges[charge.row["number"]]


def _as_first_written(row: Row, movement: Movement, paid: dict[int, int]) -> bool:
    """Whether a job of one line at most has the very segments that its settlement wrote: most have, and it is quick."""
    if len(movement.consumed) > 1 or row["overdraft"] != paid.get(OVERDRAFT, 0):
        return False
    operation = movement.consumed[0][0] if movement.consumed else ""
    segments = [(operation, source, credits) for source, credits in paid.items() if credits]
    written: str = row["segments"]
    return written == _encode(segments).decode()


def _without_zeros(figures: dict[T, int]) -> dict[T, int]:
    return {key: credits for key, credits in figures.items() if credits}


def _text(value: object) -> object:
    return value if isinstance(value, int) else str(value)


def _decoded(decoder: msgspec.json.Decoder[T], text: str | None) -> T | None:
    """Decode what a row keeps as JSON; what is no such thing is nothing."""
    try:
        return None if text is None else decoder.decode(text)
    except msgspec.DecodeError:
        return None
