"""An independent model of the ledger: simple, slow, in memory, written from the contract alone.

`Model` has one method per command of the HTTP interface. Each takes a body in the shape of the interface and
says what the service must answer, as `Expected`. It shares no code with the service, and keeps its figures in
another way (most of them are added up again each time): the two are wrong only by different mistakes.

Bodies are taken to be well-formed; only the refusals that are about money are judged. Not modelled: batches,
events, deletion, sweeps, the journal's text. Rule names (`P4`, `J10`) point into the contract.
"""

from __future__ import annotations

import copy
import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from .model_answers import INVALID, NOT_FOUND, Expected, answer, refusal, refusal_of_closed
from .model_books import (
    ENVIRONMENTS,
    OVERAGE,
    OVERAGE_DEFAULTS,
    OVERDRAFT,
    QUOTA_DEFAULTS,
    WELCOME_CREDITS,
    Account,
    Job,
    Piece,
    Refund,
    end_of_period,
    instant_of,
    instant_text,
    period_of,
    seconds_until,
    total,
)
from .model_prices import (
    PRICE_VERSION,
    PRICES,
    TRANSFER_ALLOWANCE,
    Json,
    billed,
    is_call,
    lines_identity,
    unpriced,
    wrong_fraction,
    wrong_switches,
)
from .model_reports import (
    account_view,
    balance_view,
    funding_of_hold,
    grant_view,
    job_view,
    past_balance_view,
    settlement_view,
    statement_view,
    usage_view,
)


class Model:
    """The whole ledger at one instant, moved forward by `advance`."""

    def __init__(self, now: datetime, price_version: str = PRICE_VERSION) -> None:
        self.now = now
        self.price_version = price_version
        self.accounts: dict[str, Account] = {}

    def advance(self, to: datetime) -> None:
        """Move the clock; what falls due on the way happens at its own instant (T1)."""
        assert to >= self.now, "the clock only goes forwards"
        self.now = to
        for account in self.accounts.values():
            account.catch_up(to)

    def check_invariants(self) -> None:
        """Fail unless every account is sound and its months follow on one another (A2, A3, A4, A6)."""
        for account in self.accounts.values():
            account.check(self.now)
            closing = 0
            for period in sorted({*account.flows, *(job.period for job in account.jobs.values())}):
                statement = statement_view(account, period, self.now)
                assert statement["opening_balance"] == closing, f"{period} does not open as the last closed"
                closing = statement["closing_balance"]
                usage = usage_view(account, period)["totals"]
                assert usage["credits"] == statement["charged"], f"usage and statement of {period} differ"
                assert usage["refunded_credits"] == statement["refunded"], f"refunds of {period} differ"
            assert period_of(self.now) >= max(account.flows, default=""), "an entry in the future"

    # Accounts.

    def put_account(self, account_id: str, body: Json) -> Expected:
        """Create or replace: what the body does not name takes its default."""
        policy: Json = {
            "module_enabled": body.get("module_enabled", False),
            "access": body.get("access", "active"),
            "payment_method_verified": body.get("payment_method_verified", False),
            "overage": {**OVERAGE_DEFAULTS, **body.get("overage", {})},
            "environments": dict.fromkeys(ENVIRONMENTS),
        }
        for name, quota in body.get("environments", {}).items():
            policy["environments"][name] = None if quota is None else {**QUOTA_DEFAULTS, **quota}
        if not possible_policy(policy):
            return INVALID
        account = self.accounts.get(account_id)
        status = 201 if account is None else 200
        if account is None:
            account = self.accounts[account_id] = Account(account_id, policy, self.now)
        return self._new_policy(account, policy, status)

    def patch_account(self, account_id: str, body: Json) -> Expected:
        """Change what the body names; nested objects are merged."""
        account = self.accounts.get(account_id)
        if account is None:
            return NOT_FOUND
        policy = copy.deepcopy(account.policy)
        for name in ("module_enabled", "access", "payment_method_verified"):
            policy[name] = body.get(name, policy[name])
        policy["overage"].update(body.get("overage", {}))
        for name, quota in body.get("environments", {}).items():
            before = policy["environments"][name] or QUOTA_DEFAULTS
            policy["environments"][name] = None if quota is None else {**before, **quota}
        if not possible_policy(policy):
            return INVALID
        return self._new_policy(account, policy, 200)

    def _new_policy(self, account: Account, policy: Json, status: int) -> Expected:
        """Let a policy be in force; the welcome arrives at once when the last condition is met (F5)."""
        account.policy = policy
        price = policy["overage"]["credit_price_usd"]
        if price is not None:
            account.prices_seen.add(Decimal(price))
        meets_both = policy["module_enabled"] and policy["payment_method_verified"]
        if meets_both and policy["access"] == "active" and account.welcome_granted_at is None:
            account.welcome_granted_at = self.now
            account.add_grant("welcome", "welcome", WELCOME_CREDITS, None, {}, self.now)
        account.remember(self.now)
        return answer(status, account_view(account))

    def get_account(self, account_id: str) -> Expected:
        account = self.accounts.get(account_id)
        return NOT_FOUND if account is None else answer(200, account_view(account))

    def put_cycle(self, account_id: str, month: str, status: str) -> Expected:
        """Note how a cycle was paid; whether saying the same again is an update is left open."""
        account = self.accounts.get(account_id)
        if account is None:
            return NOT_FOUND
        before = account.cycles.get(month)
        account.cycles[month] = status
        body: Json = {"cycle": month, "status": status}
        if before != status:
            body["updated_at"] = instant_text(self.now)
        return answer(201 if before is None else 200, body)

    def put_grant(self, account_id: str, grant_id: str, body: Json) -> Expected:
        """Add credits, or take some away with a negative adjustment."""
        kind, amount = body["kind"], body["credits"]
        ours = grant_id == "welcome" or grant_id.startswith("refund-")
        if ours or kind == "welcome" or amount == 0 or (amount < 0 and kind != "adjustment"):
            return INVALID
        account = self.accounts.get(account_id)
        if account is None:
            return NOT_FOUND
        expires_at = None if body.get("expires_at") is None else instant_of(body["expires_at"])
        reference = body.get("reference")
        request = {"kind": kind, "credits": amount, "expires_at": expires_at, "reference": reference}
        known = account.grants.get(grant_id)
        if known is not None:
            if known.request != request:
                return refusal("idempotency_key_reused")
            view = grant_view(account, known)
            del view["remaining"], view["held"]
            created_at = instant_text(known.created_at)
            return answer(200, {**view, "reference": reference, "created_at": created_at})
        if expires_at is not None and expires_at <= self.now:
            return INVALID
        available = account.available(self.now)
        if amount < 0 and -amount > available:
            return refusal("insufficient_credits", required_credits=-amount, available_credits=available)
        if kind == "plan" and expires_at is None:
            expires_at = end_of_period(period_of(self.now))
        grant = account.add_grant(grant_id, kind, amount, expires_at, request, self.now)
        account.remember(self.now)
        made = {"reference": reference, "created_at": instant_text(self.now)}
        return answer(201, {**grant_view(account, grant), **made})

    # Jobs.

    def reserve(self, account_id: str, job_id: str, body: Json) -> Expected:
        """Hold credits before the work (J2), judged in the order of Q6."""
        lines, environment = body["lines"], body["environment"]
        transferable, allow_partial = body.get("transferable", False), body.get("allow_partial", False)
        if wrong_fraction(lines) or wrong_switches(lines, transferable or allow_partial):
            return INVALID
        account = self.accounts.get(account_id)
        repeated = None if account is None else self._reserved_before(account, job_id, body)
        if repeated is not None:
            return repeated
        if unpriced(lines):
            return refusal("operation_not_priced")
        if account is None or not may_operate(account, environment):
            return refusal("gateway_not_enabled")

        allowance = TRANSFER_ALLOWANCE if transferable else 0
        wanted = sum(billed(line["operation"], line["quantity"])[1] for line in lines) + allowance
        first = PRICES[lines[0]["operation"]]
        without_first = wanted - billed(lines[0]["operation"], lines[0]["quantity"])[1]
        smallest = without_first + first.credits_per_step if allow_partial else wanted
        refused = self._refused_by_quotas(account, environment, smallest, call=is_call(lines))
        if refused is not None:
            return refused
        spendable = account.available(self.now) + account.overage_headroom(period_of(self.now))
        if account.overdraft() or smallest > spendable:
            return self._short_of_funds(account, smallest, partial=allow_partial)

        rows = [self._reserved_line(line, line["quantity"]) for line in lines]
        covered = min(spendable, self._left_of_quota(account, environment))
        if wanted > covered:
            steps = int(covered - without_first) // first.credits_per_step
            rows[0] = self._reserved_line(lines[0], steps * first.per)
        return self._held(account, job_id, body, rows, allowance=allowance, partial=wanted > covered)

    def _held(
        self, account: Account, job_id: str, body: Json, rows: list[Json], *, allowance: int, partial: bool
    ) -> Expected:
        """Hold what the rows and the allowance come to: the reservation that nothing refuses any more."""
        held = sum(row["credits"] for row in rows) + allowance
        hold = account.take(held, self.now)
        if held > total(hold):
            hold.append(Piece(OVERAGE, held - total(hold)))
        expires_at = self.now + timedelta(seconds=body.get("ttl_seconds") or 900)
        reservation = {
            "job_id": job_id,
            "account_id": account.account_id,
            "environment": body["environment"],
            "operation": rows[0]["operation"],
            "status": "reserved",
            "period": period_of(self.now),
            "price_version": self.price_version,
            "lines": rows,
            "transfer_allowance": allowance,
            "held_credits": held,
            "partial": partial,
            "funding": funding_of_hold(hold),
            "created_at": instant_text(self.now),
            "expires_at": instant_text(expires_at),
        }
        account.jobs[job_id] = Job(
            job_id=job_id,
            environment=body["environment"],
            identity=identity_of(body),
            request=copy.deepcopy(body),
            call=is_call(body["lines"]),
            period=period_of(self.now),
            created_at=self.now,
            expires_at=expires_at,
            reservation=reservation,
            held_credits=held,
            hold=hold,
            order=len(account.jobs),
        )
        if body.get("idempotency_key") is not None:
            account.keys[body["environment"], body["idempotency_key"]] = job_id
        account.remember(self.now)
        return answer(201, reservation)

    def _refused_by_quotas(self, account: Account, environment: str, smallest: int, *, call: bool) -> Expected | None:
        """The refusal of a ceiling if there is one: what can never fit, slots, what is left of the period."""
        quota = account.policy["environments"][environment]
        if quota["period_credits"] is not None and smallest > quota["period_credits"]:
            return refusal("request_exceeds_period_quota")
        slots = account.open_in(environment, call=call)
        if call and len(slots) >= quota["max_calls"]:
            waits = [seconds_until(job.expires_at, self.now) for job in slots]
            return refusal("call_concurrency_limit_reached", retry_after=min([30, *waits]))
        if not call and len(slots) >= quota["max_requests"]:
            return refusal("concurrency_limit_reached", retry_after=1)
        if smallest > self._left_of_quota(account, environment):
            ends = end_of_period(period_of(self.now))
            wait = seconds_until(ends, self.now)
            return refusal("period_quota_exhausted", retry_after=wait, resets_at=instant_text(ends))
        return None

    def _left_of_quota(self, account: Account, environment: str) -> float:
        """What is left of the period's ceiling; without one there is no end to it (Q3)."""
        ceiling, period = account.policy["environments"][environment]["period_credits"], period_of(self.now)
        if ceiling is None:
            return math.inf
        used = account.environment_used(environment, period)
        return int(ceiling) - used - account.environment_held(environment, period)

    def _reserved_line(self, line: Json, quantity: int | float) -> Json:
        units, cost = billed(line["operation"], quantity)
        return {
            "operation": line["operation"],
            "unit": PRICES[line["operation"]].unit,
            "requested_quantity": line["quantity"],
            "reserved_quantity": quantity,
            "billable_quantity": units,
            "credits": cost,
        }

    def _short_of_funds(self, account: Account, required: int, *, partial: bool) -> Expected:
        """Which 402 it is (F6, O5, J12); its figures are predicted only where they have one meaning."""
        if account.overage_usable() and not account.overdraft():
            return refusal("spending_cap_reached", cap_credits=account.cap_credits())
        if partial:
            return refusal("insufficient_credits")
        available = account.available(self.now)
        return refusal("insufficient_credits", required_credits=required, available_credits=available)

    def _reserved_before(self, account: Account, job_id: str, body: Json) -> Expected | None:
        """The answer to a job or a key that is already known, or None for a new one (J10)."""
        job = account.jobs.get(job_id)
        same_id = job is not None
        if job is None:
            of_key = account.keys.get((body["environment"], body.get("idempotency_key") or ""))
            job = None if of_key is None else account.jobs[of_key]
            if job is None or (job.status == "released" and not job.originated):
                return None
        if job.identity != identity_of(body):
            code = "idempotency_key_reused"
            return refusal(code) if job.open else refusal_of_closed(code, job)
        if job.open:
            if same_id:
                return answer(200, job.reservation)
            return refusal("request_in_flight", retry_after=seconds_until(job.expires_at, self.now))
        if job.status == "expired":
            return refusal_of_closed("job_not_completed", job)
        if job.status == "settled" and job.result_state(self.now) != "available":
            return refusal_of_closed("result_not_replayable", job)
        return answer(200, {**job_view(job, self.now), "replayed": True})

    def settle(self, account_id: str, job_id: str, body: Json) -> Expected:
        """Bill what was consumed and give the rest of the hold back (J3)."""
        lines = body["lines"]
        if wrong_fraction(lines):
            return INVALID
        account, job = self._find(account_id, job_id)
        if account is None or job is None:
            return NOT_FOUND
        if job.status == "settled":
            if job.settled_identity != lines_identity(lines):
                return refusal_of_closed("idempotency_key_reused", job)
            return answer(200, settlement_view(job, self.now))
        if not job.open:
            return refusal_of_unsettled(job)
        if unpriced(lines):
            return refusal("operation_not_priced")

        rows = []
        for line in lines:
            units, cost = billed(line["operation"], line["quantity"])
            rows.append(
                {
                    "operation": line["operation"],
                    "unit": PRICES[line["operation"]].unit,
                    "measured_quantity": line["quantity"],
                    "quantity": units,
                    "credits": cost,
                }
            )
        sources = account.charge_job(job, [(row["operation"], row["credits"]) for row in rows], self.now)
        charged = sum(row["credits"] for row in rows)
        overage = total(piece for piece in sources if piece.source == OVERAGE)
        overdraft = total(piece for piece in sources if piece.source == OVERDRAFT)
        own = [row for row in rows if row["operation"] == job.operation]
        job.settled_identity = lines_identity(lines)
        job.result = body.get("result") if body.get("result_stored", True) else None
        job.settlement = {
            "job_id": job_id,
            "status": "settled",
            "usage": {
                "operation": job.operation,
                "unit": PRICES[job.operation].unit,
                "quantity": sum(row["quantity"] for row in own),
                "credits": sum(row["credits"] for row in own),
            },
            "lines": rows,
            "credits_charged": charged,
            "credits_returned": max(0, job.held_credits - charged),
            "credits_over_hold": max(0, charged - job.held_credits),
            "funding": {"balance": charged - overage - overdraft, "overage": overage, "overdraft": overdraft},
            "settled_at": instant_text(self.now),
        }
        account.remember(self.now)
        return answer(200, settlement_view(job, self.now))

    def release(self, account_id: str, job_id: str, body: Json) -> Expected:
        """Give the hold back whole (J4)."""
        account, job = self._find(account_id, job_id)
        if account is None or job is None:
            return NOT_FOUND
        if job.status == "released":
            return answer(200, job.release)
        if not job.open:
            return refusal_of_closed("job_already_closed" if job.status == "settled" else "job_not_completed", job)
        job.error_code = body.get("error_code")
        job.originated = body.get("originated", True)
        job.release = {
            "job_id": job_id,
            "status": "released",
            "credits_charged": 0,
            "credits_returned": account.close_unused(job, "released", self.now),
            "error_code": job.error_code,
            "released_at": instant_text(self.now),
        }
        account.remember(self.now)
        return answer(200, job.release)

    def refund(self, account_id: str, job_id: str, body: Json) -> Expected:
        """Give back all or part of a charge (J13)."""
        refund_id, asked = body["refund_id"], body.get("credits")
        if asked is not None and asked <= 0:
            return INVALID
        account, job = self._find(account_id, job_id)
        if account is None or job is None:
            return NOT_FOUND
        known = account.refunds.get(refund_id)
        if known is not None:
            wanted = known.left_before if asked is None else asked
            if known.job_id == job_id and wanted == known.credits:
                return answer(200, known.body)
            return refusal("idempotency_key_reused")
        if job.open:
            return refusal("request_in_flight", retry_after=seconds_until(job.expires_at, self.now))
        if job.status != "settled":
            return refusal_of_unsettled(job)
        refunded = total(job.refunds)
        left = (job.credits_charged or 0) - refunded
        amount = left if asked is None else asked
        if amount == 0 or amount > left:
            return INVALID
        funding, by_operation = account.refund_job(job, refund_id, amount, self.now)
        body = {
            "refund_id": refund_id,
            "job_id": job_id,
            "credits": amount,
            "credits_refunded": refunded + amount,
            "funding": funding,
            "created_at": instant_text(self.now),
        }
        refund = Refund(refund_id, job_id, amount, left, period_of(self.now), by_operation, body)
        job.refunds.append(refund)
        account.refunds[refund_id] = refund
        account.remember(self.now)
        return answer(201, body)

    def get_job(self, account_id: str, job_id: str, environment: str | None = None) -> Expected:
        """One job; of another environment than asked for it does not exist (J11)."""
        _, job = self._find(account_id, job_id)
        if job is None or environment not in (None, job.environment):
            return NOT_FOUND
        return answer(200, job_view(job, self.now))

    def _find(self, account_id: str, job_id: str) -> tuple[Account | None, Job | None]:
        account = self.accounts.get(account_id)
        return account, None if account is None else account.jobs.get(job_id)

    # Prices, balances, usage, statements.

    def quote(self, body: Json) -> Expected:
        """What some lines would cost; nothing is held."""
        lines, transferable = body["lines"], body.get("transferable", False)
        if wrong_fraction(lines) or wrong_switches(lines, transferable):
            return INVALID
        if unpriced(lines):
            return refusal("operation_not_priced")
        rows = []
        for line in lines:
            units, cost = billed(line["operation"], line["quantity"])
            unit = PRICES[line["operation"]].unit
            rows.append({"operation": line["operation"], "unit": unit, "quantity": units, "credits": cost})
        splits = transferable and lines[0]["operation"] == "voice_call_minute" and lines[0]["quantity"]
        allowance = TRANSFER_ALLOWANCE if splits else 0
        body = {
            "lines": rows,
            "transfer_allowance": allowance,
            "credits": sum(row["credits"] for row in rows) + allowance,
            "price_version": self.price_version,
        }
        return answer(200, body)

    def balance(self, account_id: str, at: datetime | None = None) -> Expected:
        """The balance now, or its totals at the end of a past instant."""
        account = self.accounts.get(account_id)
        if account is None:
            return NOT_FOUND
        if at is None:
            return answer(200, balance_view(account, self.now))
        return INVALID if at > self.now else answer(200, past_balance_view(account, at))

    def usage(self, account_id: str, period: str) -> Expected:
        account = self.accounts.get(account_id)
        return NOT_FOUND if account is None else answer(200, usage_view(account, period))

    def statement(self, account_id: str, period: str) -> Expected:
        account = self.accounts.get(account_id)
        return NOT_FOUND if account is None else answer(200, statement_view(account, period, self.now))

    # For whoever drives the model: instants worth going to.

    def deadlines(self) -> list[datetime]:
        """The instants at which time alone will change something, soonest first."""
        instants = {end_of_period(period_of(self.now))}
        for account in self.accounts.values():
            instants |= {job.expires_at for job in account.open_jobs()}
            instants |= {grant.expires_at for grant in account.grants.values() if grant.expires_at}
            instants |= {
                job.closed_at + timedelta(hours=24)
                for job in account.jobs.values()
                if job.closed_at is not None and job.result_state(self.now) == "available"
            }
        return sorted(instant for instant in instants if instant > self.now)


def refusal_of_unsettled(job: Job) -> Expected:
    """The refusal to settle or refund what was released or has expired (J6)."""
    return refusal_of_closed("job_already_closed" if job.status == "released" else "job_not_completed", job)


def possible_policy(policy: Json) -> bool:
    """Overage cannot be on without the price of a credit (O7)."""
    overage = policy["overage"]
    return not (overage["enabled"] and overage["credit_price_usd"] is None)


def may_operate(account: Account, environment: str) -> bool:
    """Q1: the module, access, and a quota row for the environment."""
    if not account.policy["module_enabled"] or account.policy["access"] != "active":
        return False
    return account.policy["environments"][environment] is not None


def identity_of(body: Json) -> tuple[Any, ...]:
    """What makes two reservations the same: never the ttl, the metadata or the key."""
    if body.get("fingerprint") is not None:
        return (body["environment"], "fingerprint", body["fingerprint"])
    switches = (bool(body.get("transferable", False)), bool(body.get("allow_partial", False)))
    return (body["environment"], "parameters", lines_identity(body["lines"]), *switches)
