"""The core in memory: a `World` of accounts to which commands are given as a batch of one would be.

It stands in for the store: it keeps every account, brings it up to now, lets `decide` judge the command, and collects
what changed. Its verbs read as sentences: `world.reserve(…)` answers with the outcome whatever it is, and
`world.reserves(…)` says that the command must succeed and answers with what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from ledger.core.account import (
    Account,
    Changes,
    Event,
    Job,
    Period,
    Quota,
    StoredRefund,
    UsageCount,
    UsageKey,
)
from ledger.core.books import Entry
from ledger.core.commands import (
    AccountStored,
    BringUp,
    BroughtUp,
    Command,
    CycleDone,
    CycleStored,
    Environment,
    GrantDone,
    Granted,
    GrantKind,
    Line,
    Outcome,
    PatchAccount,
    PolicyChange,
    PutAccount,
    PutCycle,
    PutGrant,
    QuotaChange,
    Record,
    Refund,
    RefundDone,
    Refunded,
    Refused,
    Release,
    Released,
    Reservation,
    Reserve,
    Reserved,
    Settle,
    Settled,
)
from ledger.core.decide import decide
from ledger.core.overage import CycleStatus
from ledger.core.timeline import bring_up_to
from pricing.catalog import Catalog, load
from pricing.rating import Quantity
from tests.support import sums

ACME = "acme"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
CREDIT_PRICE = 1_000
"""0.001 USD in micro-dollars: the 20 USD of the first ceiling make 20,000 credits."""

Lines = Line | Sequence[Line]


def instant(text: str) -> datetime:
    """Read an instant written `2026-11-15T12:00:00Z`, or without its seconds or its time."""
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)


def line(operation: str, quantity: Quantity | None = 1) -> Line:
    """One line of a job."""
    return Line(operation, quantity)


def characters(quantity: int | None) -> Line:
    """Speech of so many characters, which costs as many credits."""
    return Line("tts_synthesis", quantity)


def turn(quantity: int | None = 1) -> Line:
    """A text turn: 11 credits."""
    return Line("agent_turn", quantity)


def call(seconds: Quantity | None) -> Line:
    """A call's part with the agent: 620 credits for each minute begun."""
    return Line("voice_call_minute", seconds)


def bridged(seconds: Quantity | None) -> Line:
    """A call's bridged part: 460 credits for each minute begun."""
    return Line("voice_transfer_minute", seconds)


def as_lines(lines: Lines) -> tuple[Line, ...]:
    """Return one line or several as a command has them."""
    return (lines,) if isinstance(lines, Line) else tuple(lines)


def said(outcome: Outcome) -> str:
    """Say what an outcome is in a word: the code of a refusal, else its name."""
    return str(outcome.code) if isinstance(outcome, Refused) else type(outcome).__name__.lower()


def refused(outcome: Outcome) -> Refused:
    """Return an outcome that must be a refusal."""
    assert isinstance(outcome, Refused), f"not refused: {outcome}"
    return outcome


class _Months(dict[str, Period]):
    """The months of an account, each begun when it is first asked for."""

    def __missing__(self, month: str) -> Period:
        period = self[month] = Period(month)
        return period


class World:
    """Accounts in memory, a clock that is moved by hand, and the journal of all that was entered.

    Everything that a store keeps stays: jobs by id, idempotency keys, refunds, grants that are used up, deadlines of
    calls, unpaid charges. An `audited` world adds its figures up again from its postings after every command.
    """

    def __init__(self, now: datetime = NOON, *, catalog: Catalog | None = None, audited: bool = True) -> None:
        self.now = now
        self.catalog = catalog or load()
        self.audited = audited
        self.accounts: dict[str, Account] = {}
        self.journal: dict[str, list[Entry]] = {}
        self.usage: dict[str, dict[UsageKey, UsageCount]] = {}
        self.closed: dict[str, list[Job]] = {}
        """The jobs that were closed, in that order."""
        self.refunds: dict[str, list[StoredRefund]] = {}
        self.events: list[Event] = []
        self.last = Changes()
        """What the last command changed."""
        self.last_brought_up = BroughtUp()

    # -- the clock, and any command ---------------------------------------------------------------------------------

    def at(self, when: str | datetime) -> None:
        """Move the clock to an instant. Nobody looks at any account meanwhile."""
        self.now = instant(when) if isinstance(when, str) else when

    def wait(self, **duration: float) -> None:
        """Move the clock on by `days`, `hours`, `minutes` or `seconds`."""
        self.now += timedelta(**duration)

    def do(self, command: Command) -> Outcome:
        """Give one command, as a batch of its own."""
        account = self.accounts.get(command.account_id)
        if account is None and isinstance(command, PutAccount):
            account = self._new_account(command.account_id)
        if account is not None:
            account.brought_up = BroughtUp()
            bring_up_to(account, self.now)
        outcome = decide(account, command, self.now, self.catalog)
        if account is not None and not account.is_new:
            self._keep(account)
        return outcome

    def look(self, account_id: str = ACME) -> Account:
        """Bring an account up to now and return it."""
        assert isinstance(self.do(BringUp(account_id=account_id)), BroughtUp)
        return self.accounts[account_id]

    def _new_account(self, account_id: str) -> Account:
        number = len(self.accounts) + 1
        account = Account(number=number, account_id=account_id, created_at=self.now, at=self.now)
        account.is_new = True
        account.periods = _Months()
        account.thresholds = (80, 95)
        return account

    def _keep(self, account: Account) -> None:
        """Do what a store does after a decision, and what it does before the next."""
        name, changes = account.account_id, account.changes
        self.accounts[name] = account
        self.journal.setdefault(name, []).extend(changes.entries)
        self.closed.setdefault(name, []).extend(changes.jobs_closed.values())
        self.refunds.setdefault(name, []).extend(changes.refunds)
        self.events.extend(changes.events)
        totals = self.usage.setdefault(name, {})
        for key, count in changes.usage.items():
            total = totals.setdefault(key, UsageCount(count.unit))
            for field in ("quantity", "credits", "refunded", "jobs", "first_jobs"):
                setattr(total, field, getattr(total, field) + getattr(count, field))
        for number, job in changes.jobs_opened.items():
            if job.open:
                account.due[number] = job
        self.last, account.changes = changes, Changes()
        self.last_brought_up = account.brought_up
        if self.audited:
            self.audit(name)

    def audit(self, account_id: str = ACME) -> None:
        """Fail unless the journal chains and every figure is what the postings add up to (A1 to A6)."""
        sums.check(self.accounts[account_id], self.journal[account_id], self.usage[account_id])

    # -- what tests ask ---------------------------------------------------------------------------------------------

    @property
    def acme(self) -> Account:
        """The account that most tests are about, as it was last left."""
        return self.accounts[ACME]

    def job(self, job_id: str, account_id: str = ACME) -> Job:
        """Return a job as it was last left."""
        return self.accounts[account_id].jobs[job_id]

    def month(self, month: str = "2026-11", account_id: str = ACME) -> Period:
        """Return the figures of a month."""
        return self.accounts[account_id].periods[month]

    def told(self, kind: str) -> list[dict[str, object]]:
        """Return what the events of a type told, in order."""
        return [event.data for event in self.events if event.type == kind]

    def left(self, account_id: str = ACME) -> dict[str, int]:
        """Return what every grant that still has something free has left, by its id."""
        grants = self.accounts[account_id].grants.values()
        return {grant.grant_id: grant.remaining for grant in grants if grant.remaining}

    def paid_by(self, job_id: str, account_id: str = ACME) -> list[tuple[str, int]]:
        """Return who paid what is left of a job's charge, in order: grants by their ids, overage, overdraft."""
        names = {grant.number: grant.grant_id for grant in self.accounts[account_id].grants.values()}
        names |= {0: "overage", -1: "overdraft"}
        return [(names[segment.source], segment.credits) for segment in self.job(job_id, account_id).segments]

    def postings(self, account_id: str = ACME) -> list[tuple[str, str, int]]:
        """Return the movements of the last command: debit, credit, credits."""
        return [(p.debit, p.credit, p.credits) for entry in self.last.entries for p in entry.postings]

    # -- accounts ---------------------------------------------------------------------------------------------------

    def put(self, account_id: str = ACME, **change: Any) -> Outcome:
        """Put an account's policy; `change` has the fields of `PolicyChange`."""
        return self.do(PutAccount(account_id=account_id, change=PolicyChange(**change)))

    def patch(self, account_id: str = ACME, **change: Any) -> Outcome:
        """Patch an account's policy; `change` has the fields of `PolicyChange`."""
        return self.do(PatchAccount(account_id=account_id, change=PolicyChange(**change)))

    def patches(self, account_id: str = ACME, **change: Any) -> None:
        """Patch an account's policy, which must succeed."""
        assert isinstance(self.patch(account_id, **change), AccountStored)

    def open_account(
        self,
        credits: int = 0,
        *,
        overage: int | None = None,
        live: Quota | None = Quota(),  # noqa: B008 - a frozen value
        test: Quota | None = Quota(),  # noqa: B008 - a frozen value
        account_id: str = ACME,
    ) -> Account:
        """Open an account that may work, with exactly `credits` from one purchase (`start`).

        With `overage`, that is its cap in credits, at 0.001 USD each. Overage needs a verified payment method, which
        brings the welcome; an adjustment takes it away again.
        """
        quotas: dict[Environment, Quota | None] = {"live": live, "test": test}
        outcome = self.put(
            account_id,
            module_enabled=True,
            payment_method_verified=overage is not None,
            overage_enabled=overage is not None,
            cap_usd=UNSET if overage is None else overage * CREDIT_PRICE,
            credit_price_usd=CREDIT_PRICE,
            quotas={name: quota and as_change(quota) for name, quota in quotas.items()},
        )
        assert outcome == AccountStored(created=True)
        if overage is not None:
            self.grants("no-welcome", -3_000, kind="adjustment", account_id=account_id)
        if credits:
            self.grants("start", credits, account_id=account_id)
        return self.accounts[account_id]

    def put_cycle(self, month: str, status: CycleStatus, account_id: str = ACME) -> Outcome:
        """Record how a month's invoice was paid."""
        return self.do(PutCycle(account_id=account_id, month=month, status=status))

    def puts_cycle(self, month: str, status: CycleStatus, account_id: str = ACME) -> CycleDone:
        """Record how a month's invoice was paid, which must succeed."""
        outcome = self.put_cycle(month, status, account_id)
        assert isinstance(outcome, CycleStored), outcome
        return outcome.cycle

    def grant(
        self,
        grant_id: str,
        credits: int,
        *,
        kind: GrantKind = "purchase",
        until: str | datetime | None = None,
        reference: str | None = None,
        account_id: str = ACME,
    ) -> Outcome:
        """Grant credits, without end or `until` an instant."""
        return self.do(
            PutGrant(
                account_id=account_id,
                grant_id=grant_id,
                kind=kind,
                credits=credits,
                expires_at=instant(until) if isinstance(until, str) else until,
                reference=reference,
            )
        )

    def grants(
        self,
        grant_id: str,
        credits: int,
        *,
        kind: GrantKind = "purchase",
        until: str | datetime | None = None,
        account_id: str = ACME,
    ) -> GrantDone:
        """Grant credits, which must succeed."""
        outcome = self.grant(grant_id, credits, kind=kind, until=until, account_id=account_id)
        assert isinstance(outcome, Granted), outcome
        return outcome.grant

    # -- jobs -------------------------------------------------------------------------------------------------------

    def reserve(
        self,
        job_id: str,
        lines: Lines,
        *,
        environment: Environment = "live",
        transferable: bool = False,
        allow_partial: bool = False,
        ttl: int = 900,
        key: str | None = None,
        fingerprint: str | None = None,
        metadata: bytes | None = None,
        account_id: str = ACME,
    ) -> Outcome:
        """Reserve a job's credits for `ttl` seconds, under an idempotency `key`."""
        return self.do(
            Reserve(
                account_id=account_id,
                job_id=job_id,
                environment=environment,
                lines=as_lines(lines),
                transferable=transferable,
                allow_partial=allow_partial,
                ttl_seconds=ttl,
                idempotency_key=key,
                fingerprint=fingerprint,
                metadata=metadata,
            )
        )

    def reserves(
        self,
        job_id: str,
        lines: Lines,
        *,
        environment: Environment = "live",
        transferable: bool = False,
        allow_partial: bool = False,
        ttl: int = 900,
        key: str | None = None,
        fingerprint: str | None = None,
        metadata: bytes | None = None,
        account_id: str = ACME,
    ) -> Reservation:
        """Reserve a job's credits, which must succeed and be new."""
        outcome = self.reserve(
            job_id,
            lines,
            environment=environment,
            transferable=transferable,
            allow_partial=allow_partial,
            ttl=ttl,
            key=key,
            fingerprint=fingerprint,
            metadata=metadata,
            account_id=account_id,
        )
        assert isinstance(outcome, Reserved), outcome
        assert outcome.created
        return outcome.reservation

    def settle(
        self,
        job_id: str,
        lines: Lines,
        *,
        result: bytes | None = None,
        record: Record | None = None,
        account_id: str = ACME,
    ) -> Outcome:
        """Settle a job with what it consumed."""
        return self.do(
            Settle(account_id=account_id, job_id=job_id, lines=as_lines(lines), result=result, record=record)
        )

    def settles(self, job_id: str, lines: Lines, *, result: bytes | None = None, account_id: str = ACME) -> Settled:
        """Settle a job, which must succeed."""
        outcome = self.settle(job_id, lines, result=result, account_id=account_id)
        assert isinstance(outcome, Settled), outcome
        return outcome

    def charges(self, job_id: str, lines: Lines, *, account_id: str = ACME) -> Settled:
        """Reserve and settle a job for the same lines."""
        self.reserves(job_id, lines, account_id=account_id)
        return self.settles(job_id, lines, account_id=account_id)

    def release(
        self,
        job_id: str,
        *,
        error_code: str | None = None,
        originated: bool = True,
        record: Record | None = None,
        account_id: str = ACME,
    ) -> Outcome:
        """Release a job's hold."""
        return self.do(
            Release(
                account_id=account_id,
                job_id=job_id,
                error_code=error_code,
                originated=originated,
                record=record,
            )
        )

    def releases(
        self,
        job_id: str,
        *,
        error_code: str | None = None,
        originated: bool = True,
        account_id: str = ACME,
    ) -> Released:
        """Release a job's hold, which must succeed."""
        outcome = self.release(job_id, error_code=error_code, originated=originated, account_id=account_id)
        assert isinstance(outcome, Released), outcome
        return outcome

    def refund(
        self,
        job_id: str,
        credits: int | None = None,
        *,
        refund_id: str = "rf-1",
        reason: str | None = None,
        account_id: str = ACME,
    ) -> Outcome:
        """Refund part of a charge, or all that is left of it."""
        return self.do(
            Refund(account_id=account_id, job_id=job_id, refund_id=refund_id, credits=credits, reason=reason)
        )

    def refunds_job(
        self,
        job_id: str,
        credits: int | None = None,
        *,
        refund_id: str = "rf-1",
        account_id: str = ACME,
    ) -> RefundDone:
        """Refund part of a charge, which must succeed and be new."""
        outcome = self.refund(job_id, credits, refund_id=refund_id, account_id=account_id)
        assert isinstance(outcome, Refunded), outcome
        assert outcome.created
        return outcome.refund


def as_change(quota: Quota) -> QuotaChange:
    """Return the change that sets all three numbers of a quota."""
    return QuotaChange(**msgspec.structs.asdict(quota))
