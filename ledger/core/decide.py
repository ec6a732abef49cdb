"""Deciding: account + command + now -> outcome, with everything it changes collected in the account. Pure."""

from __future__ import annotations

from datetime import datetime

from ledger.core import closing, granting, policies, refunding, reserving
from ledger.core.account import Account
from ledger.core.commands import (
    BringUp,
    Code,
    Command,
    Outcome,
    PatchAccount,
    PutAccount,
    PutCycle,
    PutGrant,
    Refund,
    Refused,
    Release,
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
    if isinstance(command, Reserve):
        return reserving.reserve(account, command, now, catalog.at(now))
    if isinstance(command, Settle):
        return closing.settle(account, command, now, catalog)
    if isinstance(command, PutGrant) and (refusal := granting.own_ids(command)):
        return refusal
    if account is None:
        return Refused(Code.RESOURCE_NOT_FOUND, f"account {command.account_id} does not exist")
    if isinstance(command, Release | Refund):
        return _decide_job(account, command, now, catalog)
    return _decide_account(account, command, now)


def _decide_job(account: Account, command: Release | Refund, now: datetime, catalog: Catalog) -> Outcome:
    match command:
        case Release():
            return closing.release(account, command, now)
        case Refund():
            return refunding.refund(account, command, now, catalog)


def _decide_account(
    account: Account, command: PutGrant | PutAccount | PatchAccount | PutCycle | BringUp, now: datetime
) -> Outcome:
    match command:
        case PutGrant():
            return granting.put_grant(account, command, now)
        case PutAccount():
            return policies.put_account(account, command, now)
        case PatchAccount():
            return policies.patch_account(account, command, now)
        case PutCycle():
            return policies.put_cycle(account, command, now)
        case BringUp():
            account.brought_up.welcome_granted = granting.grant_welcome(account, now)
            return account.brought_up
