"""Refunding: giving back a settled charge, to the sources it came from, in reverse order (contract J13)."""

from __future__ import annotations

import hashlib
from datetime import datetime

from ledger.core import books, funding
from ledger.core.account import (
    FROM_OVERAGE,
    FROM_OVERDRAFT,
    Account,
    Grant,
    Job,
    Segment,
    StoredRefund,
    UsageKey,
)
from ledger.core.books import Posting
from ledger.core.closing import already_closed, job_not_found
from ledger.core.commands import ChargeFunding, Code, Outcome, Refund, RefundDone, Refunded, Refused
from ledger.core.periods import period_of
from ledger.core.reserving import in_flight, job_not_completed
from pricing.catalog import Catalog

REFUND_GRANT_PREFIX = "refund-"


def refund(account: Account, command: Refund, now: datetime, catalog: Catalog) -> Outcome:
    """Give back `credits` of a job's charge, or all that is left of it; never more than was charged."""
    job = account.jobs.get(command.job_id)
    if job is None:
        return job_not_found(command.job_id)
    made = account.refunds.get(command.refund_id)
    if made is not None:
        return _made_before(job, command, made)
    if job.open:
        return in_flight(job, now)
    if job.status == "released":
        return already_closed(job)
    if job.status == "expired":
        return job_not_completed(job)
    assert job.closing is not None
    left = job.closing.charged - job.refunded
    credits = left if command.credits is None else command.credits
    if credits < 1 or credits > left:
        return Refused(
            Code.VALIDATION_ERROR,
            f"credits: {left} credits of the charge are left to refund",
            {"credits_charged": job.closing.charged, "refundable_credits": left},
        )
    return Refunded(_refund(account, command, job, credits, now, catalog), created=True)


def _made_before(job: Job, command: Refund, made: StoredRefund) -> Outcome:
    """Answer a repeated refund; `null` and the number that all that was left came to are the same refund."""
    took_all = job.closing is not None and made.done.credits_refunded == job.closing.charged
    same = took_all if command.credits is None else command.credits == made.done.credits
    if same and made.number == job.number:
        return Refunded(made.done, created=False)
    return Refused(Code.IDEMPOTENCY_KEY_REUSED, "this refund_id was used for another refund")


def _refund(account: Account, command: Refund, job: Job, credits: int, now: datetime, catalog: Catalog) -> RefundDone:
    """Write the refund down: from here on nothing can fail."""
    job.segments, taken = funding.take_back(job.segments, credits)
    job.refunded += credits
    if not job.overdraft:
        account.debts.pop(job.number, None)
    account.changes.jobs_resegmented[job.number] = job
    postings, went = _return_segments(account, command, job, taken, now)
    entry = account.enter("refund", now, postings + funding.cover_overdraft(account), job.number)
    done = RefundDone(
        refund_id=command.refund_id,
        job_id=job.job_id,
        credits=credits,
        credits_refunded=job.refunded,
        funding=went,
        created_at=now,
    )
    stored = StoredRefund(number=job.number, entry=entry.sequence, done=done, reason=command.reason)
    account.refunds[command.refund_id] = stored
    account.changes.refunds.append(stored)
    _count(account, job, taken, went, now, catalog)
    return done


def _return_segments(
    account: Account, command: Refund, job: Job, taken: list[Segment], now: datetime
) -> tuple[list[Posting], ChargeFunding]:
    """Put each part back where it came from; what cannot go back becomes one adjustment grant without end."""
    postings: list[Posting] = []
    to_overage = to_overdraft = 0
    homeless: Grant | None = None
    for part in taken:
        consumed = books.consumed_account(part.operation)
        if part.source == FROM_OVERDRAFT:
            account.overdraft -= part.credits
            to_overdraft += part.credits
            target = books.OVERDRAFT
        elif part.source == FROM_OVERAGE and job.period == period_of(now):
            account.period(job.period).overage_used -= part.credits
            to_overage += part.credits
            target = books.overage_account(job.period)
        else:
            grant = account.grants.get(part.source)
            if grant is None or grant.ended(now):
                grant = homeless = homeless or _refund_grant(account, command, now)
                grant.granted += part.credits
            account.touch_grant(grant.number).remaining += part.credits
            account.available += part.credits
            target = books.grant_account(grant.number)
        postings.append(Posting(consumed, target, part.credits, part.operation))
    to_balance = sum(part.credits for part in taken) - to_overage - to_overdraft
    return postings, ChargeFunding(to_balance, to_overage, to_overdraft)


def _refund_grant(account: Account, command: Refund, now: datetime) -> Grant:
    grant = Grant(
        number=account.next_sequence,
        grant_id=REFUND_GRANT_PREFIX + command.refund_id,
        kind="adjustment",
        granted=0,
        remaining=0,
        held=0,
        expires_at=None,
        reference=None,
        created_at=now,
        request=hashlib.sha256(command.refund_id.encode()).digest()[:16],
    )
    account.add_grant(grant)
    return grant


def _count(
    account: Account, job: Job, taken: list[Segment], went: ChargeFunding, now: datetime, catalog: Catalog
) -> None:
    """Count a refund in the month it is made in (J14); quotas get nothing back (J13)."""
    period = period_of(now)
    month = account.period(period)
    month.refunded += went.balance + went.overage + went.overdraft
    month.refunded_to_balance += went.balance + went.overdraft
    version = catalog.version(job.price_version)
    for part in taken:
        key = UsageKey(period, now.date().isoformat(), job.environment, part.operation)
        account.count_usage(key, version.price(part.operation).unit).refunded += part.credits
