"""The operations: one entry for each method of each route, as clients see it. What they share is in `assembly`."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from ledger.api import bodies, jobs, operation, prices, sweeps
from ledger.api.openapi import examples, schemas
from ledger.api.openapi.examples import Examples
from ledger.api.openapi.parameters import JOB_FILTER, LIST
from ledger.api.services import SweepRun
from ledger.audit.findings import AuditReport
from ledger.core.commands import Code, CycleDone, DeletionStands, GrantDone, RefundDone, Released, Reservation, Settled
from ledger.queries.accounts import AccountView
from ledger.queries.balance import BalanceView
from ledger.queries.events import EventPage
from ledger.queries.jobs import JobView
from ledger.queries.statements import Statement
from ledger.queries.usage import UsageView
from ledger.tokens import Role

Method = Literal["get", "put", "post", "patch", "delete"]
Tag = Literal["Jobs", "Prices", "Accounts", "Usage and statements", "Operation"]

JSON: Final = "application/json"


class Body(msgspec.Struct, frozen=True):
    """A request body: the struct it is read into, and examples; one that is not required may be left out."""

    kind: type
    examples: Examples
    required: bool = True


class Answer(msgspec.Struct, frozen=True):
    """A success: its status, the struct it is written from (several: one of them), examples, and as CSV."""

    status: int
    description: str
    kinds: tuple[type, ...]
    examples: Examples
    csv: str | None = None
    media_type: str = JSON


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one route.

    `least` is the smallest role that may call it; None needs no token. `codes` are the errors of its own, besides those
    that follow from a token and from a body.
    """

    id: str
    method: Method
    path: str
    tag: Tag
    summary: str
    description: str
    least: Role | None
    query: tuple[str, ...] = ()
    body: Body | None = None
    answers: tuple[Answer, ...]
    codes: tuple[str, ...] = ()

    @property
    def all_codes(self) -> frozenset[str]:
        """Every error code that it can answer with."""
        codes = {*self.codes, "method_not_allowed", "internal_error"}
        if self.least is not None:
            codes.add("authentication_required")
        if self.least not in (None, Role.READER):  # Every role may read.
            codes.add("permission_denied")
        if self.body is not None:
            codes |= {Code.VALIDATION_ERROR, "payload_too_large", "unsupported_media_type"}
        return frozenset(codes)


TAGS: Final[dict[Tag, str]] = {
    "Jobs": "Reserve before the work, settle or release after it, refund what was charged (contract J).",
    "Prices": "The catalog, and quotes that hold nothing (contract P).",
    "Accounts": "Accounts as operators set them up, their grants and balance (contract F, O, Q).",
    "Usage and statements": "What was consumed, request by request and added up, and the journal behind it (contract "
    "A, R).",
    "Operation": "Events, sweeps, health, metrics, the clock, the audit, and this document.",
}

ACCOUNT: Final = "/v1/accounts/{account_id}"
JOB: Final = f"{ACCOUNT}/jobs/{{job_id}}"

AWAY: Final = "upstream_unavailable"
READ: Final = (Code.VALIDATION_ERROR, Code.RESOURCE_NOT_FOUND, AWAY)
"""What every read of an account can answer."""

_AS_CSV: Final = "`Accept: text/csv` answers the same rows as CSV."

_JOBS: Final = (
    Operation(
        id="reserveJob",
        method="put",
        path=JOB,
        tag="Jobs",
        summary="Reserve: hold a job's credits before its work begins",
        description="Holds what the lines can cost at most; bills nothing (J2). Refusals are judged in the order of "
        "Q6 and change nothing. The same reservation of an open job again is `200` with the same body. A job that was "
        "closed, or a request whose `idempotency_key` came before under another `job_id`, answers case by case as J10 "
        "says: among them `200` with the whole job and `replayed`; then nothing is held. Calls may be held in part "
        "(J8) and for a transfer (P10).",
        least=Role.GATEWAY,
        body=Body(schemas.ReserveBody, examples.RESERVE),
        answers=(
            Answer(201, "The credits are held.", (Reservation,), examples.RESERVED),
            Answer(
                200,
                "The reservation stood already; or the request was served before, by the job that is shown (J10).",
                (Reservation, JobView),
                examples.RESERVED_BEFORE,
            ),
        ),
        codes=(
            Code.INSUFFICIENT_CREDITS,
            Code.SPENDING_CAP_REACHED,
            Code.GATEWAY_NOT_ENABLED,
            Code.RESOURCE_NOT_FOUND,
            Code.IDEMPOTENCY_KEY_REUSED,
            Code.REQUEST_IN_FLIGHT,
            Code.RESULT_NOT_REPLAYABLE,
            Code.JOB_NOT_COMPLETED,
            Code.REQUEST_EXCEEDS_PERIOD_QUOTA,
            Code.CONCURRENCY_LIMIT_REACHED,
            Code.CALL_CONCURRENCY_LIMIT_REACHED,
            Code.PERIOD_QUOTA_EXHAUSTED,
            Code.OPERATION_NOT_PRICED,
            AWAY,
        ),
    ),
    Operation(
        id="getJob",
        method="get",
        path=JOB,
        tag="Jobs",
        summary="Show one job",
        description="The reservation, what became of it, its result while it is kept (R1) and its entries in the "
        "journal. With `environment`, a job of the other one does not exist (J11).",
        least=Role.READER,
        query=("environment",),
        answers=(Answer(200, "The job.", (JobView,), examples.JOB),),
        codes=READ,
    ),
    Operation(
        id="settleJob",
        method="post",
        path=f"{JOB}/settle",
        tag="Jobs",
        summary="Settle: bill what a job consumed",
        description="Bills the measured lines at the prices of the reservation (P9) and gives the rest of the hold "
        "back (J3). Never fails for want of funds (J12). The same lines again are `200` with the same body, at any "
        "time; the breakdown goes after 24 hours (R1). Lines need not have been reserved (P7).",
        least=Role.GATEWAY,
        body=Body(schemas.SettleBody, examples.SETTLE),
        answers=(Answer(200, "The job is settled, now or before.", (Settled,), examples.SETTLEMENT),),
        codes=(
            Code.RESOURCE_NOT_FOUND,
            Code.IDEMPOTENCY_KEY_REUSED,
            Code.JOB_ALREADY_CLOSED,
            Code.JOB_NOT_COMPLETED,
            Code.OPERATION_NOT_PRICED,
            AWAY,
        ),
    ),
    Operation(
        id="releaseJob",
        method="post",
        path=f"{JOB}/release",
        tag="Jobs",
        summary="Release: give a job's whole hold back",
        description="For work that was not delivered (J4). `originated: false` frees the idempotency key for another "
        "job (J10). Again is `200` with the same body.",
        least=Role.GATEWAY,
        body=Body(bodies.ReleaseBody, examples.RELEASE, required=False),
        answers=(Answer(200, "The job is released, now or before.", (Released,), examples.RELEASED),),
        codes=(Code.RESOURCE_NOT_FOUND, Code.JOB_ALREADY_CLOSED, Code.JOB_NOT_COMPLETED, AWAY),
    ),
    Operation(
        id="refundJob",
        method="post",
        path=f"{JOB}/refunds",
        tag="Jobs",
        summary="Refund: give back a settled charge, or part of it",
        description="Credits go back to the sources they came from, in reverse order (J13); never more than was "
        "charged. The same `refund_id` and credits again are `200` with the same body.",
        least=Role.GATEWAY,
        body=Body(bodies.RefundBody, examples.REFUND),
        answers=(
            Answer(201, "The refund is made.", (RefundDone,), examples.REFUND_DONE),
            Answer(200, "The refund was made before.", (RefundDone,), examples.REFUND_DONE),
        ),
        codes=(
            Code.RESOURCE_NOT_FOUND,
            Code.IDEMPOTENCY_KEY_REUSED,
            Code.REQUEST_IN_FLIGHT,
            Code.JOB_ALREADY_CLOSED,
            Code.JOB_NOT_COMPLETED,
            AWAY,
        ),
    ),
    Operation(
        id="listJobs",
        method="get",
        path=f"{ACCOUNT}/jobs",
        tag="Jobs",
        summary="List jobs, newest first",
        description="`from` and `to` bound when the jobs were reserved.",
        least=Role.READER,
        query=(*JOB_FILTER, *LIST),
        answers=(Answer(200, "One page of jobs.", (schemas.JobPage,), examples.JOBS),),
        codes=READ,
    ),
    Operation(
        id="runBatch",
        method="post",
        path="/v1/batch",
        tag="Jobs",
        summary="Carry out up to 1,000 commands at once",
        description="Reserve, settle, release and refund, each with the fields of its own route, answered in order by "
        "the status and body that the route would answer. A refused command, a shapeless one included, does not touch "
        "its neighbours. `details.retry_after` stands for the header.",
        least=Role.GATEWAY,
        body=Body(jobs.BatchBody, examples.BATCH),
        answers=(Answer(200, "What each command came to.", (schemas.BatchAnswer,), examples.RESULTS),),
        codes=(AWAY,),
    ),
)

_PRICES: Final = (
    Operation(
        id="getPrices",
        method="get",
        path="/v1/prices",
        tag="Prices",
        summary="Show the prices in force",
        description="The catalog's version of now, or of an instant (P1, P9). Before the first version: `404`.",
        least=Role.READER,
        query=("at",),
        answers=(Answer(200, "One version of the prices.", (prices.PricesView,), examples.PRICES),),
        codes=READ,
    ),
    Operation(
        id="quote",
        method="post",
        path="/v1/quotes",
        tag="Prices",
        summary="Price lines without holding anything",
        description="What a reservation of these lines would hold, at the prices of now (P2, P10). A quantity of 0 is "
        "0 credits.",
        least=Role.READER,
        body=Body(bodies.QuoteBody, examples.QUOTE),
        answers=(Answer(200, "What it would cost.", (prices.QuoteView,), examples.QUOTED),),
        codes=(Code.OPERATION_NOT_PRICED, AWAY),
    ),
)

_ACCOUNTS: Final = (
    Operation(
        id="putAccount",
        method="put",
        path=ACCOUNT,
        tag="Accounts",
        summary="Open an account, or replace its policy",
        description="What the body leaves out goes back to its default: module off, active, payment method not "
        "verified, overage off, no environments. Switches undo nothing that is held (F4). The welcome arrives here "
        "once it is earned (F5).",
        least=Role.ADMIN,
        body=Body(bodies.AccountBody, examples.POLICY),
        answers=(
            Answer(201, "The account is open.", (AccountView,), examples.ACCOUNT),
            Answer(200, "The policy is replaced.", (AccountView,), examples.ACCOUNT),
        ),
        codes=(AWAY,),
    ),
    Operation(
        id="patchAccount",
        method="patch",
        path=ACCOUNT,
        tag="Accounts",
        summary="Change what the body names of an account's policy",
        description="Nested objects are merged; null is a value where the field may have none (`cap_usd`, "
        "`credit_price_usd`, `period_credits`, an environment), and is refused elsewhere.",
        least=Role.ADMIN,
        body=Body(bodies.AccountBody, examples.POLICY_CHANGE),
        answers=(Answer(200, "The policy as it is now.", (AccountView,), examples.ACCOUNT),),
        codes=(Code.RESOURCE_NOT_FOUND, AWAY),
    ),
    Operation(
        id="getAccount",
        method="get",
        path=ACCOUNT,
        tag="Accounts",
        summary="Show an account's policy and what follows from it",
        description="With the effective cap (O2) and the ceiling that its payments have earned (O3).",
        least=Role.READER,
        answers=(Answer(200, "The account.", (AccountView,), examples.ACCOUNT),),
        codes=READ,
    ),
    Operation(
        id="getBalance",
        method="get",
        path=f"{ACCOUNT}/balance",
        tag="Accounts",
        summary="Show the balance, now or as it was",
        description="As time has left it (T1). With `at`, added up from the journal (A7); an instant in the future is "
        "`400`.",
        least=Role.READER,
        query=("at",),
        answers=(Answer(200, "The balance.", (BalanceView,), examples.BALANCE),),
        codes=READ,
    ),
    Operation(
        id="putGrant",
        method="put",
        path=f"{ACCOUNT}/grants/{{grant_id}}",
        tag="Accounts",
        summary="Grant credits, or take them away by a negative adjustment",
        description="A grant pays an overdraft first (F4). A plan without an end ends with the month (F1). A negative "
        "adjustment takes from the balance in the order of spending (F2), never more than is available. The same "
        "grant again is `200`, as it stands.",
        least=Role.ADMIN,
        body=Body(bodies.GrantBody, examples.GRANT),
        answers=(
            Answer(201, "The grant is put.", (GrantDone,), examples.GRANTED),
            Answer(200, "The grant was put before.", (GrantDone,), examples.GRANTED),
        ),
        codes=(Code.INSUFFICIENT_CREDITS, Code.RESOURCE_NOT_FOUND, Code.IDEMPOTENCY_KEY_REUSED, AWAY),
    ),
    Operation(
        id="listGrants",
        method="get",
        path=f"{ACCOUNT}/grants",
        tag="Accounts",
        summary="List grants, in the order granted",
        description="Those that are used up or over too.",
        least=Role.READER,
        query=LIST,
        answers=(Answer(200, "One page of grants.", (schemas.GrantPage,), examples.GRANTS),),
        codes=READ,
    ),
    Operation(
        id="putBillingCycle",
        method="put",
        path=f"{ACCOUNT}/billing-cycles/{{month}}",
        tag="Accounts",
        summary="Record how the invoice of a month was paid",
        description="The provider's ceiling follows from all cycles in the order of their months, by their present "
        "status (O3, O4).",
        least=Role.ADMIN,
        body=Body(bodies.CycleBody, examples.CYCLE),
        answers=(
            Answer(201, "The month was not known before.", (CycleDone,), examples.CYCLE_STORED),
            Answer(200, "The month's status is as asked.", (CycleDone,), examples.CYCLE_STORED),
        ),
        codes=(Code.RESOURCE_NOT_FOUND, AWAY),
    ),
    Operation(
        id="listBillingCycles",
        method="get",
        path=f"{ACCOUNT}/billing-cycles",
        tag="Accounts",
        summary="List billing cycles, in the order of their months",
        description="The payment history that the ceiling of overage follows (O3).",
        least=Role.READER,
        query=LIST,
        answers=(Answer(200, "One page of cycles.", (schemas.CyclePage,), examples.CYCLES),),
        codes=READ,
    ),
    Operation(
        id="requestDeletion",
        method="post",
        path=f"{ACCOUNT}/deletion",
        tag="Accounts",
        summary="Ask for the deletion of an account, or revive the request",
        description="It is carried out after 30 days of grace, within which it can be cancelled (R7). Asking again "
        "while it is pending changes nothing; once it was cancelled, the grace begins anew under the same code.",
        least=Role.ADMIN,
        answers=(Answer(202, "The request stands.", (DeletionStands,), examples.DELETION),),
        codes=(Code.VALIDATION_ERROR, Code.RESOURCE_NOT_FOUND, AWAY),
    ),
    Operation(
        id="cancelDeletion",
        method="delete",
        path=f"{ACCOUNT}/deletion",
        tag="Accounts",
        summary="Cancel the deletion of an account",
        description="Until it is carried out (R7). Again is `200` with the same body; without a request, `404`.",
        least=Role.ADMIN,
        answers=(Answer(200, "The request is cancelled.", (DeletionStands,), examples.DELETION_CANCELLED),),
        codes=(Code.VALIDATION_ERROR, Code.RESOURCE_NOT_FOUND, AWAY),
    ),
    Operation(
        id="getDeletion",
        method="get",
        path="/v1/deletions/{confirmation_code}",
        tag="Accounts",
        summary="Show how a deletion stands",
        description="By its confirmation code, also once the account is gone (R7). It is `pending` until everything "
        "is deleted.",
        least=Role.READER,
        answers=(Answer(200, "The request.", (DeletionStands,), examples.DELETIONS),),
        codes=READ,
    ),
)

_USAGE: Final = (
    Operation(
        id="getUsage",
        method="get",
        path=f"{ACCOUNT}/usage",
        tag="Usage and statements",
        summary="Show usage, added up",
        description="Of a month (J14), or of the days on which jobs settled. The totals equal what the ledger charged, "
        f"to the credit (A4). {_AS_CSV}",
        least=Role.READER,
        query=("period", "from_day", "to_day", "environment", "group_by"),
        answers=(Answer(200, "The usage.", (UsageView,), examples.USAGE, examples.USAGE_CSV),),
        codes=READ,
    ),
    Operation(
        id="listUsageRecords",
        method="get",
        path=f"{ACCOUNT}/usage/records",
        tag="Usage and statements",
        summary="List usage request by request, newest first",
        description="Kept 400 days (R3, R6). `from` and `to` bound when the jobs were closed. "
        f"{_AS_CSV} Without a `limit`, CSV goes on to the end of the list.",
        least=Role.READER,
        query=(*JOB_FILTER, *LIST),
        answers=(Answer(200, "One page of records.", (schemas.RecordPage,), examples.RECORDS, examples.RECORDS_CSV),),
        codes=READ,
    ),
    Operation(
        id="getStatement",
        method="get",
        path=f"{ACCOUNT}/statements/{{period}}",
        tag="Usage and statements",
        summary="Show what a month did to the balance",
        description="Opening + granted + adjusted + refunded_to_balance − charged_from_balance − expired = closing, "
        "and a month's closing is the next one's opening. `Accept: text/csv` answers one row for each charge, with "
        "the month's figures on each.",
        least=Role.READER,
        answers=(Answer(200, "The statement.", (Statement,), examples.STATEMENT, examples.STATEMENT_CSV),),
        codes=READ,
    ),
    Operation(
        id="listEntries",
        method="get",
        path=f"{ACCOUNT}/entries",
        tag="Usage and statements",
        summary="List the journal, oldest first",
        description="Every movement of credits (A7), numbered without gaps and chained by hashes that anybody can "
        "recompute (A5). `Accept: text/csv` answers one row for each posting; without a `limit`, to the end of the "
        "journal.",
        least=Role.READER,
        query=("canonical", "from", "to", *LIST),
        answers=(Answer(200, "One page of entries.", (schemas.EntryPage,), examples.ENTRIES, examples.ENTRIES_CSV),),
        codes=READ,
    ),
)

_OPERATION: Final = (
    Operation(
        id="listEvents",
        method="get",
        path="/v1/events",
        tag="Operation",
        summary="List events, in the order in which they were committed",
        description="What the ledger has to tell (V1, V2, V6), each once. `next_cursor` is always there: given as "
        "`after` it goes on from where this page ended, also where there was nothing yet.",
        least=Role.READER,
        query=("after", "event_account", "limit"),
        answers=(Answer(200, "The events.", (EventPage,), examples.EVENTS),),
        codes=(Code.VALIDATION_ERROR, AWAY),
    ),
    Operation(
        id="listSweeps",
        method="get",
        path="/v1/sweeps",
        tag="Operation",
        summary="List the sweeps, with the last run and the next one of each",
        description="The last run, on whichever replica; one without an end is still at it, or was cut off. "
        "`next_run_at` is this replica's, null where it runs none by the clock.",
        least=Role.READER,
        answers=(Answer(200, "Every sweep.", (sweeps.SweepList,), examples.SWEEPS),),
        codes=(Code.VALIDATION_ERROR, AWAY),
    ),
    Operation(
        id="runSweep",
        method="post",
        path="/v1/sweeps/{sweep}",
        tag="Operation",
        summary="Run a sweep now",
        description="Answers when it is done. Where it runs already, on this replica or another, it runs again after "
        "that; `503` where that takes longer than a minute.",
        least=Role.ADMIN,
        answers=(Answer(200, "What it did.", (SweepRun,), examples.SWEEP_RUN),),
        codes=(Code.RESOURCE_NOT_FOUND, AWAY),
    ),
    Operation(
        id="runAudit",
        method="post",
        path="/v1/audit",
        tag="Operation",
        summary="Check every invariant of the books",
        description="Of one account or of all, while traffic goes on (contract A1 to A7). What is found is in the "
        "answer.",
        least=Role.ADMIN,
        body=Body(bodies.AuditBody, examples.AUDIT, required=False),
        answers=(Answer(200, "What was checked and what was found.", (AuditReport,), examples.AUDITED),),
        codes=(Code.RESOURCE_NOT_FOUND, AWAY),
    ),
    Operation(
        id="getLiveness",
        method="get",
        path="/health/live",
        tag="Operation",
        summary="Say that the process answers",
        description="Asks nothing of the database.",
        least=None,
        answers=(Answer(200, "It does.", (operation.HealthView,), examples.LIVE),),
    ),
    Operation(
        id="getReadiness",
        method="get",
        path="/health/ready",
        tag="Operation",
        summary="Say whether commands can be carried out",
        description="`503` while the database is away.",
        least=None,
        answers=(Answer(200, "They can.", (operation.HealthView,), examples.READY),),
        codes=(AWAY,),
    ),
    Operation(
        id="getMetrics",
        method="get",
        path="/metrics",
        tag="Operation",
        summary="Show every metric to Prometheus",
        description="In Prometheus's text format.",
        least=None,
        answers=(Answer(200, "The metrics.", (str,), examples.METRICS, media_type=CONTENT_TYPE_LATEST),),
    ),
    Operation(
        id="getClock",
        method="get",
        path="/v1/clock",
        tag="Operation",
        summary="Show the instant that decisions use",
        description="The database's clock, or the simulated one (T3).",
        least=Role.READER,
        answers=(Answer(200, "The clock.", (operation.ClockView,), examples.CLOCK),),
        codes=(Code.VALIDATION_ERROR, AWAY),
    ),
    Operation(
        id="moveClock",
        method="put",
        path="/v1/clock",
        tag="Operation",
        summary="Move a simulated clock forwards",
        description="It stands still between moves, and never goes back. `404` unless the service was started with "
        "one.",
        least=Role.ADMIN,
        body=Body(bodies.ClockBody, examples.CLOCK_MOVE),
        answers=(Answer(200, "The clock as it is now.", (operation.ClockView,), examples.CLOCK),),
        codes=(Code.RESOURCE_NOT_FOUND, AWAY),
    ),
    Operation(
        id="getOpenapi",
        method="get",
        path="/schema/openapi.json",
        tag="Operation",
        summary="Show this document",
        description="OpenAPI 3.1.",
        least=None,
        answers=(Answer(200, "This document.", (dict[str, Any],), examples.OPENAPI),),
        codes=(AWAY,),
    ),
)

OPERATIONS: Final[tuple[Operation, ...]] = (*_JOBS, *_PRICES, *_ACCOUNTS, *_USAGE, *_OPERATION)
"""Every method of every route."""
