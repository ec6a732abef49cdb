"""The commands that change money, and the closed set of their outcomes (design: "The idea in one breath").

A command names its account from outside (`account_id`); everything in it has been checked for shape before. Outcomes
are the facts as they stood when the command was decided, in the field names of the HTTP interface.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any, Literal

import msgspec

from ledger.core.overage import CycleStatus
from pricing.rating import Quantity

Environment = Literal["live", "test"]
GrantKind = Literal["plan", "purchase", "welcome", "adjustment"]
JobStatus = Literal["reserved", "settled", "released", "expired"]
DeletionStatus = Literal["pending", "cancelled", "executed"]

ENVIRONMENTS: tuple[Environment, ...] = ("live", "test")
MAX_CREDITS = 2**53
"""Credits of one command and of one account stay below this, so that every JSON reader keeps them exact."""


class Line(msgspec.Struct, frozen=True):
    """A measured quantity of one operation; `None` where it could not be measured (P4)."""

    operation: str
    quantity: Quantity | None


class Record(msgspec.Struct, frozen=True):
    """What the gateway tells of the request that a job served, for the usage record (R3)."""

    request_id: str | None = None
    status_code: int | None = None
    latency_ms: int | None = None
    key_prefix: str | None = None


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the credits of a job before its work begins (J2)."""

    account_id: str
    job_id: str
    environment: Environment
    lines: tuple[Line, ...]
    transferable: bool = False
    allow_partial: bool = False
    ttl_seconds: int = 900
    idempotency_key: str | None = None
    fingerprint: str | None = None
    metadata: bytes | None = None


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """Bill what a job consumed and give the rest of its hold back (J3). `result` is JSON text to keep 24 hours."""

    account_id: str
    job_id: str
    lines: tuple[Line, ...]
    result: bytes | None = None
    record: Record | None = None


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Give a job's whole hold back: nothing was delivered (J4). A job never `originated` frees its key (J10)."""

    account_id: str
    job_id: str
    error_code: str | None = None
    originated: bool = True
    record: Record | None = None


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """Give back part of a settled charge, or all that is left of it where `credits` is None (J13)."""

    account_id: str
    job_id: str
    refund_id: str
    credits: int | None = None
    reason: str | None = None


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    """The ceilings of one environment; what is left out keeps its value, or the starting one (Q5)."""

    max_requests: int | msgspec.UnsetType = msgspec.UNSET
    max_calls: int | msgspec.UnsetType = msgspec.UNSET
    period_credits: int | msgspec.UnsetType | None = msgspec.UNSET


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator sets of an account; money in micro-dollars; what is left out keeps its value."""

    module_enabled: bool | msgspec.UnsetType = msgspec.UNSET
    access: Literal["active", "suspended"] | msgspec.UnsetType = msgspec.UNSET
    payment_method_verified: bool | msgspec.UnsetType = msgspec.UNSET
    overage_enabled: bool | msgspec.UnsetType = msgspec.UNSET
    cap_usd: int | msgspec.UnsetType | None = msgspec.UNSET
    credit_price_usd: int | msgspec.UnsetType | None = msgspec.UNSET
    quotas: dict[Environment, QuotaChange | None] = {}


class PutAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Open an account, or replace all its policy: what is left out goes back to its default."""

    account_id: str
    change: PolicyChange


class PatchAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Change what is named of an account's policy."""

    account_id: str
    change: PolicyChange


class PutCycle(msgspec.Struct, frozen=True, kw_only=True):
    """Record how the invoice of a month was paid (O3, O4)."""

    account_id: str
    month: str
    status: CycleStatus


class PutGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Grant credits; a negative adjustment takes them from the balance (F1)."""

    account_id: str
    grant_id: str
    kind: GrantKind
    credits: int
    expires_at: datetime | None = None
    reference: str | None = None


class BringUp(msgspec.Struct, frozen=True, kw_only=True):
    """Enter what time has decided for an account: holds and grants that are due, a welcome that is owed (T1, F5)."""

    account_id: str


class ClosePeriod(msgspec.Struct, frozen=True, kw_only=True):
    """Close a month that has ended: keep its statement (JSON text) as it stands, and tell what is to be invoiced."""

    account_id: str
    period: str
    statement: bytes


class RequestDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for the deletion of an account, or revive the request (R7). `confirmation_code` is for a first request."""

    account_id: str
    confirmation_code: str


class CancelDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """Cancel the deletion of an account while its grace lasts (R7)."""

    account_id: str


class DeleteAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Delete an account whose grace is over: end its open holds, then take its name away (R7)."""

    account_id: str


AccountCommand = (
    PutAccount
    | PatchAccount
    | PutCycle
    | PutGrant
    | BringUp
    | ClosePeriod
    | RequestDeletion
    | CancelDeletion
    | DeleteAccount
)
Command = Reserve | Settle | Release | Refund | AccountCommand


class Code(enum.StrEnum):
    """Why a command was refused, in the order in which the reasons are judged (Q6)."""

    VALIDATION_ERROR = "validation_error"
    RESOURCE_NOT_FOUND = "resource_not_found"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    REQUEST_IN_FLIGHT = "request_in_flight"
    RESULT_NOT_REPLAYABLE = "result_not_replayable"
    JOB_NOT_COMPLETED = "job_not_completed"
    JOB_ALREADY_CLOSED = "job_already_closed"
    OPERATION_NOT_PRICED = "operation_not_priced"
    GATEWAY_NOT_ENABLED = "gateway_not_enabled"
    REQUEST_EXCEEDS_PERIOD_QUOTA = "request_exceeds_period_quota"
    CONCURRENCY_LIMIT_REACHED = "concurrency_limit_reached"
    CALL_CONCURRENCY_LIMIT_REACHED = "call_concurrency_limit_reached"
    PERIOD_QUOTA_EXHAUSTED = "period_quota_exhausted"
    INSUFFICIENT_CREDITS = "insufficient_credits"
    SPENDING_CAP_REACHED = "spending_cap_reached"


class Refused(msgspec.Struct, frozen=True):
    """The command changed nothing. `details` are figures; `retry_after` in seconds only where waiting helps (E2)."""

    code: Code
    message: str
    details: dict[str, Any] = {}
    retry_after: int | None = None


class Funding(msgspec.Struct, frozen=True):
    """Where a hold's credits stand: the balance or overage."""

    balance: int
    overage: int


class ChargeFunding(msgspec.Struct, frozen=True):
    """What paid a charge, as it was settled; or where the credits of a refund went."""

    balance: int
    overage: int
    overdraft: int


class ReservedLine(msgspec.Struct, frozen=True):
    """One line of a reservation, priced."""

    operation: str
    unit: str
    requested_quantity: Quantity
    reserved_quantity: Quantity
    billable_quantity: int
    credits: int


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of an open job; `created` tells the first answer from a repeated one."""

    job_id: str
    account_id: str
    environment: Environment
    operation: str
    status: JobStatus
    period: str
    price_version: str
    lines: tuple[ReservedLine, ...]
    transfer_allowance: int
    held_credits: int
    partial: bool
    funding: Funding
    created_at: datetime
    expires_at: datetime


class Reserved(msgspec.Struct, frozen=True):
    """A job's credits are held; `created` is false where the same reservation was put before."""

    reservation: Reservation
    created: bool


class Replayed(msgspec.Struct, frozen=True):
    """The request was served before by the job named here, which is the answer (J10)."""

    job_id: str


class Usage(msgspec.Struct, frozen=True):
    """What was billed for a job's own operation (P3)."""

    operation: str
    unit: str
    quantity: int
    credits: int


class SettledLine(msgspec.Struct, frozen=True):
    """One line of a settlement: what was measured, and what was billed for it."""

    operation: str
    unit: str
    measured_quantity: Quantity | None
    quantity: int
    credits: int


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A job is settled. `usage` and `lines` are None once the breakdown's 24 hours are over (R1)."""

    job_id: str
    status: JobStatus
    usage: Usage | None
    lines: tuple[SettledLine, ...] | None
    credits_charged: int
    credits_returned: int
    credits_over_hold: int
    funding: ChargeFunding
    settled_at: datetime


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """A job's hold went back whole."""

    job_id: str
    status: JobStatus
    credits_charged: int
    credits_returned: int
    error_code: str | None
    released_at: datetime


class RefundDone(msgspec.Struct, frozen=True, kw_only=True):
    """A refund as it was made; `credits_refunded` is the job's total up to and with it."""

    refund_id: str
    job_id: str
    credits: int
    credits_refunded: int
    funding: ChargeFunding
    created_at: datetime


class Refunded(msgspec.Struct, frozen=True):
    """A refund is made; `created` is false where it was made before."""

    refund: RefundDone
    created: bool


class GrantDone(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as it stands."""

    grant_id: str
    kind: GrantKind
    granted: int
    remaining: int
    held: int
    expires_at: datetime | None
    reference: str | None
    created_at: datetime


class Granted(msgspec.Struct, frozen=True):
    """A grant is put; `created` is false where it was put before."""

    grant: GrantDone
    created: bool


class AccountStored(msgspec.Struct, frozen=True):
    """An account's policy is stored; `created` where the account is new."""

    created: bool


class CycleDone(msgspec.Struct, frozen=True, kw_only=True):
    """The payment of one month's invoice."""

    cycle: str
    status: CycleStatus
    updated_at: datetime


class CycleStored(msgspec.Struct, frozen=True):
    """A billing cycle is stored; `created` where the month was not known before."""

    cycle: CycleDone
    created: bool


class BroughtUp(msgspec.Struct, kw_only=True):
    """What time had decided and was entered now: counts, and credits that came back or expired."""

    holds_expired: int = 0
    grants_expired: int = 0
    credits_returned: int = 0
    credits_expired: int = 0
    welcome_granted: bool = False
    more: bool = False
    """Whether more is due than one batch enters: the command is to be given again."""


class PeriodClosed(msgspec.Struct, frozen=True):
    """What became of closing a month: `closed` now, before (neither), or not yet, because a hold of it is open."""

    closed: bool
    waiting: bool = False


class DeletionStands(msgspec.Struct, frozen=True, kw_only=True):
    """The request to delete an account, as it stands."""

    confirmation_code: str
    status: DeletionStatus
    requested_at: datetime
    executes_at: datetime


class AccountDeleted(msgspec.Struct, frozen=True):
    """What became of a deletion: `deleted`, or else more holds are to be ended by giving the command again."""

    deleted: bool
    holds_ended: int


Outcome = (
    Refused
    | Reserved
    | Replayed
    | Settled
    | Released
    | Refunded
    | Granted
    | AccountStored
    | CycleStored
    | BroughtUp
    | PeriodClosed
    | DeletionStands
    | AccountDeleted
)
