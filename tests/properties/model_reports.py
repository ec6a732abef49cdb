"""What the model answers to reads: jobs, accounts, balances, usage, statements, shaped as the interface."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal

from .model_books import (
    ENVIRONMENTS,
    OVERAGE,
    Account,
    Grant,
    Job,
    Piece,
    end_of_period,
    instant_text,
    net_flow,
    period_of,
    total,
)
from .model_prices import PRICES, Json


def funding_of_hold(hold: list[Piece]) -> Json:
    """Where the credits of a hold come from, in the two words a reservation uses."""
    overage = total(piece for piece in hold if piece.source == OVERAGE)
    return {"balance": total(hold) - overage, "overage": overage}


def settlement_view(job: Job, now: datetime) -> Json:
    """The answer to a settlement, now or later: after 24 h without `usage` and `lines`."""
    if job.breakdown_kept(now):
        return dict(job.settlement)
    return {**job.settlement, "usage": None, "lines": None}


def job_view(job: Job, now: datetime) -> Json:
    """`GET …/jobs/{job_id}`, without the journal.

    Left out, because the contract does not settle it: the error code of an expired job, and metadata that
    was not sent.
    """
    settlement = settlement_view(job, now) if job.status == "settled" else {"usage": None, "lines": None}
    state = job.result_state(now)
    body = {
        **job.reservation,
        "status": job.status,
        "usage": settlement["usage"],
        "settled_lines": settlement["lines"],
        "credits_charged": job.credits_charged,
        "credits_refunded": total(job.refunds),
        "result_state": state,
        "result": job.result if state == "available" else None,
    }
    if job.status != "expired":
        body["error_code"] = job.error_code
    if job.request.get("metadata"):
        body["metadata"] = job.request["metadata"]
    if job.closed_at is not None:
        body[f"{job.status}_at"] = instant_text(job.closed_at)
    return body


def grant_view(account: Account, grant: Grant) -> Json:
    """A grant with what is left of it now."""
    return {
        "grant_id": grant.grant_id,
        "kind": grant.kind,
        "granted": grant.granted,
        "remaining": grant.remaining,
        "held": account.held_of_grant(grant.grant_id),
        "expires_at": None if grant.expires_at is None else instant_text(grant.expires_at),
    }


def account_view(account: Account) -> Json:
    """`GET /v1/accounts/{account_id}`."""
    granted_at = account.welcome_granted_at
    return {
        **account.policy,
        "effective_cap_usd": str(account.effective_cap_usd()),
        "effective_cap_credits": account.cap_credits(),
        "provider_ceiling_usd": str(account.ceiling_usd()),
        "paid_cycles": account.paid_cycles(),
        "welcome_granted_at": None if granted_at is None else instant_text(granted_at),
        "deletion": None,
        "created_at": instant_text(account.created_at),
    }


def balance_view(account: Account, now: datetime) -> Json:
    """`GET …/balance`."""
    period = period_of(now)
    environments: Json = {}
    for name in ENVIRONMENTS:
        quota = account.policy["environments"][name]
        if quota is None:
            environments[name] = None
            continue
        used, held = account.environment_used(name, period), account.environment_held(name, period)
        ceiling = quota["period_credits"]
        environments[name] = {
            **quota,
            "used": used,
            "held": held,
            "remaining": None if ceiling is None else max(0, ceiling - used - held),
            "open_requests": len(account.open_in(name, call=False)),
            "open_calls": len(account.open_in(name, call=True)),
        }
    grants = [grant_view(account, grant) for grant in account.grants.values()]
    return {
        "account_id": account.account_id,
        "at": instant_text(now),
        "period": period,
        "period_ends_at": instant_text(end_of_period(period)),
        "available": account.available(now),
        "held": account.held(),
        "overdraft": account.overdraft(),
        "grants": [grant for grant in grants if grant["remaining"] or grant["held"]],
        "overage": {
            "usable": account.overage_usable(),
            "used": account.overage_used[period],
            "held": account.overage_held(period),
            "cap_usd": str(account.effective_cap_usd()),
            "cap_credits": account.cap_credits(),
        },
        "environments": environments,
    }


def past_balance_view(account: Account, at: datetime) -> Json:
    """`GET …/balance?at=`: the totals as they were at the end of that instant."""
    available = held = overdraft = 0
    for since, *totals in account.history:
        if since <= at:
            available, held, overdraft = totals
    return {
        "account_id": account.account_id,
        "at": instant_text(at),
        "available": available,
        "held": held,
        "overdraft": overdraft,
    }


def charges_view(account: Account, period: str) -> list[Json]:
    """The usage of a period by operation: charges by J14, refunds by when they were made (J13)."""
    quantity: Counter[str] = Counter()
    charged: Counter[str] = Counter()
    jobs: Counter[str] = Counter()
    refunded: Counter[str] = Counter()
    for job in account.jobs.values():
        if job.period == period and job.credits_charged:
            lines = job.settlement["lines"]
            for line in lines:
                quantity[line["operation"]] += line["quantity"]
                charged[line["operation"]] += line["credits"]
            jobs.update({line["operation"] for line in lines if line["credits"]})
    for refund in account.refunds.values():
        if refund.period == period:
            refunded.update(refund.by_operation)
    return [
        {
            "operation": operation,
            "unit": PRICES[operation].unit,
            "quantity": quantity[operation],
            "credits": charged[operation],
            "refunded_credits": refunded[operation],
            "jobs": jobs[operation],
        }
        for operation in sorted(PRICES)
        if charged[operation] or refunded[operation]
    ]


def usage_view(account: Account, period: str) -> Json:
    """`GET …/usage?period=`, grouped by operation."""
    lines = charges_view(account, period)
    charged = sum(line["credits"] for line in lines)
    refunded = sum(line["refunded_credits"] for line in lines)
    jobs = [job for job in account.jobs.values() if job.period == period and job.credits_charged]
    return {
        "from": f"{period}-01",
        "to": f"{end_of_period(period):%Y-%m-%d}",
        "totals": {
            "credits": charged,
            "refunded_credits": refunded,
            "net_credits": charged - refunded,
            "jobs": len(jobs),
        },
        "lines": lines,
    }


def statement_view(account: Account, period: str, now: datetime) -> Json:
    """`GET …/statements/{YYYY-MM}`.

    Left out: whether a month that is over is closed (the sweep decides), the overdraft of a month that is
    over, and the USD of an account whose price of a credit has changed.
    """
    flow = account.flows.get(period, Counter())
    opening = sum(net_flow(other) for month, other in account.flows.items() if month < period)
    charged = sum(job.credits_charged or 0 for job in account.jobs.values() if job.period == period)
    overage: Json = {"credits": account.overage_used[period]}
    if len(account.prices_seen) == 1:
        (price,) = account.prices_seen
        overage["usd"] = str(Decimal(account.overage_used[period]) * price)
    body = {
        "period": period,
        "opening_balance": opening,
        "granted": flow["granted"],
        "adjusted": flow["adjusted"],
        "charged": charged,
        "charged_from_balance": flow["charged_from_balance"],
        "refunded": flow["refunded"],
        "refunded_to_balance": flow["refunded_to_balance"],
        "expired": flow["expired"],
        "closing_balance": opening + net_flow(flow),
        "overage": overage,
        "charges": charges_view(account, period),
    }
    if period == period_of(now):
        body["status"] = "open"
        body["overdraft"] = account.overdraft()
    return body
