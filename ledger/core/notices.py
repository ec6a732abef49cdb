"""Notices: the events that decisions raise, each exactly as often as the contract says (contract V1, V2, V6).

What was told is kept in the account and its months, so a second telling needs no look-up; the name in `once` lets the
database refuse one all the same (V5).
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from ledger.core.account import Account, Job, Period
from ledger.core.commands import Code, Environment, Outcome, Refused, Reserve, Reserved
from ledger.core.overage import MICRO_USD, usd_text
from ledger.core.periods import period_of


def tell_of_reservation(account: Account, command: Reserve, outcome: Outcome, now: datetime) -> None:
    """Raise what the outcome of a reservation is to be told of: that it took the last overage, or was refused (V1)."""
    if isinstance(outcome, Reserved) and outcome.created:
        job = account.jobs[command.job_id]
        _overage_taken(account, job, job.funding.overage, now)
    elif isinstance(outcome, Refused) and outcome.code == Code.INSUFFICIENT_CREDITS:
        _exhausted(account, command.environment, period_of(now), now)
    elif isinstance(outcome, Refused) and outcome.code == Code.SPENDING_CAP_REACHED:
        _cap_reached(account, command.environment, period_of(now), now)


def tell_of_settlement(account: Account, job: Job, now: datetime) -> None:
    """Raise what a settlement is to be told of; a job that is open still was not settled (V1)."""
    if job.closing is None:
        return
    _threshold_reached(account, job, now)
    if not account.available and not account.overage_usable:
        _exhausted(account, job.environment, job.period, now)
    _overage_taken(account, job, job.closing.funding.overage, now)


def job_expired(account: Account, job: Job) -> None:
    """Tell that a job outlived its deadline, as of the deadline; `metadata` is there where any was sent (V2)."""
    assert job.closing is not None
    data: dict[str, object] = {
        "job_id": job.job_id,
        "operation": job.operation,
        "status": job.status,
        "credits_charged": job.closing.charged,
        "error_code": job.closing.error_code,
    }
    if job.metadata is not None:
        data["metadata"] = msgspec.Raw(job.metadata)
    account.tell("job.expired", job.environment, job.closing.at, f"expired:{job.number}", data)


def period_closed(account: Account, month: Period, now: datetime) -> None:
    """Tell what is to be invoiced for a month (V6)."""
    data: dict[str, object] = {
        "period": month.period,
        "charged": month.charged,
        "refunded": month.refunded,
        "overage_credits": month.overage_used,
        "overage_usd": usd_text(month.overage_micro_usd),
    }
    account.tell("period.closed", "live", now, f"closed:{month.period}", data)


def _threshold_reached(account: Account, job: Job, now: datetime) -> None:
    """Tell of the highest share of the month's credits that a settlement crosses, each once a month."""
    month = account.peek(job.period)
    total = _granted_in(month)
    crossed = [t for t in account.thresholds if total > 0 and month.charged_to_balance * 100 >= t * total]
    if crossed and crossed[-1] > month.threshold_raised:
        account.period(job.period).threshold_raised = crossed[-1]
        once = f"threshold:{month.period}:{crossed[-1]}"
        account.tell("credits.threshold_reached", job.environment, now, once, _figures(account, month))


def _exhausted(account: Account, environment: Environment, period: str, now: datetime) -> None:
    """Tell that nothing is left to spend, once until something is granted."""
    if account.exhausted_after == account.last_grant:
        return
    account.exhausted_after = account.last_grant
    account.changes.balance = True
    once = f"exhausted:{account.last_grant}"
    account.tell("credits.exhausted", environment, now, once, _figures(account, account.peek(period)))


def _overage_taken(account: Account, job: Job, credits: int, now: datetime) -> None:
    """Tell that overage, used and held, has reached the cap."""
    month, cap = account.peek(job.period), account.cap_credits
    if credits and cap is not None and month.overage_used + month.overage_held >= cap:
        _cap_reached(account, job.environment, job.period, now)


def _cap_reached(account: Account, environment: Environment, period: str, now: datetime) -> None:
    """Tell that the spending cap is reached, once a month (O6)."""
    if not account.peek(period).cap_raised:
        month = account.period(period)
        month.cap_raised = True
        data = _figures(account, month)
        account.tell("credits.spending_cap_reached", environment, now, f"cap:{period}", data)


def _granted_in(month: Period) -> int:
    """Return the credits that a month had: its opening balance, and what was granted in it."""
    return (month.opening or 0) + month.granted + month.adjusted_up


def _figures(account: Account, month: Period) -> dict[str, object]:
    """Return the figures of a balance event; one that was not measured is absent, not null."""
    total = _granted_in(month)
    figures: dict[str, object] = {"used_credits": month.charged_to_balance, "total_available": total}
    if total > 0:
        figures["usage_percent"] = round(month.charged_to_balance * 100 / total, 2)
    if account.policy.overage_enabled:
        figures["overage_credits"] = month.overage_used + month.overage_held
        figures["overage_spending_cap"] = account.effective_cap / MICRO_USD
    return figures
