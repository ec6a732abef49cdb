"""What batches came to, as metrics: counted from what was committed, so that a batch that is run again counts once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, get_args

from prometheus_client import Counter

from ledger import metrics, store, tracing
from ledger.core import books
from ledger.core.account import Account, EventType, Job
from ledger.core.commands import (
    ENVIRONMENTS,
    Command,
    Outcome,
    Refund,
    Refused,
    Release,
    Replayed,
    Reserve,
    Reserved,
    Settle,
)
from pricing.catalog import Catalog

OTHER: Final = "other"
"""The label of an operation that the catalog lacks: whoever calls cannot make new series."""

NO_JOB: Final = "none"
"""The label of a refusal that is about no known job."""

_STEPS: Final = {
    step: metrics.STEP_SECONDS.labels(step) for step in ("connect", "lock", "prefetch", "decide", "write", "commit")
}

Outcomes = Sequence[Outcome | None]
Series = tuple[Counter, tuple[str, ...]]
Tally = defaultdict[Series, int]
"""What to add to which counter, so that a batch adds to each but once."""


class Laps:
    """Where the time of a batch goes, step after step."""

    __slots__ = ("begun", "last")

    def __init__(self) -> None:
        self.begun = self.last = time.perf_counter()

    def lap(self, step: str, until: float | None = None) -> None:
        """End a step: now, or at an instant of `time.perf_counter` that was noted before."""
        until = time.perf_counter() if until is None else until
        _STEPS[step].observe(until - self.last)
        tracing.step(step, self.last, until)
        self.last = until
        if step == "commit":
            metrics.BATCH_SECONDS.observe(until - self.begun)


class Measures:
    """Turns committed batches into counters. Every series of the catalog's operations is there from the start, at 0."""

    def __init__(self, catalog: Catalog) -> None:
        self._operations = frozenset(name for version in catalog.versions for name in version.prices)
        for operation in (*self._operations, OTHER):
            _prepare(operation)
        _prepare_the_rest()

    def committed(self, batch: store.Batch, commands: Sequence[Command], outcomes: Outcomes) -> None:
        """Count a batch that is committed: what came of its commands, and what changed in its accounts."""
        metrics.BATCH_COMMANDS.observe(len(commands))
        tally: Tally = defaultdict(int)
        for command, outcome in zip(commands, outcomes, strict=True):
            self._count_outcome(tally, batch, command, outcome)
        for account in batch.accounts.values():
            self._count_jobs(tally, account)
            self._count_usage(tally, account)
            _count_postings(tally, account)
            for event in account.changes.events:
                tally[metrics.EVENTS, (event.type,)] += 1
        for (counter, labels), amount in tally.items():
            (counter.labels(*labels) if labels else counter).inc(amount)

    def _operation(self, name: str) -> str:
        return name if name in self._operations else OTHER

    # -- commands ------------------------------------------------------------------------------------------------

    def _count_outcome(self, tally: Tally, batch: store.Batch, command: Command, outcome: Outcome | None) -> None:
        kind = type(command).__name__.lower()
        tally[metrics.COMMANDS, (kind, _came_to(outcome))] += 1
        if isinstance(command, Reserve) and outcome is not None:
            labels = (self._operation(command.lines[0].operation), command.environment, _reservation(outcome))
            tally[metrics.RESERVATIONS, labels] += 1
        if isinstance(outcome, Refused):
            tally[metrics.REFUSALS, (kind, self._refused_operation(batch, command), outcome.code.value)] += 1

    def _refused_operation(self, batch: store.Batch, command: Command) -> str:
        if isinstance(command, Reserve):
            return self._operation(command.lines[0].operation)
        if isinstance(command, Settle | Release | Refund):
            account = batch.accounts.get(command.account_id)
            job = account.jobs.get(command.job_id) if account else None
            if job is not None:
                return self._operation(job.operation)
        return NO_JOB

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _count_jobs(self, tally: Tally, account: Account) -> None:
        for job in account.changes.jobs_opened.values():
            labels = (self._operation(job.operation), job.environment)
            tally[metrics.CREDITS_HELD, (*labels, "balance")] += job.funding.balance
            tally[metrics.CREDITS_HELD, (*labels, "overage")] += job.funding.overage
        for job in account.changes.jobs_closed.values():
            self._count_closed(tally, account, job)
        for refund in account.changes.refunds:
            refunded = account.jobs[refund.done.job_id]
            tally[metrics.REFUNDS, (self._operation(refunded.operation), refunded.environment)] += 1

    def _count_closed(self, tally: Tally, account: Account, job: Job) -> None:
        closing = job.closing
        assert closing is not None
        labels = (self._operation(job.operation), job.environment)
        tally[metrics.CREDITS_RETURNED, (*labels, job.status)] += closing.returned
        if job.status == "released":
            tally[metrics.RELEASES, labels] += 1
        elif job.status == "expired":
            tally[metrics.EXPIRATIONS, labels] += 1
        else:
            tally[metrics.SETTLEMENTS, (*labels, "over_hold" if closing.over_hold else "within_hold")] += 1
            tally[metrics.CREDITS_OVER_HOLD, labels] += closing.over_hold
            tally[metrics.SETTLED_HOLD_CREDITS, labels] += job.held_credits
            tally[metrics.SETTLED_CHARGE_CREDITS, labels] += closing.charged
            tally[metrics.CREDITS_FUNDED, ("balance",)] += closing.funding.balance
            tally[metrics.CREDITS_FUNDED, ("overage",)] += closing.funding.overage
            tally[metrics.CREDITS_FUNDED, ("overdraft",)] += closing.funding.overdraft
            if closing.funding.overage:
                price = account.peek(job.period).overage_price or 0
                metrics.OVERAGE_USD.inc(closing.funding.overage * price / 1_000_000)

    def _count_usage(self, tally: Tally, account: Account) -> None:
        for key, count in account.changes.usage.items():
            labels = (self._operation(key.operation), key.environment)
            tally[metrics.CREDITS_CHARGED, labels] += count.credits
            tally[metrics.CREDITS_REFUNDED, labels] += count.refunded


def _count_postings(tally: Tally, account: Account) -> None:
    """Count what came in, what went, what ended, and what paid an overdraft: movements that are about no operation."""
    for entry in account.changes.entries:
        if entry.kind == "grant":
            first = entry.postings[0]
            kind = _end_of(first.debit) if first.debit.startswith(_ISSUED) else "adjustment"
            tally[metrics.GRANTS, (kind,)] += 1
        for posting in entry.postings:
            if posting.debit.startswith(_ISSUED):
                tally[metrics.CREDITS_GRANTED, (_end_of(posting.debit),)] += posting.credits
            elif posting.credit.startswith(_ISSUED):
                tally[metrics.CREDITS_WITHDRAWN, ()] += posting.credits
            elif posting.credit == books.EXPIRED:
                grant = account.grants[int(_end_of(posting.debit))]
                tally[metrics.CREDITS_EXPIRED, (grant.kind,)] += posting.credits
            elif posting.credit == books.OVERDRAFT and posting.debit.startswith(_GRANT):
                tally[metrics.OVERDRAFT_PAID, ()] += posting.credits


_ISSUED: Final = "issued:"
_GRANT: Final = "grant:"


def _end_of(name: str) -> str:
    """Return what stands behind the colon in the name of an account of the books."""
    return name.partition(":")[2]


def _came_to(outcome: Outcome | None) -> str:
    if outcome is None:
        return "put_back"
    return "refused" if isinstance(outcome, Refused) else "done"


def _reservation(outcome: Outcome) -> str:
    match outcome:
        case Reserved(created=False):
            return "repeated"
        case Reserved():
            return "partial" if outcome.reservation.partial else "reserved"
        case Replayed():
            return "replayed"
        case _:
            return "refused"


def _prepare(operation: str) -> None:
    """Begin the series of an operation at 0: `rate` does not see the first step of a series that was not there."""
    for environment in ENVIRONMENTS:
        labels = (operation, environment)
        for counter in _BY_OPERATION:
            counter.labels(*labels)
        for counter, values in _BY_OPERATION_AND.items():
            for value in values:
                counter.labels(*labels, value)


_BY_OPERATION: Final = (
    metrics.RELEASES,
    metrics.EXPIRATIONS,
    metrics.REFUNDS,
    metrics.CREDITS_CHARGED,
    metrics.CREDITS_REFUNDED,
    metrics.CREDITS_OVER_HOLD,
    metrics.SETTLED_HOLD_CREDITS,
    metrics.SETTLED_CHARGE_CREDITS,
)
_BY_OPERATION_AND: Final = {
    metrics.RESERVATIONS: ("reserved", "partial", "repeated", "replayed", "refused"),
    metrics.SETTLEMENTS: ("within_hold", "over_hold"),
    metrics.CREDITS_HELD: ("balance", "overage"),
    metrics.CREDITS_RETURNED: ("settled", "released", "expired"),
}


def _prepare_the_rest() -> None:
    for counter, values in _BY_ONE.items():
        for value in values:
            counter.labels(value)


_GRANT_KINDS: Final = ("plan", "purchase", "welcome", "adjustment")
_BY_ONE: Final = {
    metrics.GRANTS: _GRANT_KINDS,
    metrics.CREDITS_GRANTED: _GRANT_KINDS,
    metrics.CREDITS_EXPIRED: _GRANT_KINDS,
    metrics.CREDITS_FUNDED: ("balance", "overage", "overdraft"),
    metrics.EVENTS: get_args(EventType),
    metrics.BATCH_RETRIES: (
        "deadlock",
        "lock_timeout",
        "serialization",
        "stale_types",
        "no_connection",
        "connection_lost",
        "commit_lost",
    ),
    metrics.BATCH_FAILURES: ("away", "defect"),
}
