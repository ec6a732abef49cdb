"""The pure core behind the `System` protocol: bodies become commands, and what is kept is shown as the service does.

Commands take the service's own road from body to decision. The few reads are built here from the account in memory,
since the service's come from the database.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from ledger.api import bodies
from ledger.api.errors import ApiError, of_refusal
from ledger.core import overage
from ledger.core.account import Account, Job, Period
from ledger.core.closing import usage_of
from ledger.core.commands import (
    ENVIRONMENTS,
    AccountStored,
    Command,
    CycleStored,
    Granted,
    Outcome,
    PatchAccount,
    PutAccount,
    PutCycle,
    Refunded,
    Refused,
    Replayed,
    Reserved,
)
from ledger.core.periods import period_end, period_of
from ledger.core.reserving import reservation_of
from pricing.rating import FractionNotAllowed, TransferNotPossible, rate_hold
from tests.support.core import World as Core

from .machine import Answer, World
from .model_prices import Json

T = TypeVar("T")
NOT_FOUND: Answer = (404, {"error": {"code": "resource_not_found", "details": {}}})


class CoreSystem:
    """Two accounts in memory, and a clock that is moved by hand."""

    def begin(self) -> World:
        now = datetime(2026, 11, 15, 12, tzinfo=UTC)
        self.core = Core(now, audited=False)
        self.history: dict[str, list[tuple[datetime, int, int, int]]] = {}
        return World(now, ("acct-a", "acct-b"))

    def advance(self, to: datetime) -> None:
        """Move the clock; everything due is entered on the way, so that past balances can be remembered."""
        for account_id, account in self.core.accounts.items():
            deadlines = [job.expires_at for job in account.due.values() if job.open]
            deadlines += [g.expires_at for g in account.grants.values() if g.expires_at is not None and g.live]
            for deadline in sorted(d for d in deadlines if self.core.now < d <= to):
                self.core.now, before = deadline, self.core.now
                self.look(account_id)
                self.core.now = before
        self.core.at(to)

    def close(self) -> None:
        """Nothing is open."""

    def look(self, account_id: str) -> Account | None:
        """Bring an account up to now, and remember its totals."""
        if account_id not in self.core.accounts:
            return None
        account = self.core.look(account_id)
        held = sum(grant.held for grant in account.grants.values())
        totals = (self.core.now, account.available, held, account.overdraft)
        self.history.setdefault(account_id, []).append(totals)
        return account

    # -- commands ---------------------------------------------------------------------------------------------------

    def do(self, make: Callable[[], Command]) -> Answer:
        """Make a command of a body, give it, and answer as the service would."""
        try:
            command = make()
            outcome = self.core.do(command)
            self.look(command.account_id)
            return self.answer(command.account_id, outcome)
        except ApiError as error:
            return error.status, {"error": {"code": error.code, "details": shown(error.details)}}

    def answer(self, account_id: str, outcome: Outcome) -> Answer:
        match outcome:
            case Refused():
                raise of_refusal(outcome)
            case Reserved():
                return 201 if outcome.created else 200, shown(outcome.reservation)
            case Refunded():
                return 201 if outcome.created else 200, shown(outcome.refund)
            case Granted():
                return 201 if outcome.created else 200, shown(outcome.grant)
            case CycleStored():
                return 201 if outcome.created else 200, shown(outcome.cycle)
            case AccountStored():
                return 201 if outcome.created else 200, self.get_account(account_id)[1]
            case Replayed():
                return 200, {**self.get_job(account_id, outcome.job_id)[1], "replayed": True}
            case _:
                return 200, shown(outcome)

    def put_account(self, account_id: str, body: Json) -> Answer:
        return self.do(
            lambda: PutAccount(account_id=account_id, change=bodies.policy_change(read(body, bodies.AccountBody)))
        )

    def patch_account(self, account_id: str, body: Json) -> Answer:
        return self.do(
            lambda: PatchAccount(account_id=account_id, change=bodies.policy_change(read(body, bodies.AccountBody)))
        )

    def put_cycle(self, account_id: str, month: str, status: str) -> Answer:
        return self.do(
            lambda: PutCycle(
                account_id=account_id, month=month, status=read({"status": status}, bodies.CycleBody).status
            )
        )

    def put_grant(self, account_id: str, grant_id: str, body: Json) -> Answer:
        return self.do(lambda: bodies.grant_command(account_id, grant_id, read(body, bodies.GrantBody)))

    def reserve(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.do(lambda: bodies.reserve_command(account_id, job_id, read(body, bodies.ReserveBody)))

    def settle(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.do(lambda: bodies.settle_command(account_id, job_id, read(body, bodies.SettleBody)))

    def release(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.do(lambda: bodies.release_command(account_id, job_id, read(body, bodies.ReleaseBody)))

    def refund(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.do(lambda: bodies.refund_command(account_id, job_id, read(body, bodies.RefundBody)))

    def quote(self, body: Json) -> Answer:
        version = self.core.catalog.at(self.core.now)
        assert version is not None
        lines = [(line["operation"], line["quantity"]) for line in body["lines"]]
        if any(operation not in version.prices for operation, _ in lines):
            return 500, {"error": {"code": "operation_not_priced", "details": {}}}
        try:
            rated = rate_hold(version, lines, transferable=body.get("transferable", False))
        except (FractionNotAllowed, TransferNotPossible):
            return 400, {"error": {"code": "validation_error", "details": {}}}
        rows = [{n: getattr(r, n) for n in ("operation", "unit", "quantity", "credits")} for r in rated.lines]
        return 200, {
            "lines": rows,
            "transfer_allowance": rated.transfer_allowance,
            "credits": rated.credits,
            "price_version": version.version,
        }

    # -- reads ------------------------------------------------------------------------------------------------------

    def get_account(self, account_id: str) -> Answer:
        account = self.look(account_id)
        if account is None:
            return NOT_FOUND
        policy = account.policy
        return 200, {
            "module_enabled": policy.module_enabled,
            "access": "suspended" if policy.suspended else "active",
            "payment_method_verified": policy.payment_method_verified,
            "overage": {
                "enabled": policy.overage_enabled,
                "cap_usd": usd(policy.cap_usd),
                "credit_price_usd": usd(policy.credit_price_usd),
            },
            "environments": {e: shown(policy.quotas[e]) if e in policy.quotas else None for e in ENVIRONMENTS},
            "effective_cap_usd": usd(account.effective_cap),
            "effective_cap_credits": account.cap_credits,
            "provider_ceiling_usd": usd(overage.provider_ceiling(account.paid_cycles)),
            "paid_cycles": account.paid_cycles,
            "welcome_granted_at": shown(account.welcome_at),
            "deletion": None,
            "created_at": shown(account.created_at),
        }

    def get_job(self, account_id: str, job_id: str, environment: str | None = None) -> Answer:
        account = self.look(account_id)
        job = account.jobs.get(job_id) if account else None
        if account is None or job is None or environment not in (None, job.environment):
            return NOT_FOUND
        return 200, self.job_view(account, job)

    def job_view(self, account: Account, job: Job) -> Json:
        closing, kept = job.closing, job.status == "settled" and job.kept(self.core.now)
        lines = job.settled_lines if kept else None
        stored = closing.result if closing else None
        if job.status == "settled":
            state = "not_stored" if stored is None else "available" if kept else "expired"
        else:
            state = "pending" if job.open else "unavailable"
        view: Json = {
            **shown(reservation_of(account, job)),
            "usage": shown(usage_of(job.operation, job.lines[0].unit, lines)),
            "settled_lines": shown(lines),
            "credits_charged": closing.charged if closing else None,
            "credits_refunded": job.refunded,
            "result_state": state,
            "result": msgspec.json.decode(stored) if stored is not None and state == "available" else None,
            "error_code": closing.error_code if closing else None,
            "metadata": None if job.metadata is None else msgspec.json.decode(job.metadata),
        }
        return view if closing is None else {**view, f"{job.status}_at": shown(closing.at)}

    def balance(self, account_id: str, at: datetime | None = None) -> Answer:
        account = self.look(account_id)
        if account is None:
            return NOT_FOUND
        if at is not None:
            return self.past_balance(account_id, at)
        now, month = self.core.now, account.peek(period_of(self.core.now))
        live = [grant for grant in account.grants.values() if grant.live]
        names = ("grant_id", "kind", "granted", "remaining", "held", "expires_at")
        return 200, {
            "account_id": account_id,
            "at": shown(now),
            "period": period_of(now),
            "period_ends_at": shown(period_end(period_of(now))),
            "available": account.available,
            "held": account.held,
            "overdraft": account.overdraft,
            "grants": [{name: shown(getattr(grant, name)) for name in names} for grant in live],
            "overage": {
                "usable": account.overage_usable,
                "used": month.overage_used,
                "held": month.overage_held,
                "cap_usd": usd(account.effective_cap),
                "cap_credits": account.cap_credits,
            },
            "environments": {
                e: {
                    **shown(quota),
                    "used": month.used(e),
                    "held": month.held(e),
                    "remaining": None
                    if quota.period_credits is None
                    else max(0, quota.period_credits - month.used(e) - month.held(e)),
                    "open_requests": account.open_slots.get((e, "request"), 0),
                    "open_calls": account.open_slots.get((e, "call"), 0),
                }
                for e, quota in account.policy.quotas.items()
            },
        }

    def past_balance(self, account_id: str, at: datetime) -> Answer:
        if at > self.core.now:
            return 400, {"error": {"code": "validation_error", "details": {}}}
        known = [totals for since, *totals in self.history[account_id] if since <= at]
        available, held, overdraft = known[-1] if known else (0, 0, 0)
        figures = {"available": available, "held": held, "overdraft": overdraft}
        return 200, {"account_id": account_id, "at": shown(at), **figures}

    def usage(self, account_id: str, period: str) -> Answer:
        if self.look(account_id) is None:
            return NOT_FOUND
        lines, jobs = self.usage_lines(account_id, period)
        charged, refunded = (sum(line[name] for line in lines) for name in ("credits", "refunded_credits"))
        totals = {"credits": charged, "refunded_credits": refunded, "net_credits": charged - refunded, "jobs": jobs}
        return 200, {
            "from": f"{period}-01",
            "to": f"{period_end(period):%Y-%m-%d}",
            "totals": totals,
            "lines": lines,
        }

    def usage_lines(self, account_id: str, period: str) -> tuple[list[Json], int]:
        by_operation: dict[str, Json] = {}
        jobs = 0
        for key, count in self.core.usage.get(account_id, {}).items():
            if key.period == period:
                jobs += count.first_jobs
                line = by_operation.setdefault(
                    key.operation,
                    {"operation": key.operation, "unit": count.unit, "quantity": 0, "credits": 0, "jobs": 0}
                    | {"refunded_credits": 0},
                )
                line["quantity"] += count.quantity
                line["credits"] += count.credits
                line["refunded_credits"] += count.refunded
                line["jobs"] += count.jobs
        return [line for line in by_operation.values() if line["credits"] or line["refunded_credits"]], jobs

    def statement(self, account_id: str, period: str) -> Answer:
        account = self.look(account_id)
        if account is None:
            return NOT_FOUND
        month = account.peek(period)
        opening = sum(net(earlier) for name, earlier in account.periods.items() if name < period)
        current = period == period_of(self.core.now)
        return 200, {
            "period": period,
            "status": "open",
            "opening_balance": opening,
            "granted": month.granted,
            "adjusted": month.adjusted,
            "charged": month.charged,
            "charged_from_balance": month.charged_to_balance,
            "refunded": month.refunded,
            "refunded_to_balance": month.refunded_to_balance,
            "expired": month.expired,
            "closing_balance": opening + net(month),
            "overage": {"credits": month.overage_used, "usd": usd(month.overage_micro_usd)},
            "overdraft": account.overdraft if current else None,
            "charges": self.usage_lines(account_id, period)[0],
        }


def net(month: Period) -> int:
    came = month.granted + month.adjusted + month.refunded_to_balance
    return came - month.charged_to_balance - month.expired


def read(body: Json, kind: type[T]) -> T:
    return bodies.decoder(kind)(msgspec.json.encode(body))


def shown(value: object) -> Any:
    """Return a value as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def usd(micro: int | None) -> str | None:
    return None if micro is None else overage.usd_text(micro)
