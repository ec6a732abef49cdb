"""The life of an account beyond its jobs: months that close (V6, section S), and its deletion (R7)."""

from __future__ import annotations

from datetime import datetime, timedelta

from ledger.core import closing, notices
from ledger.core.account import Account, ClosedStatement, Deletion
from ledger.core.commands import (
    AccountDeleted,
    CancelDeletion,
    ClosePeriod,
    Code,
    DeleteAccount,
    DeletionStands,
    Outcome,
    PeriodClosed,
    Refused,
    Release,
    RequestDeletion,
)
from ledger.core.periods import period_of

GRACE = timedelta(days=30)
"""How long a deletion can be cancelled (R7)."""

ACCOUNT_DELETED = "account_deleted"
"""The error code of the jobs that a deletion ends."""


def close_period(account: Account, command: ClosePeriod, now: datetime) -> Outcome:
    """Close a month once it has ended and no hold of it is open; from then on none of its figures changes."""
    if account.closed_through is not None and command.period <= account.closed_through:
        return PeriodClosed(closed=False)
    month = account.peek(command.period)
    if command.period >= period_of(now) or month.live_held or month.test_held:
        return PeriodClosed(closed=False, waiting=True)
    month = account.period(command.period)
    month.closed_at = now
    account.closed_through = command.period
    account.changes.policy = True
    account.changes.statements.append(ClosedStatement(command.period, command.statement))
    notices.period_closed(account, month, now)
    return PeriodClosed(closed=True)


def request_deletion(account: Account, command: RequestDeletion, now: datetime) -> Outcome:
    """Open the request to delete an account, or revive the one there was: its grace begins again."""
    deletion = account.deletion
    if deletion is None or deletion.status != "pending":
        code = command.confirmation_code if deletion is None else deletion.confirmation_code
        _note(account, Deletion(confirmation_code=code, status="pending", requested_at=now, executes_at=now + GRACE))
    return _stands(account)


def cancel_deletion(account: Account, command: CancelDeletion) -> Outcome:
    """Cancel the request to delete an account, until it is carried out."""
    deletion = account.deletion
    if deletion is None:
        return Refused(Code.RESOURCE_NOT_FOUND, f"a deletion of account {command.account_id} does not exist")
    if deletion.status == "pending":
        cancelled = Deletion(
            confirmation_code=deletion.confirmation_code,
            status="cancelled",
            requested_at=deletion.requested_at,
            executes_at=deletion.executes_at,
        )
        _note(account, cancelled)
    return _stands(account)


def delete_account(account: Account, command: DeleteAccount, now: datetime) -> Outcome:
    """Carry a deletion out whose grace is over: the open holds that were loaded end first, then the name goes.

    The months that are not closed yet are told of, so that their overage can be invoiced (V6).
    """
    deletion = account.deletion
    if deletion is None or deletion.status != "pending" or deletion.executes_at > now:
        return AccountDeleted(deleted=False, holds_ended=0)
    ended = 0
    for job in [job for job in account.jobs.values() if job.open]:
        closing.release(account, Release(account_id="", job_id=job.job_id, error_code=ACCOUNT_DELETED), now)
        ended += 1
    if any(account.open_slots.values()):
        return AccountDeleted(deleted=False, holds_ended=ended)
    for name in sorted(account.periods):
        if account.closed_through is None or name > account.closed_through:
            month = account.peek(name)
            if month.charged or month.refunded:
                notices.period_closed(account, month, now)
    account.changes.anonymised = True
    return AccountDeleted(deleted=True, holds_ended=ended)


def _note(account: Account, deletion: Deletion) -> None:
    account.deletion = deletion
    account.changes.policy = True


def _stands(account: Account) -> DeletionStands:
    deletion = account.deletion
    assert deletion is not None
    return DeletionStands(
        confirmation_code=deletion.confirmation_code,
        status=deletion.status,
        requested_at=deletion.requested_at,
        executes_at=deletion.executes_at,
    )
