"""What time has decided for an account: holds and grants that are due end by entries (contract T1, T4, J5)."""

from __future__ import annotations

from datetime import datetime

from ledger.core import books, funding, notices
from ledger.core.account import Account, Closing, Grant, Job
from ledger.core.commands import Code
from ledger.core.periods import period_of, period_start


def bring_up_to(account: Account, now: datetime) -> None:
    """Enter everything due at or before `now`, in the order of its instants, each as of its own instant.

    Every decision begins here, so none ever sees a hold or a grant whose time is over. Where a hold and a grant end at
    one instant the hold goes first; what comes back then expires with the grant (F2).
    """
    now = max(now, account.at)
    _open_month(account, period_of(now))
    _enter_due(account, now)
    account.at = now


def _open_month(account: Account, period: str) -> None:
    """Note the balance at the start of a month, the first time that anything is decided in it (V1).

    It counts what is held and is less any overdraft; what ended with the month before is not in it.
    """
    if account.peek(period).opening is not None:
        return
    start = period_start(period)
    _enter_due(account, start)
    ended = sum(grant.held for grant in account.grants.values() if grant.ended(start))
    account.period(period).opening = account.available + account.held - ended - account.overdraft


def _enter_due(account: Account, until: datetime) -> None:
    for due in _due(account, until):
        if isinstance(due, Job):
            _expire_hold(account, due)
        elif due.remaining:
            _expire_grant(account, due)


def _due(account: Account, now: datetime) -> list[Job | Grant]:
    due: list[tuple[datetime, bool, int, Job | Grant]] = [
        (job.expires_at, False, job.number, job) for job in account.due.values() if job.open and job.expires_at <= now
    ]
    due += [
        (grant.expires_at, True, grant.number, grant)
        for grant in account.grants.values()
        if grant.expires_at is not None and grant.live and grant.expires_at <= now
    ]
    if len(due) > 1:
        due.sort(key=lambda d: d[:3])
    return [what for *_, what in due]


def _expire_hold(account: Account, job: Job) -> None:
    at = job.expires_at
    postings = funding.give_back(account, job, job.sources, at)
    entry = account.enter("expire", at, postings, job.number)
    account.period(job.period).add_held(job.environment, -job.held_credits)
    closing = Closing(
        entry=entry.sequence, at=at, charged=0, returned=job.held_credits, error_code=Code.JOB_NOT_COMPLETED
    )
    account.close_job(job, "expired", closing)
    notices.job_expired(account, job)
    account.brought_up.holds_expired += 1
    account.brought_up.credits_returned += job.held_credits
    account.brought_up.credits_expired += sum(p.credits for p in postings if p.credit == books.EXPIRED)


def _expire_grant(account: Account, grant: Grant) -> None:
    assert grant.expires_at is not None
    account.brought_up.grants_expired += 1
    account.brought_up.credits_expired += grant.remaining
    account.enter("expire_grant", grant.expires_at, funding.expire(account, grant))
