"""Closing a job: settling what was consumed, or releasing the hold (contract J3, J4, J6, J12, P4-P7)."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from ledger.core import funding
from ledger.core.account import (
    Account,
    Closing,
    Job,
    UsageKey,
)
from ledger.core.commands import (
    MAX_CREDITS,
    Code,
    Line,
    Outcome,
    Record,
    Refused,
    Release,
    Released,
    Settle,
    Settled,
    SettledLine,
    Usage,
)
from ledger.core.reserving import closed_details, fraction_refused, job_not_completed, not_priced
from pricing.catalog import Catalog, OperationNotPriced
from pricing.rating import RatedLine, rate_lines

# -- settling ------------------------------------------------------------------------------------------------------


def settle(account: Account | None, command: Settle, now: datetime, catalog: Catalog) -> Outcome:
    """Bill a job's lines at the prices it was reserved under (P9), and return the rest of its hold (J3).

    Never fails for want of funds (J12).
    """
    job = account.jobs.get(command.job_id) if account else None
    version = catalog.version(job.price_version) if job else catalog.at(now)
    if version and (refusal := fraction_refused(version, command.lines)):
        return refusal
    if account is None or job is None or version is None:
        return job_not_found(command.job_id)
    request = lines_fingerprint(command.lines)
    if not job.open:
        return _settled_before(job, request, now)
    try:
        rated = rate_lines(version, [(line.operation, line.quantity) for line in command.lines])
    except OperationNotPriced as error:
        return not_priced(error.operation)
    if sum(line.credits for line in rated) + account.overdraft >= MAX_CREDITS:
        return Refused(Code.VALIDATION_ERROR, "lines: the credits of one account stay below 2^53")
    _settle(account, command, job, rated, request, now)
    return settlement_of(job, now)


def settlement_of(job: Job, now: datetime) -> Settled:
    """Return the answer to a job's settlement: as first given, less the breakdown once its 24 hours are over."""
    assert job.closing is not None
    lines = job.settled_lines if job.kept(now) else None
    return Settled(
        job_id=job.job_id,
        status=job.status,
        usage=usage_of(job.operation, job.lines[0].unit, lines),
        lines=lines,
        credits_charged=job.closing.charged,
        credits_returned=job.closing.returned,
        credits_over_hold=job.closing.over_hold,
        funding=job.closing.funding,
        settled_at=job.closing.at,
    )


def usage_of(operation: str, unit: str, lines: tuple[SettledLine, ...] | None) -> Usage | None:
    """Add up a job's own operation over its settled lines (P3); None where the breakdown is gone."""
    if lines is None:
        return None
    own = [line for line in lines if line.operation == operation]
    return Usage(operation, unit, sum(line.quantity for line in own), sum(line.credits for line in own))


def lines_fingerprint(lines: tuple[Line, ...]) -> bytes:
    """Return what makes two settlements of a job the same. It is kept: its parts are written out."""
    parts = [(line.operation, line.quantity) for line in lines]
    return hashlib.sha256(msgspec.json.encode(parts)).digest()[:16]


def job_not_found(job_id: str) -> Refused:
    """Refuse what names a job that the account does not have (J11)."""
    return Refused(Code.RESOURCE_NOT_FOUND, f"job {job_id} does not exist")


def _settled_before(job: Job, request: bytes, now: datetime) -> Outcome:
    if job.status == "expired":
        return job_not_completed(job)
    if job.status == "released":
        return already_closed(job)
    if job.closing and job.closing.request != request:
        return Refused(Code.IDEMPOTENCY_KEY_REUSED, "the job was settled with other lines", closed_details(job))
    return settlement_of(job, now)


def already_closed(job: Job) -> Refused:
    """Refuse to close a job in a second way."""
    return Refused(Code.JOB_ALREADY_CLOSED, f"the job is already {job.status}", closed_details(job))


def _settle(
    account: Account, command: Settle, job: Job, rated: tuple[RatedLine, ...], request: bytes, now: datetime
) -> None:
    """Write the settlement down: from here on nothing can fail."""
    charged = sum(line.credits for line in rated)
    charge = funding.charge(account, job, rated)
    returned = sum(credits for _, credits in charge.leftover)
    job.segments = tuple(charge.segments)
    postings = charge.postings + funding.give_back(account, job, charge.leftover, now)
    entry = account.enter("settle", now, postings, job.number)
    job.settled_lines = tuple(
        SettledLine(line.operation, line.unit, line.measured, line.quantity, line.credits) for line in rated
    )
    closing = Closing(
        entry=entry.sequence,
        at=now,
        charged=charged,
        returned=returned,
        over_hold=charged - (job.held_credits - returned),
        funding=funding.charge_funding(charge.segments),
        request=request,
        result_stored=command.result is not None,
        result=command.result,
        record=command.record or Record(),
    )
    if job.overdraft:
        account.debts[job.number] = job
    account.close_job(job, "settled", closing)
    _count(account, job, rated, charged, now)


def _count(account: Account, job: Job, rated: tuple[RatedLine, ...], charged: int, now: datetime) -> None:
    """Count a charge in its job's month (J14) and in the usage of its operations (A4)."""
    month = account.period(job.period)
    month.add_held(job.environment, -job.held_credits)
    month.add_used(job.environment, charged)
    month.charged += charged
    day = now.date().isoformat()
    seen: set[str] = set()
    for line in rated:
        if not line.credits:
            continue
        count = account.count_usage(UsageKey(job.period, day, job.environment, line.operation), line.unit)
        count.quantity += line.quantity
        count.credits += line.credits
        count.first_jobs += not seen
        count.jobs += line.operation not in seen
        seen.add(line.operation)


# -- releasing -----------------------------------------------------------------------------------------------------


def release(account: Account, command: Release, now: datetime) -> Outcome:
    """Give a job's hold back whole, because nothing was delivered (J4)."""
    job = account.jobs.get(command.job_id)
    if job is None:
        return job_not_found(command.job_id)
    if job.status == "settled":
        return already_closed(job)
    if job.status == "expired":
        return job_not_completed(job)
    if job.open:
        _release(account, command, job, now)
    return _release_of(job)


def _release_of(job: Job) -> Released:
    assert job.closing is not None
    return Released(
        job_id=job.job_id,
        status=job.status,
        credits_charged=0,
        credits_returned=job.closing.returned,
        error_code=job.closing.error_code,
        released_at=job.closing.at,
    )


def _release(account: Account, command: Release, job: Job, now: datetime) -> None:
    postings = funding.give_back(account, job, job.sources, now)
    entry = account.enter("release", now, postings, job.number)
    account.period(job.period).add_held(job.environment, -job.held_credits)
    closing = Closing(
        entry=entry.sequence,
        at=now,
        charged=0,
        returned=job.held_credits,
        error_code=command.error_code,
        record=command.record or Record(),
    )
    account.close_job(job, "released", closing)
    if not command.originated:
        account.free_key(job)
