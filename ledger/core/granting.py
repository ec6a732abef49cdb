"""Granting: credits that come in, adjustments that take them out, and the welcome (contract F1, F4, F5)."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from ledger.core import books, funding
from ledger.core.account import Account, Grant
from ledger.core.books import Posting
from ledger.core.commands import MAX_CREDITS, Code, GrantDone, Granted, GrantKind, Outcome, PutGrant, Refused
from ledger.core.periods import period_end, period_of
from ledger.core.refunding import REFUND_GRANT_PREFIX

WELCOME_ID = "welcome"
WELCOME_CREDITS = 3_000


def put_grant(account: Account, command: PutGrant, now: datetime) -> Outcome:
    """Grant credits, which pay an overdraft first (F4), or take them away by a negative adjustment."""
    request = grant_fingerprint(command)
    known = account.grants_by_id.get(command.grant_id)
    if known is not None:
        if known.request != request:
            return Refused(Code.IDEMPOTENCY_KEY_REUSED, "this grant_id was used for another grant")
        return Granted(grant_of(known), created=False)
    if command.expires_at is not None and command.expires_at <= now:
        return Refused(Code.VALIDATION_ERROR, "expires_at: it has passed")
    if command.credits < 0:
        return _take_away(account, command, request, now)
    if account.available + account.held + account.overdraft + command.credits >= MAX_CREDITS:
        return Refused(Code.VALIDATION_ERROR, "credits: the credits of one account stay below 2^53")
    expires_at = command.expires_at
    if command.kind == "plan" and expires_at is None:
        expires_at = period_end(period_of(now))
    grant = _grant(account, command, command.kind, expires_at, request, now)
    return Granted(grant_of(grant), created=True)


def grant_of(grant: Grant) -> GrantDone:
    """Return a grant as it stands."""
    return GrantDone(
        grant_id=grant.grant_id,
        kind=grant.kind,
        granted=grant.granted,
        remaining=grant.remaining,
        held=grant.held,
        expires_at=grant.expires_at,
        reference=grant.reference,
        created_at=grant.created_at,
    )


def welcome_owed(account: Account) -> bool:
    """Whether the account meets the conditions of the welcome and has never had it (F5)."""
    policy = account.policy
    return (
        account.welcome_at is None and policy.module_enabled and policy.payment_method_verified and not policy.suspended
    )


def grant_welcome(account: Account, now: datetime) -> bool:
    """Grant the welcome if it is owed: once in the account's life (F5, A6). Return whether it was."""
    if not welcome_owed(account):
        return False
    command = PutGrant(account_id=account.account_id, grant_id=WELCOME_ID, kind="welcome", credits=WELCOME_CREDITS)
    _grant(account, command, "welcome", None, grant_fingerprint(command), now)
    account.welcome_at = now
    account.changes.policy = True
    return True


def own_ids(command: PutGrant) -> Refused | None:
    """Refuse what only the service itself grants: a matter of shape, judged before anything else."""
    if command.kind == "welcome":
        return Refused(Code.VALIDATION_ERROR, "kind: the welcome is never granted by hand")
    if command.grant_id == WELCOME_ID or command.grant_id.startswith(REFUND_GRANT_PREFIX):
        return Refused(Code.VALIDATION_ERROR, f"grant_id: {command.grant_id} is the service's own")
    return None


def grant_fingerprint(command: PutGrant) -> bytes:
    """Return what makes two grants of an id the same. It is kept: its parts are written out."""
    parts = (command.kind, command.credits, command.expires_at, command.reference)
    return hashlib.sha256(msgspec.json.encode(parts)).digest()[:16]


def _grant(
    account: Account,
    command: PutGrant,
    kind: GrantKind,
    expires_at: datetime | None,
    request: bytes,
    now: datetime,
) -> Grant:
    number = account.next_sequence
    grant = _new_grant(command, number, kind, command.credits, expires_at, request, now)
    account.add_grant(grant)
    account.available += command.credits
    posting = Posting(books.issued_account(kind), books.grant_account(number), command.credits)
    account.enter("grant", now, [posting, *funding.cover_overdraft(account)])
    account.last_grant = number
    month = account.period(period_of(now))
    if kind == "adjustment":
        month.adjusted += command.credits
        month.adjusted_up += command.credits
    else:
        month.granted += command.credits
    return grant


def _take_away(account: Account, command: PutGrant, request: bytes, now: datetime) -> Outcome:
    """Take credits from the balance in spending order, never more than is available."""
    credits = -command.credits
    if credits > account.available:
        return Refused(
            Code.INSUFFICIENT_CREDITS,
            "an adjustment takes no more than is available",
            {"required_credits": credits, "available_credits": account.available},
        )
    postings = [
        Posting(books.grant_account(number), books.issued_account("adjustment"), taken)
        for number, taken in funding.spend(account, credits)
    ]
    grant = _new_grant(command, account.next_sequence, "adjustment", 0, command.expires_at, request, now)
    grant.granted = command.credits
    account.add_grant(grant)
    account.enter("grant", now, postings)
    account.period(period_of(now)).adjusted -= credits
    return Granted(grant_of(grant), created=True)


def _new_grant(
    command: PutGrant,
    number: int,
    kind: GrantKind,
    credits: int,
    expires_at: datetime | None,
    request: bytes,
    now: datetime,
) -> Grant:
    return Grant(
        number=number,
        grant_id=command.grant_id,
        kind=kind,
        granted=credits,
        remaining=credits,
        held=0,
        expires_at=expires_at,
        reference=command.reference,
        created_at=now,
        request=request,
    )
