"""The state of one account in the model, and every way in which credits move in it.

Figures are derived where they can be (what is held, the overdraft, what an environment used), so that there
is little to keep in step; `check` proves the rest. It is slow, and meant to be read next to the contract.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

from .model_prices import Json

ENVIRONMENTS = ("test", "live")
QUOTA_DEFAULTS: Json = {"max_requests": 10, "max_calls": 5, "period_credits": None}
OVERAGE_DEFAULTS: Json = {"enabled": False, "cap_usd": None, "credit_price_usd": None}
WELCOME_CREDITS = 3000
RETENTION = timedelta(hours=24)

OVERAGE = "overage"
OVERDRAFT = "overdraft"


def period_of(instant: datetime) -> str:
    """The calendar month in UTC an instant is in; midnight on the 1st is in the new one (T2)."""
    return f"{instant:%Y-%m}"


def end_of_period(period: str) -> datetime:
    """The first instant that is no longer in the month."""
    year, month = int(period[:4]), int(period[5:])
    return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def instant_text(instant: datetime) -> str:
    """An instant as the interface writes it: UTC with `Z`, microseconds only when there are any."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def instant_of(text: str) -> datetime:
    """The instant that a text of the interface names."""
    return datetime.fromisoformat(text).astimezone(UTC)


def seconds_until(later: datetime, now: datetime) -> int:
    """Whole seconds to wait, rounded up."""
    return -((now - later) // timedelta(seconds=1))


class HasCredits(Protocol):
    """A piece, a refund: whatever is some credits."""

    credits: int


def total(pieces: Iterable[HasCredits]) -> int:
    """The credits of some pieces or refunds."""
    return sum(piece.credits for piece in pieces)


@dataclass(eq=False)
class Piece:
    """Some credits and their source: `grant:<id>`, `overage`, `overdraft`; in a charge, the operation too."""

    source: str
    credits: int
    operation: str = ""

    @property
    def grant_id(self) -> str | None:
        return self.source.removeprefix("grant:") if self.source.startswith("grant:") else None


@dataclass
class Grant:
    """Credits that came in. A negative adjustment is one too: nothing ever remains of it."""

    grant_id: str
    kind: str
    granted: int
    expires_at: datetime | None
    reference: str | None
    created_at: datetime
    order: int
    request: Json
    remaining: int
    expired: int = 0
    adjusted_away: int = 0
    refunded_elsewhere: int = 0

    def ended(self, now: datetime) -> bool:
        """Whether the grant is over: from the instant `expires_at` on (T1)."""
        return self.expires_at is not None and self.expires_at <= now

    def spending_key(self) -> tuple[bool, datetime, bool, int]:
        """The place in the order of spending (F2)."""
        if self.expires_at is not None:
            return (False, self.expires_at, False, self.order)
        return (True, datetime.max.replace(tzinfo=UTC), self.kind != "welcome", self.order)


@dataclass
class Refund:
    """One refund: what it was, and what its line says in the month it was made in."""

    refund_id: str
    job_id: str
    credits: int
    left_before: int
    period: str
    by_operation: Counter[str]
    body: Json


@dataclass
class Job:
    """One reservation and all that became of it."""

    job_id: str
    environment: str
    identity: tuple[Any, ...]
    request: Json
    call: bool
    period: str
    created_at: datetime
    expires_at: datetime
    reservation: Json
    held_credits: int
    hold: list[Piece]
    order: int
    status: str = "reserved"
    closed_at: datetime | None = None
    charge: list[Piece] = field(default_factory=list)
    credits_charged: int | None = None
    charged_from_overage: int = 0
    settled_identity: tuple[Any, ...] = ()
    settlement: Json = field(default_factory=dict)
    result: Any = None
    error_code: str | None = None
    originated: bool = True
    release: Json = field(default_factory=dict)
    refunds: list[Refund] = field(default_factory=list)

    @property
    def operation(self) -> str:
        return str(self.reservation["operation"])

    @property
    def open(self) -> bool:
        return self.status == "reserved"

    def breakdown_kept(self, now: datetime) -> bool:
        """Whether result and breakdown are still there: 24 h from the close (R1, T1)."""
        return self.closed_at is not None and now < self.closed_at + RETENTION

    def result_state(self, now: datetime) -> str:
        """R8."""
        if self.open:
            return "pending"
        if self.status != "settled":
            return "unavailable"
        if self.result is None:
            return "not_stored"
        return "available" if self.breakdown_kept(now) else "expired"


class Account:
    """One customer account: what it may do, what it has, what it did."""

    def __init__(self, account_id: str, policy: Json, now: datetime) -> None:
        self.account_id = account_id
        self.policy = policy
        self.prices_seen: set[Decimal] = set()
        self.created_at = now
        self.welcome_granted_at: datetime | None = None
        self.cycles: dict[str, str] = {}
        self.grants: dict[str, Grant] = {}
        self.jobs: dict[str, Job] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.refunds: dict[str, Refund] = {}
        self.settled: list[str] = []
        self.overage_used: Counter[str] = Counter()
        self.overage_refunded_late: Counter[str] = Counter()
        self.flows: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.history: list[tuple[datetime, int, int, int]] = []

    # What the account has.

    def available(self, now: datetime) -> int:
        """What a reservation could take from the balance now."""
        return sum(grant.remaining for grant in self.grants.values() if not grant.ended(now))

    def open_jobs(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.open]

    def held_of_grant(self, grant_id: str) -> int:
        return total([p for job in self.open_jobs() for p in job.hold if p.grant_id == grant_id])

    def held(self) -> int:
        """What is held of grants."""
        return total([p for job in self.open_jobs() for p in job.hold if p.source != OVERAGE])

    def overage_held(self, period: str) -> int:
        """What is held of the overage of one period, that in which the job was reserved (J14)."""
        jobs = [job for job in self.open_jobs() if job.period == period]
        return total(piece for job in jobs for piece in job.hold if piece.source == OVERAGE)

    def overdraft(self) -> int:
        """What was charged and no source has covered yet (J12)."""
        return total([p for job in self.jobs.values() for p in job.charge if p.source == OVERDRAFT])

    def environment_used(self, environment: str, period: str) -> int:
        """What counts as used of a period's ceiling: charges, whatever was refunded since (J13, J14)."""
        mine = [j for j in self.jobs.values() if j.environment == environment and j.period == period]
        return sum(job.credits_charged or 0 for job in mine)

    def environment_held(self, environment: str, period: str) -> int:
        mine = [j for j in self.open_jobs() if j.environment == environment and j.period == period]
        return sum(total(job.hold) for job in mine)

    def open_in(self, environment: str, *, call: bool) -> list[Job]:
        """The jobs that take up a slot: all that are open, whatever month they are of (Q4)."""
        return [j for j in self.open_jobs() if j.environment == environment and j.call is call]

    # Overage (O1 to O7).

    def paid_cycles(self) -> int:
        """Cycles paid on time since the last that was not, in the order of their months (O3, O4)."""
        count = 0
        for _, status in sorted(self.cycles.items()):
            if status == "paid_on_time":
                count += 1
            elif status in ("overdue", "returned", "paid_late"):
                count = 0
        return count

    def ceiling_usd(self) -> Decimal:
        paid = self.paid_cycles()
        return Decimal("500") if paid >= 6 else Decimal("100") if paid >= 3 else Decimal("20")

    def effective_cap_usd(self) -> Decimal:
        own = self.policy["overage"]["cap_usd"]
        return self.ceiling_usd() if own is None else min(Decimal(own), self.ceiling_usd())

    def cap_credits(self) -> int | None:
        price = self.policy["overage"]["credit_price_usd"]
        if price is None:
            return None
        return int(Fraction(self.effective_cap_usd()) / Fraction(Decimal(price)))

    def overage_usable(self) -> bool:
        """Switched on and with a verified payment method (O1), however little of the cap is left."""
        return bool(self.policy["overage"]["enabled"] and self.policy["payment_method_verified"])

    def overage_headroom(self, period: str) -> int:
        """How many more credits of overage the period has room for now: none unless it is usable (O5, O7)."""
        cap = self.cap_credits()
        if not self.overage_usable() or cap is None:
            return 0
        return max(0, cap - self.overage_used[period] - self.overage_held(period))

    # How credits move.

    def spending_order(self, now: datetime) -> list[Grant]:
        """The grants that have something left, first the one that is spent first (F2)."""
        usable = [g for g in self.grants.values() if g.remaining > 0 and not g.ended(now)]
        return sorted(usable, key=Grant.spending_key)

    def take(self, wanted: int, now: datetime) -> list[Piece]:
        """Take up to `wanted` credits from what is available, in spending order."""
        pieces = []
        for grant in self.spending_order(now):
            taken = min(grant.remaining, wanted)
            if taken > 0:
                grant.remaining -= taken
                wanted -= taken
                pieces.append(Piece(f"grant:{grant.grant_id}", taken))
        return pieces

    def put_back(self, pieces: list[Piece], now: datetime) -> None:
        """Give credits of a hold back (F2): to a grant that has ended they expire, and pay nothing (T4).

        Overage that is given back is simply no longer held. What the grants got back pays an overdraft first.
        """
        for piece in pieces:
            if piece.grant_id is not None:
                grant = self.grants[piece.grant_id]
                if grant.ended(now):
                    self.expire(grant, piece.credits)
                else:
                    grant.remaining += piece.credits
        self.pay_overdraft(now)

    def pay_overdraft(self, now: datetime) -> None:
        """Cover the overdraft from whatever is available (J12, F4): oldest charge first, in spending order.

        The part of a charge that a grant pays is from then on that grant's.
        """
        for grant in self.spending_order(now):
            for job_id in self.settled:
                charge = self.jobs[job_id].charge
                for piece in [p for p in charge if p.source == OVERDRAFT]:
                    paid = min(grant.remaining, piece.credits)
                    if paid == 0:
                        continue
                    grant.remaining -= paid
                    piece.credits -= paid
                    now_of_grant = Piece(f"grant:{grant.grant_id}", paid, piece.operation)
                    charge.insert(charge.index(piece), now_of_grant)
                    if piece.credits == 0:
                        charge.remove(piece)

    def expire(self, grant: Grant, amount: int) -> None:
        """Let credits of an ended grant go; they belong to the month that ended with it (T4)."""
        assert grant.expires_at is not None
        grant.expired += amount
        self.flows[period_of(grant.expires_at - timedelta(microseconds=1))]["expired"] += amount

    def add_grant(
        self,
        grant_id: str,
        kind: str,
        amount: int,
        expires_at: datetime | None,
        request: Json,
        now: datetime,
    ) -> Grant:
        """Add credits, which pay an overdraft first (F4). A negative number takes from what is available."""
        grant = Grant(
            grant_id=grant_id,
            kind=kind,
            granted=amount,
            expires_at=expires_at,
            reference=request.get("reference"),
            created_at=now,
            order=len(self.grants),
            request=request,
            remaining=max(0, amount),
        )
        self.grants[grant_id] = grant
        flow = "adjusted" if kind == "adjustment" else "granted"
        if grant_id.startswith("refund-"):
            flow = "refunded_to_balance"
        self.flows[period_of(now)][flow] += amount
        if amount < 0:
            for piece in self.take(-amount, now):
                assert piece.grant_id is not None
                self.grants[piece.grant_id].adjusted_away += piece.credits
        self.pay_overdraft(now)
        return grant

    def charge_job(self, job: Job, lines: list[tuple[str, int]], now: datetime) -> list[Piece]:
        """Pay for what a job consumed (F3, J12), give the rest of its hold back; return how it was paid."""
        wanted = sum(amount for _, amount in lines)
        paid, returned = cut(job.hold, wanted)
        job.hold = []
        job.status = "settled"
        job.closed_at = now
        self.settled.append(job.job_id)

        headroom = self.overage_headroom(job.period)
        headroom -= total([p for p in paid if p.source == OVERAGE])
        over = wanted - total(paid)
        from_balance = self.take(over, now)
        over -= total(from_balance)
        from_overage = min(over, max(0, headroom))
        over -= from_overage
        sources = [*paid, *from_balance, Piece(OVERAGE, from_overage), Piece(OVERDRAFT, over)]
        sources = [piece for piece in sources if piece.credits > 0]

        job.charge = shared_out(lines, sources)
        job.credits_charged = wanted
        job.charged_from_overage = total([p for p in sources if p.source == OVERAGE])
        self.overage_used[job.period] += job.charged_from_overage
        self.flows[job.period]["charged_from_balance"] += wanted - job.charged_from_overage
        self.put_back(returned, now)
        return sources

    def close_unused(self, job: Job, status: str, at: datetime) -> int:
        """Close an open job without a charge: its hold goes back whole (J4, J5)."""
        returned, job.hold = job.hold, []
        job.status = status
        job.closed_at = at
        job.credits_charged = 0
        self.put_back(returned, at)
        return total(returned)

    def refund_job(self, job: Job, refund_id: str, amount: int, now: datetime) -> tuple[Json, Counter[str]]:
        """Give part of a charge back to where it came from, in reverse order (J13)."""
        funding: Json = {"balance": 0, "overage": 0, "overdraft": 0}
        by_operation: Counter[str] = Counter()
        homeless = 0
        for piece in reversed(list(job.charge)):
            back = min(piece.credits, amount)
            if back == 0:
                continue
            amount -= back
            piece.credits -= back
            if piece.credits == 0:
                job.charge.remove(piece)
            by_operation[piece.operation] += back
            if piece.source == OVERDRAFT:
                funding["overdraft"] += back
            elif piece.source == OVERAGE and job.period == period_of(now):
                funding["overage"] += back
                self.overage_used[job.period] -= back
            else:
                funding["balance"] += back
                grant = None if piece.grant_id is None else self.grants[piece.grant_id]
                if grant is not None and not grant.ended(now):
                    grant.remaining += back
                else:
                    homeless += back
                if grant is not None and grant.ended(now):
                    grant.refunded_elsewhere += back
                if grant is None:
                    self.overage_refunded_late[job.period] += back
        flow = self.flows[period_of(now)]
        flow["refunded_to_balance"] += funding["balance"] + funding["overdraft"] - homeless
        flow["refunded"] += sum(funding.values())
        if homeless:
            self.add_grant(f"refund-{refund_id}", "adjustment", homeless, None, {}, now)
        self.pay_overdraft(now)
        return funding, by_operation

    # Time (T1 to T4).

    def catch_up(self, now: datetime) -> None:
        """Apply all that is due by now, each at its own instant, in their order."""
        while True:
            holds = [(job.expires_at, 0, job.order, job) for job in self.open_jobs() if job.expires_at <= now]
            ends = [
                (grant.expires_at, 1, grant.order, grant)
                for grant in self.grants.values()
                if grant.expires_at is not None and grant.expires_at <= now and grant.remaining > 0
            ]
            due: list[tuple[datetime, int, int, Job | Grant]] = [*holds, *ends]
            due.sort(key=lambda item: item[:3])
            if not due:
                return
            at, _, _, what = due[0]
            if isinstance(what, Job):
                self.close_unused(what, "expired", at)
            else:
                left, what.remaining = what.remaining, 0
                self.expire(what, left)
            self.remember(at)

    def remember(self, at: datetime) -> None:
        """Note the totals as they are from this instant on, for a balance of the past."""
        self.history.append((at, self.available(at), self.held(), self.overdraft()))

    # What must always be true.

    def check(self, now: datetime) -> None:
        """Fail unless the account's figures are sound (A2, A3, A6)."""
        overdraft = self.overdraft()
        assert not (overdraft and self.available(now)), "something is available while there is an overdraft"
        welcomes = [grant for grant in self.grants.values() if grant.kind == "welcome"]
        assert len(welcomes) <= 1, "a second welcome"
        charges = [piece for job in self.jobs.values() for piece in job.charge]
        for grant in self.grants.values():
            assert grant.remaining >= 0, f"{grant.grant_id} is below zero"
            assert not (grant.ended(now) and grant.remaining), f"{grant.grant_id} outlived its end"
            charged = total([piece for piece in charges if piece.grant_id == grant.grant_id])
            gone = charged + grant.expired + grant.adjusted_away + grant.refunded_elsewhere
            gone += self.held_of_grant(grant.grant_id)
            assert max(0, grant.granted) == grant.remaining + gone, f"{grant.grant_id} does not add up"
        overage: Counter[str] = Counter(self.overage_refunded_late)
        for job in self.jobs.values():
            charged, refunded = job.credits_charged or 0, total(job.refunds)
            assert total(job.hold) == (job.held_credits if job.open else 0), f"the hold of {job.job_id}"
            assert total(job.charge) == charged - refunded, f"the charge of {job.job_id}"
            assert refunded <= charged, f"{job.job_id} was refunded more than it was charged"
            assert all(piece.credits > 0 for piece in job.charge + job.hold), f"an empty piece: {job.job_id}"
            overage[job.period] += total(piece for piece in job.charge if piece.source == OVERAGE)
        assert overage == self.overage_used, "the overage used is not that of the charges"
        balance = sum(g.remaining for g in self.grants.values()) + self.held() - overdraft
        assert balance == sum(net_flow(flow) for flow in self.flows.values()), "the statements do not add up"


def net_flow(flow: Counter[str]) -> int:
    """What a month did to the balance: the identity of a statement."""
    return (
        flow["granted"]
        + flow["adjusted"]
        + flow["refunded_to_balance"]
        - flow["charged_from_balance"]
        - flow["expired"]
    )


def cut(pieces: list[Piece], amount: int) -> tuple[list[Piece], list[Piece]]:
    """Divide pieces into the first `amount` credits of them and the rest."""
    first, rest = [], []
    for piece in pieces:
        here = min(piece.credits, amount)
        amount -= here
        if here:
            first.append(Piece(piece.source, here, piece.operation))
        if piece.credits > here:
            rest.append(Piece(piece.source, piece.credits - here, piece.operation))
    return first, rest


def shared_out(lines: list[tuple[str, int]], sources: list[Piece]) -> list[Piece]:
    """Say which source paid which line: the first line has the first credits."""
    pieces: list[Piece] = []
    for operation, amount in lines:
        mine, sources = cut(sources, amount)
        pieces.extend(Piece(piece.source, piece.credits, operation) for piece in mine)
    return pieces
