"""Policy: what operators set of an account, and the welcome it may earn (contract F5, O1-O4, Q1, Q5)."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import msgspec

from ledger.core.account import Account, Policy, Quota
from ledger.core.commands import (
    AccountStored,
    Code,
    CycleDone,
    CycleStored,
    Environment,
    Outcome,
    PatchAccount,
    PolicyChange,
    PutAccount,
    PutCycle,
    QuotaChange,
    Refused,
)
from ledger.core.granting import grant_welcome
from ledger.core.overage import paid_cycles

NO_PRICE = "overage.credit_price_usd: overage cannot be enabled without it"
"""Why a policy is refused that switches overage on without the price of a credit (O7)."""

T = TypeVar("T")


def put_account(account: Account, command: PutAccount, now: datetime) -> Outcome:
    """Replace an account's policy by what the command names and the defaults; a new account is opened."""
    return _store(account, Policy(), command.change, now)


def patch_account(account: Account, command: PatchAccount, now: datetime) -> Outcome:
    """Change what the command names of an account's policy. What is held stays held (F4)."""
    return _store(account, account.policy, command.change, now)


def put_cycle(account: Account, command: PutCycle, now: datetime) -> Outcome:
    """Record how a month's invoice was paid; the ceiling follows from all of them in order (O3, O4)."""
    known = account.cycles.get(command.month)
    cycle = known
    if cycle is None or cycle.status != command.status:
        cycle = CycleDone(cycle=command.month, status=command.status, updated_at=now)
        account.cycles[command.month] = account.changes.cycles[command.month] = cycle
        account.paid_cycles = paid_cycles(account.cycle_statuses())
        account.changes.policy = True
    return CycleStored(cycle, created=known is None)


def _store(account: Account, base: Policy, change: PolicyChange, now: datetime) -> Outcome:
    policy = _changed(base, change)
    if policy.overage_enabled and policy.credit_price_usd is None:
        return Refused(Code.VALIDATION_ERROR, NO_PRICE)
    account.policy = policy
    account.changes.policy = True
    grant_welcome(account, now)
    created, account.is_new = account.is_new, False
    return AccountStored(created)


def _changed(base: Policy, change: PolicyChange) -> Policy:
    suspended = base.suspended if change.access is msgspec.UNSET else change.access == "suspended"
    quotas = dict(base.quotas)
    for environment, quota in change.quotas.items():
        _set_quota(quotas, environment, quota)
    return Policy(
        module_enabled=_set(change.module_enabled, base.module_enabled),
        suspended=suspended,
        payment_method_verified=_set(change.payment_method_verified, base.payment_method_verified),
        overage_enabled=_set(change.overage_enabled, base.overage_enabled),
        cap_usd=_set(change.cap_usd, base.cap_usd),
        credit_price_usd=_set(change.credit_price_usd, base.credit_price_usd),
        quotas=quotas,
    )


def _set_quota(quotas: dict[Environment, Quota], environment: Environment, change: QuotaChange | None) -> None:
    """Change, add or (None) remove the quota row of an environment (Q1, Q5)."""
    if change is None:
        quotas.pop(environment, None)
        return
    base = quotas.get(environment, Quota())
    quotas[environment] = Quota(
        max_requests=_set(change.max_requests, base.max_requests),
        max_calls=_set(change.max_calls, base.max_calls),
        period_credits=_set(change.period_credits, base.period_credits),
    )


def _set(value: T | msgspec.UnsetType, base: T) -> T:
    return base if value is msgspec.UNSET else value
