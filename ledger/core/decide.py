"""Deciding: account + command + now -> outcome, with everything it changes collected in the account. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from ledger.core import closing, granting, lifecycle, notices, policies, refunding, reserving
from ledger.core.account import Account
from ledger.core.commands import (
    AccountCommand,
    BringUp,
    CancelDeletion,
    ClosePeriod,
    Code,
    Command,
    DeleteAccount,
    Outcome,
    PatchAccount,
    PutAccount,
    PutCycle,
    PutGrant,
    Refund,
    Refused,
    Release,
    RequestDeletion,
    Reserve,
    Settle,
)
from pricing.catalog import Catalog


def decide(account: Account | None, command: Command, now: datetime, catalog: Catalog) -> Outcome:
    """Decide one command at one instant, against the state that the commands before it left.

    `account` is None where it does not exist. The account must have been brought up to now (`timeline.bring_up_to`).
    The clock never goes back for an account: its own latest instant counts where `now` is behind it (T3).
    """
    if account is not None and account.is_new and not isinstance(command, PutAccount):
        account = None  # Its row is there for a `PutAccount` of the same batch that is not carried out.
    if account is not None:
        now = max(now, account.at)
    if isinstance(command, Reserve | Settle):
        return _decide_spending(account, command, now, catalog)
    if isinstance(command, PutGrant) and (refusal := granting.own_ids(command)):
        return refusal
    if account is None:
        return Refused(Code.RESOURCE_NOT_FOUND, f"account {command.account_id} does not exist")
    if isinstance(command, Release):
        return closing.release(account, command, now)
    if isinstance(command, Refund):
        return refunding.refund(account, command, now, catalog)
    return _decide_account(account, command, now)


def _decide_spending(account: Account | None, command: Reserve | Settle, now: datetime, catalog: Catalog) -> Outcome:
    if isinstance(command, Reserve):
        outcome = reserving.reserve(account, command, now, catalog.at(now))
        if account is not None:
            notices.tell_of_reservation(account, command, outcome, now)
        return outcome
    job = account.jobs.get(command.job_id) if account else None
    was_open = job is not None and job.open
    outcome = closing.settle(account, command, now, catalog)
    if account is not None and job is not None and was_open:
        notices.tell_of_settlement(account, job, now)
    return outcome


def _decide_account(account: Account, command: AccountCommand, now: datetime) -> Outcome:
    decision = _ACCOUNT_DECISIONS[type(command)]
    return decision(account, command, now)


def _bring_up(account: Account, _: BringUp, now: datetime) -> Outcome:
    account.brought_up.welcome_granted = granting.grant_welcome(account, now)
    return account.brought_up


_ACCOUNT_DECISIONS: dict[type, Callable[[Account, Any, datetime], Outcome]] = {
    PutGrant: granting.put_grant,
    PutAccount: policies.put_account,
    PatchAccount: policies.patch_account,
    PutCycle: policies.put_cycle,
    BringUp: _bring_up,
    ClosePeriod: lifecycle.close_period,
    RequestDeletion: lifecycle.request_deletion,
    CancelDeletion: lambda account, command, _: lifecycle.cancel_deletion(account, command),
    DeleteAccount: lifecycle.delete_account,
}
