"""Reserving: hold a job's credits, or say why not, in the order of Q6 (contract J2, J8, J10, P10, Q1-Q6, F6, O5)."""

from __future__ import annotations

import hashlib
import math
from datetime import datetime, timedelta

import msgspec

from ledger.core import books, funding
from ledger.core.account import Account, Job, Quota
from ledger.core.books import Posting
from ledger.core.commands import (
    MAX_CREDITS,
    Code,
    Line,
    Outcome,
    Refused,
    Replayed,
    Reservation,
    Reserve,
    Reserved,
    ReservedLine,
)
from ledger.core.periods import period_end, period_of
from pricing.catalog import CatalogVersion, OperationNotPriced, Slot
from pricing.rating import (
    FractionNotAllowed,
    Quantity,
    RatedHold,
    check_quantity,
    longest_hold,
    rate_hold,
    shortest_hold,
)

CALL_RETRY_SECONDS_MAX = 30


def reserve(account: Account | None, command: Reserve, now: datetime, version: CatalogVersion | None) -> Outcome:
    """Hold the credits of a job for `version`'s prices; `account` is None where there is none (Q6)."""
    if refusal := _shape(command, version):
        return refusal
    if account is not None and (answer := _known(account, command, now)):
        return answer
    rated = _rate(command, version)
    if isinstance(rated, Refused):
        return rated
    full, least, version = rated
    admitted = _admitted(account, command)
    if isinstance(admitted, Refused):
        return admitted
    account, quota = admitted
    slot = version.price(command.lines[0].operation).slot
    refusal = (
        _never_fits(quota, least)
        or _concurrency(account, command, quota, slot, now)
        or _period_quota(account, command, quota, least, now)
        or _funds(account, least, now)
    )
    if refusal:
        return refusal
    granted = _affordable(account, command, quota, full, version, now)
    return Reserved(reservation_of(account, _open(account, command, granted, version, slot, now)), created=True)


def reservation_of(account: Account, job: Job) -> Reservation:
    """Return the answer to a job's reservation, as it was first given."""
    return Reservation(
        job_id=job.job_id,
        account_id=account.account_id,
        environment=job.environment,
        operation=job.operation,
        status=job.status,
        period=job.period,
        price_version=job.price_version,
        lines=job.lines,
        transfer_allowance=job.transfer_allowance,
        held_credits=job.held_credits,
        partial=job.partial,
        funding=job.funding,
        created_at=job.created_at,
        expires_at=job.expires_at,
    )


def closed_details(job: Job) -> dict[str, object]:
    """Return what the conflicts of a closed job tell (J10)."""
    return {
        "job_id": job.job_id,
        "status": job.status,
        "credits_charged": job.closing.charged if job.closing else None,
    }


# -- shape, and what is already known ------------------------------------------------------------------------------


def _shape(command: Reserve, version: CatalogVersion | None) -> Refused | None:
    """Refuse what the catalog shows to be malformed; what it does not price is judged later (Q6)."""
    if version is None:
        return None
    if refusal := fraction_refused(version, command.lines):
        return refusal
    first = version.prices.get(command.lines[0].operation)
    if first is None:
        return None
    if command.allow_partial and first.slot != "call":
        return Refused(Code.VALIDATION_ERROR, f"allow_partial: {first.operation} is no call")
    if command.transferable and first.slot != "call":
        return Refused(Code.VALIDATION_ERROR, f"transferable: {first.operation} is no call")
    return None


def fraction_refused(version: CatalogVersion, lines: tuple[Line, ...]) -> Refused | None:
    """Refuse a fraction of what is not measured in seconds, naming the line."""
    for index, line in enumerate(lines):
        price = version.prices.get(line.operation)
        if price is not None:
            try:
                check_quantity(price, line.quantity)
            except FractionNotAllowed as error:
                return Refused(Code.VALIDATION_ERROR, f"lines[{index}].quantity: {error}")
    return None


def request_fingerprint(command: Reserve) -> bytes:
    """Return what makes two reservations the same request (J10). It is kept: its parts are written out."""
    if command.fingerprint is not None:
        parts: object = (command.environment, command.fingerprint)
    else:
        lines = [(line.operation, line.quantity) for line in command.lines]
        parts = (command.environment, lines, command.transferable, command.allow_partial)
    return hashlib.sha256(msgspec.json.encode(parts)).digest()[:16]


def _known(account: Account, command: Reserve, now: datetime) -> Outcome | None:
    """Answer a request that was seen before, by its job or else by its key (J10)."""
    job = account.jobs.get(command.job_id)
    if job is not None:
        return _known_job(account, command, job, now)
    if command.idempotency_key is not None:
        other = account.keys.get((command.environment, command.idempotency_key))
        if other is not None:
            return _known_key(command, other, now)
    return None


def _known_job(account: Account, command: Reserve, job: Job, now: datetime) -> Outcome:
    if job.request != request_fingerprint(command):
        return _reused(job, "this job_id was used for another request")
    if job.open:
        return Reserved(reservation_of(account, job), created=False)
    return _closed(job, now)


def _known_key(command: Reserve, job: Job, now: datetime) -> Outcome:
    if job.request != request_fingerprint(command):
        return _reused(job, "this idempotency_key was used for another request")
    if job.open:
        return in_flight(job, now)
    return _closed(job, now)


def _reused(job: Job, message: str) -> Refused:
    return Refused(Code.IDEMPOTENCY_KEY_REUSED, message, {} if job.open else closed_details(job))


def in_flight(job: Job, now: datetime) -> Refused:
    """Refuse because a job is still open, until its deadline at the latest."""
    wait = max(1, math.ceil((job.expires_at - now).total_seconds()))
    return Refused(
        Code.REQUEST_IN_FLIGHT,
        "the job is still open",
        {"retry_after": wait},
        retry_after=wait,
    )


def _closed(job: Job, now: datetime) -> Outcome:
    if job.status == "expired":
        return job_not_completed(job)
    if job.status == "settled" and job.closing and not job.closing.result_stored:
        return Refused(Code.RESULT_NOT_REPLAYABLE, "the job keeps no result", closed_details(job))
    if job.status == "settled" and not job.kept(now):
        return Refused(Code.RESULT_NOT_REPLAYABLE, "the result's 24 hours are over", closed_details(job))
    return Replayed(job.job_id)


def job_not_completed(job: Job) -> Refused:
    """Refuse because a job expired (J5, J6)."""
    return Refused(Code.JOB_NOT_COMPLETED, "the job's deadline passed without a close", closed_details(job))


# -- judging -------------------------------------------------------------------------------------------------------


def _plain(lines: tuple[Line, ...]) -> list[tuple[str, Quantity | None]]:
    return [(line.operation, line.quantity) for line in lines]


def _rate(command: Reserve, version: CatalogVersion | None) -> tuple[RatedHold, RatedHold, CatalogVersion] | Refused:
    """Price the whole request and the least of it that would do: one minute of a call that may be partial (J8)."""
    if version is None:
        return not_priced(command.lines[0].operation)
    lines = _plain(command.lines)
    try:
        full = least = rate_hold(version, lines, transferable=command.transferable)
        if command.allow_partial:
            shortest = shortest_hold(version, lines, transferable=command.transferable)
            least = min(full, shortest, key=lambda h: h.credits)
    except OperationNotPriced as error:
        return not_priced(error.operation)
    if full.credits >= MAX_CREDITS:
        return Refused(Code.VALIDATION_ERROR, "lines: the credits of one job stay below 2^53")
    return full, least, version


def not_priced(operation: str) -> Refused:
    """Refuse an operation that the catalog in force lacks (P1)."""
    return Refused(Code.OPERATION_NOT_PRICED, f"operation {operation} has no price", {"operation": operation})


def _not_enabled(why: str) -> Refused:
    return Refused(Code.GATEWAY_NOT_ENABLED, f"the gateway is not enabled: {why}")


def _admitted(account: Account | None, command: Reserve) -> tuple[Account, Quota] | Refused:
    """Return the account and its ceilings in the environment, unless it may not work there (Q1)."""
    if account is None:
        return _not_enabled("the account does not exist")
    if not account.policy.module_enabled:
        return _not_enabled("the account does not have the module")
    if account.policy.suspended:
        return _not_enabled("the account's access is suspended")
    quota = account.policy.quotas.get(command.environment)
    if quota is None:
        return _not_enabled(f"the account has no quota in {command.environment}")
    return account, quota


def _never_fits(quota: Quota, least: RatedHold) -> Refused | None:
    if quota.period_credits is None or least.credits <= quota.period_credits:
        return None
    return Refused(
        Code.REQUEST_EXCEEDS_PERIOD_QUOTA,
        "the request does not fit the period's ceiling even when it is unused",
        {"required_credits": least.credits, "period_credits": quota.period_credits},
    )


def _concurrency(account: Account, command: Reserve, quota: Quota, slot: Slot, now: datetime) -> Refused | None:
    """Refuse when the slots of the environment are taken, whatever month they were taken in (Q4)."""
    ceiling = quota.max_calls if slot == "call" else quota.max_requests
    taken = account.open_slots.get((command.environment, slot), 0)
    if taken < ceiling:
        return None
    if slot == "request":
        code, wait = Code.CONCURRENCY_LIMIT_REACHED, 1
    else:
        code, wait = Code.CALL_CONCURRENCY_LIMIT_REACHED, _first_call_ends(account, command, now)
    details = {"limit": ceiling, "open": taken, "retry_after": wait}
    return Refused(code, f"all {ceiling} simultaneous {slot}s are taken", details, retry_after=wait)


def _first_call_ends(account: Account, command: Reserve, now: datetime) -> int:
    deadlines = account.call_deadlines.get(command.environment)
    if not deadlines:
        return CALL_RETRY_SECONDS_MAX
    wait = math.ceil((min(deadlines.values()) - now).total_seconds())
    return max(1, min(wait, CALL_RETRY_SECONDS_MAX))


def _quota_left(account: Account, command: Reserve, quota: Quota, now: datetime) -> int | None:
    if quota.period_credits is None:
        return None
    month = account.peek(period_of(now))
    return quota.period_credits - month.used(command.environment) - month.held(command.environment)


def _period_quota(account: Account, command: Reserve, quota: Quota, least: RatedHold, now: datetime) -> Refused | None:
    left = _quota_left(account, command, quota, now)
    if left is None or least.credits <= left:
        return None
    resets_at = period_end(period_of(now))
    wait = max(1, math.ceil((resets_at - now).total_seconds()))
    details = {
        "required_credits": least.credits,
        "remaining_credits": max(0, left),
        "period_credits": quota.period_credits,
        "resets_at": resets_at,
        "retry_after": wait,
    }
    return Refused(Code.PERIOD_QUOTA_EXHAUSTED, "what is left of the period's ceiling does not cover it", details, wait)


def _funds(account: Account, least: RatedHold, now: datetime) -> Refused | None:
    """Refuse what neither the balance nor usable overage covers; an overdraft blocks everything (F6, O5, J12)."""
    period = period_of(now)
    details: dict[str, object] = {
        "required_credits": least.credits,
        "available_credits": account.available,
    }
    if account.overdraft:
        details["overdraft_credits"] = account.overdraft
        return Refused(Code.INSUFFICIENT_CREDITS, "the account has an overdraft", details)
    if least.credits <= account.available + account.headroom(period):
        return None
    if not account.overage_usable:
        return Refused(Code.INSUFFICIENT_CREDITS, "the balance does not cover it and overage is not usable", details)
    month = account.peek(period)
    details["cap_credits"] = account.cap_credits
    details["overage_credits"] = month.overage_used + month.overage_held
    return Refused(Code.SPENDING_CAP_REACHED, "the spending cap does not admit it", details)


# -- holding -------------------------------------------------------------------------------------------------------


def _affordable(
    account: Account, command: Reserve, quota: Quota, full: RatedHold, version: CatalogVersion, now: datetime
) -> RatedHold:
    """Return the whole hold, or the longest that funds and ceiling cover; the least of it has been checked (J8)."""
    limit = account.available + account.headroom(period_of(now))
    left = _quota_left(account, command, quota, now)
    if left is not None:
        limit = min(limit, left)
    if full.credits <= limit:
        return full
    return longest_hold(version, _plain(command.lines), transferable=command.transferable, credits=limit)


def _open(
    account: Account, command: Reserve, held: RatedHold, version: CatalogVersion, slot: Slot, now: datetime
) -> Job:
    """Write the hold down: from here on nothing can fail."""
    period = period_of(now)
    number = account.next_sequence
    sources = funding.hold(account, held.credits, period)
    account.period(period).add_held(command.environment, held.credits)
    postings = [
        Posting(funding.source_account(source, period), books.hold_account(number), credits)
        for source, credits in sources
    ]
    account.enter("reserve", now, postings, number)
    lines = _reserved_lines(command.lines, held)
    job = Job(
        number=number,
        job_id=command.job_id,
        environment=command.environment,
        operation=command.lines[0].operation,
        slot=slot,
        period=period,
        price_version=version.version,
        lines=lines,
        transfer_allowance=held.transfer_allowance,
        held_credits=held.credits,
        partial=lines[0].reserved_quantity != lines[0].requested_quantity,
        funding=funding.hold_funding(sources),
        sources=sources,
        created_at=now,
        expires_at=now + timedelta(seconds=command.ttl_seconds),
        request=request_fingerprint(command),
        idempotency_key=command.idempotency_key,
        metadata=command.metadata,
    )
    account.add_job(job)
    return job


def _reserved_lines(asked: tuple[Line, ...], held: RatedHold) -> tuple[ReservedLine, ...]:
    lines = []
    for line, rated in zip(asked, held.lines, strict=True):
        assert line.quantity is not None
        assert rated.measured is not None
        lines.append(
            ReservedLine(line.operation, rated.unit, line.quantity, rated.measured, rated.quantity, rated.credits)
        )
    return tuple(lines)
