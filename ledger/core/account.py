"""The state of one account in memory, and everything that changed in it.

A store loads an `Account`, `decide` changes it, and the store writes what it collected: entries, and every row that a
decision touched. Nothing here knows how it is stored.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from ledger.core import books
from ledger.core.books import Entry, EntryKind, Posting
from ledger.core.commands import (
    BroughtUp,
    ChargeFunding,
    CycleDone,
    DeletionStatus,
    Environment,
    Funding,
    GrantKind,
    JobStatus,
    Record,
    RefundDone,
    ReservedLine,
    SettledLine,
)
from ledger.core.overage import CycleStatus, cap_credits, effective_cap
from pricing.catalog import Slot

RESULT_KEPT = timedelta(hours=24)
"""How long a job's breakdown and result live from its close (R1)."""

FROM_OVERAGE = 0
FROM_OVERDRAFT = -1
"""Sources of credits are grants by their number (from 1 on), or one of these two."""

Source = tuple[int, int]
"""A source and the credits it gives to a hold."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A part of a charge that can still be refunded: what it was for, and which source paid it (J13)."""

    operation: str
    source: int
    credits: int


class Quota(msgspec.Struct, frozen=True):
    """The ceilings of one environment (Q3, Q4); the numbers an account starts with (Q5)."""

    max_requests: int = 10
    max_calls: int = 5
    period_credits: int | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What operators set: switches, overage in micro-dollars, quotas by environment (no key is no quota row, Q1)."""

    module_enabled: bool = False
    suspended: bool = False
    payment_method_verified: bool = False
    overage_enabled: bool = False
    cap_usd: int | None = None
    credit_price_usd: int | None = None
    quotas: dict[Environment, Quota] = {}


class Grant(msgspec.Struct):
    """Credits with an origin and maybe an end. `number` is the entry that put it."""

    number: int
    grant_id: str
    kind: GrantKind
    granted: int
    remaining: int
    held: int
    expires_at: datetime | None
    reference: str | None
    created_at: datetime
    request: bytes
    """A fingerprint of the body that put it, to tell a repetition from another grant."""

    @property
    def live(self) -> bool:
        """Whether it still has something, free or held."""
        return self.remaining > 0 or self.held > 0

    def ended(self, now: datetime) -> bool:
        """Whether its time is over at an instant: from `expires_at` on it is (T1)."""
        return self.expires_at is not None and self.expires_at <= now


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended. `at` is the deadline for an expiry, else when it was closed."""

    entry: int
    at: datetime
    charged: int
    returned: int
    over_hold: int = 0
    funding: ChargeFunding = ChargeFunding(0, 0, 0)
    error_code: str | None = None
    request: bytes = b""
    """A fingerprint of the lines it was settled with."""
    result_stored: bool = False
    result: bytes | None = None
    """The result to keep for 24 hours (R1): there only while the close is written."""
    record: Record = Record()
    """What is known of the request that the job served (R3): there only while the close is written."""


class Job(msgspec.Struct, kw_only=True):
    """A job, from its reservation on. `number` is the entry that reserved it."""

    number: int
    job_id: str
    environment: Environment
    operation: str
    slot: Slot
    period: str
    price_version: str
    lines: tuple[ReservedLine, ...]
    transfer_allowance: int
    held_credits: int
    partial: bool
    funding: Funding
    sources: tuple[Source, ...]
    created_at: datetime
    expires_at: datetime
    request: bytes
    idempotency_key: str | None = None
    metadata: bytes | None = None
    status: JobStatus = "reserved"
    closing: Closing | None = None
    segments: tuple[Segment, ...] = ()
    refunded: int = 0
    settled_lines: tuple[SettledLine, ...] | None = None
    """The breakdown of a settled job, where it was loaded and is still kept."""

    @property
    def open(self) -> bool:
        """Whether its hold is still there."""
        return self.status == "reserved"

    def kept(self, now: datetime) -> bool:
        """Whether the breakdown and the result of a settled job are still kept (R1, T1)."""
        return self.closing is not None and now < self.closing.at + RESULT_KEPT

    @property
    def overdraft(self) -> int:
        """How many credits of its charge nobody has paid yet (J12)."""
        return sum(s.credits for s in self.segments if s.source == FROM_OVERDRAFT)


class Period(msgspec.Struct):
    """One month of an account, in credits (Q2, J14): use of quotas, overage, and the lines of its statement."""

    period: str
    live_used: int = 0
    live_held: int = 0
    test_used: int = 0
    test_held: int = 0
    overage_used: int = 0
    """Charged to overage, less what was refunded within the month."""
    overage_held: int = 0
    granted: int = 0
    adjusted: int = 0
    charged: int = 0
    refunded: int = 0
    refunded_to_balance: int = 0
    expired: int = 0
    adjusted_up: int = 0
    """The positive part of what was adjusted: it was granted, for the share that is used (V1)."""
    overage_price: int | None = None
    """The price of a credit, in micro-dollars, when overage was last held in it: what its overage is invoiced at."""
    opening: int | None = None
    """The balance at the month's start, from the first time that anything was decided in it (V1)."""
    threshold_raised: int = 0
    """The highest share (percent) that an event told of (V1)."""
    cap_raised: bool = False
    """Whether an event told that the spending cap is reached (O6)."""
    closed_at: datetime | None = None
    """When its statement was closed, after which none of its figures changes (V6)."""

    @property
    def overage_micro_usd(self) -> int:
        """What its overage comes to, in micro-dollars."""
        return self.overage_used * (self.overage_price or 0)

    @property
    def charged_to_balance(self) -> int:
        """What grants and the overdraft paid of its charges: all but what overage paid, refunded or not."""
        return self.charged - self.overage_used - (self.refunded - self.refunded_to_balance)

    def used(self, environment: Environment) -> int:
        """Return what jobs of this month were charged in an environment; refunds give no quota back (J13)."""
        return self.live_used if environment == "live" else self.test_used

    def held(self, environment: Environment) -> int:
        """Return what open jobs of this month hold in an environment."""
        return self.live_held if environment == "live" else self.test_held

    def add_used(self, environment: Environment, credits: int) -> None:
        """Count a charge against an environment's quota."""
        if environment == "live":
            self.live_used += credits
        else:
            self.test_used += credits

    def add_held(self, environment: Environment, credits: int) -> None:
        """Count a hold, or (below zero) the end of one, against an environment's quota."""
        if environment == "live":
            self.live_held += credits
        else:
            self.test_held += credits


class UsageKey(msgspec.Struct, frozen=True):
    """What usage is added up by: the month it counts in, the day it happened, where and for what (A4)."""

    period: str
    day: str
    environment: Environment
    operation: str


class UsageCount(msgspec.Struct):
    """What a usage total gains. `first_jobs` counts a job once, whatever the number of its operations."""

    unit: str
    quantity: int = 0
    credits: int = 0
    refunded: int = 0
    jobs: int = 0
    first_jobs: int = 0


EventType = Literal[
    "credits.threshold_reached", "credits.exhausted", "credits.spending_cap_reached", "job.expired", "period.closed"
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell, written with what it tells of (V5). `once` says what must not be told a second time."""

    type: EventType
    environment: Environment
    at: datetime
    once: str
    data: dict[str, object]


class ClosedStatement(msgspec.Struct, frozen=True):
    """The statement of a month that is closed, as it stays."""

    period: str
    text: bytes


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """The request to delete an account (R7)."""

    confirmation_code: str
    status: DeletionStatus
    requested_at: datetime
    executes_at: datetime


class StoredRefund(msgspec.Struct, frozen=True, kw_only=True):
    """A refund and the entry that made it; `number` is the job's."""

    number: int
    entry: int
    done: RefundDone
    reason: str | None


class Changes(msgspec.Struct):
    """Everything a batch changed in one account, in the order it happened."""

    entries: list[Entry] = []
    grants: dict[int, Grant] = {}
    jobs_opened: dict[int, Job] = {}
    jobs_closed: dict[int, Job] = {}
    jobs_resegmented: dict[int, Job] = {}
    freed_keys: list[int] = []
    periods: set[str] = set()
    usage: dict[UsageKey, UsageCount] = {}
    refunds: list[StoredRefund] = []
    cycles: dict[str, CycleDone] = {}
    policy: bool = False
    balance: bool = False
    events: list[Event] = []
    statements: list[ClosedStatement] = []
    anonymised: bool = False


class Account(msgspec.Struct, kw_only=True, eq=False):
    """One account as its decisions see it: balances, live grants, the jobs that the batch can touch, policy, months.

    `number` is ours, `account_id` the customer's. Every figure is in credits. Loaded under the account's row lock.
    """

    number: int
    account_id: str
    created_at: datetime
    at: datetime
    """The latest instant anything was decided for; decisions never go back behind it."""
    is_new: bool = False
    policy: Policy = Policy()
    cycles: dict[str, CycleDone] = {}
    """The billing cycles; loaded for the commands that change them."""
    paid_cycles: int = 0
    welcome_at: datetime | None = None
    deletion: Deletion | None = None
    closed_through: str | None = None
    """The last month whose statement is closed."""
    thresholds: tuple[int, ...] = ()
    """The shares (percent) of what was granted whose use is told of, ascending (V1)."""
    last_grant: int = 0
    """The entry of the last grant that was put; what `credits.exhausted` is told once after (V1)."""
    exhausted_after: int | None = None
    entered_at: datetime | None = None
    """The instant of the last entry, or of the opening."""
    sequence: int = 0
    head: str = books.GENESIS_HASH
    available: int = 0
    held: int = 0
    overdraft: int = 0
    open_slots: dict[tuple[Environment, Slot], int] = {}
    grants: dict[int, Grant] = {}
    grants_by_id: dict[str, Grant] = {}
    jobs: dict[str, Job] = {}
    keys: dict[tuple[Environment, str], Job] = {}
    due: dict[int, Job] = {}
    """The open jobs whose deadline the batch has seen pass."""
    call_deadlines: dict[Environment, dict[int, datetime]] = {}
    """Deadlines of open calls, by job number; complete for the next 30 seconds (Q4)."""
    debts: dict[int, Job] = {}
    """Jobs with a part of their charge in overdraft, oldest first (J12)."""
    refunds: dict[str, StoredRefund] = {}
    periods: dict[str, Period] = {}
    changes: Changes = msgspec.field(default_factory=Changes)
    brought_up: BroughtUp = msgspec.field(default_factory=BroughtUp)
    """What time had decided and this batch entered."""
    stored_periods: set[str] = set()
    """The months that the store has a row of."""

    def __post_init__(self) -> None:
        self.entered_at = self.entered_at or self.at

    # -- what decisions ask -------------------------------------------------------------------------------------

    def period(self, period: str) -> Period:
        """Return a month that is about to change."""
        self.changes.periods.add(period)
        return self.peek(period)

    def peek(self, period: str) -> Period:
        """Return a month to read from. Every month that a decision can count in has been loaded: KeyError is a bug."""
        return self.periods[period]

    @property
    def overage_usable(self) -> bool:
        """Whether consumption beyond the balance counts now (O1)."""
        return self.policy.overage_enabled and self.policy.payment_method_verified

    @property
    def effective_cap(self) -> int:
        """The cap in micro-dollars (O2)."""
        return effective_cap(self.policy.cap_usd, self.paid_cycles)

    @property
    def cap_credits(self) -> int | None:
        """The cap in whole credits, or None without the price of a credit (O7)."""
        price = self.policy.credit_price_usd
        return None if price is None else cap_credits(self.effective_cap, price)

    def headroom(self, period: str) -> int:
        """Return how many credits of overage a month still admits; 0 where overage is not usable (O7)."""
        cap = self.cap_credits
        if not self.overage_usable or cap is None:
            return 0
        month = self.peek(period)
        return max(0, cap - month.overage_used - month.overage_held)

    # -- how decisions change it --------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The number that the next entry will have."""
        return self.sequence + 1

    def enter(self, kind: EntryKind, at: datetime, postings: list[Posting], job: int | None = None) -> Entry:
        """Write an entry: the next number, chained to the one before (A5)."""
        entry = books.new_entry(self.number, self.next_sequence, kind, job, at, tuple(postings), self.head)
        self.sequence = entry.sequence
        self.head = entry.hash
        self.entered_at = at
        self.changes.entries.append(entry)
        return entry

    def tell(self, kind: EventType, environment: Environment, at: datetime, once: str, data: dict[str, object]) -> None:
        """Raise an event, in the transaction of what it tells of (V5)."""
        self.changes.events.append(Event(type=kind, environment=environment, at=at, once=once, data=data))

    def add_grant(self, grant: Grant) -> None:
        """Take a new grant into the account."""
        self.grants[grant.number] = grant
        self.grants_by_id[grant.grant_id] = grant
        self.changes.grants[grant.number] = grant

    def touch_grant(self, number: int) -> Grant:
        """Return a grant that is about to change."""
        grant = self.grants[number]
        self.changes.grants[number] = grant
        return grant

    def add_job(self, job: Job) -> None:
        """Take a new open job into the account, with its slot."""
        self.jobs[job.job_id] = job
        if job.idempotency_key is not None:
            self.keys[job.environment, job.idempotency_key] = job
        self.changes.jobs_opened[job.number] = job
        slot = (job.environment, job.slot)
        self.open_slots[slot] = self.open_slots.get(slot, 0) + 1
        if job.slot == "call":
            self.call_deadlines.setdefault(job.environment, {})[job.number] = job.expires_at

    def close_job(self, job: Job, status: JobStatus, closing: Closing) -> None:
        """End a job and free its slot."""
        job.status = status
        job.closing = closing
        self.due.pop(job.number, None)
        self.changes.jobs_closed[job.number] = job
        self.open_slots[job.environment, job.slot] -= 1
        if job.slot == "call":
            self.call_deadlines.get(job.environment, {}).pop(job.number, None)

    def free_key(self, job: Job) -> None:
        """Let another job use a job's idempotency key (J10)."""
        if job.idempotency_key is not None:
            self.keys.pop((job.environment, job.idempotency_key), None)
            job.idempotency_key = None
            self.changes.freed_keys.append(job.number)

    def count_usage(self, key: UsageKey, unit: str) -> UsageCount:
        """Return the usage total to add to."""
        count = self.changes.usage.get(key)
        if count is None:
            count = self.changes.usage[key] = UsageCount(unit)
        return count

    def cycle_statuses(self) -> dict[str, CycleStatus]:
        """Return every billing cycle's present status by month."""
        return {month: cycle.status for month, cycle in self.cycles.items()}
