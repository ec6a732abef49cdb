"""The errors, code by code: when each is answered, and an answer as it is sent (contract E1 to E3)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from ledger.api.errors import STATUS, ApiError, ErrorAnswer, answer_of
from ledger.api.openapi.schemas import Schema, reference
from ledger.core.commands import Code
from ledger.settings import Settings

REQUEST_ID: Final = "req_0f6f7c1d2b9a4e5d8c3b2a19"
DOC_BASE: Final = Settings().doc_base_url


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A code: when it is answered, and an example: its message, figures and `Retry-After` in seconds."""

    when: str
    message: str
    details: Mapping[str, Any] = {}
    retry_after: int | None = None


_CLOSED: Final = {"job_id": "call-4471", "status": "settled", "credits_charged": 3240}

EXPLAINED: Final[Mapping[str, Explained]] = {
    Code.VALIDATION_ERROR: Explained(
        when="The request has not the shape that is asked for; the message begins with the name of the field.",
        message="lines[0].quantity: Expected `int` >= 0",
    ),
    "authentication_required": Explained(
        when="No valid token came along.", message="a valid token is needed: Authorization: Bearer <token>"
    ),
    "permission_denied": Explained(when="The token's role is too small.", message="the role reader may not do this"),
    Code.INSUFFICIENT_CREDITS: Explained(
        when="The balance does not cover it and overage is not usable (F6), or there is an overdraft (J12).",
        message="the balance does not cover it and overage is not usable",
        details={"required_credits": 620, "available_credits": 460},
    ),
    Code.SPENDING_CAP_REACHED: Explained(
        when="It does not fit under the cap of overage (O5).",
        message="the spending cap does not admit it",
        details={"required_credits": 620, "available_credits": 0, "cap_credits": 20_000, "overage_credits": 19_840},
    ),
    Code.GATEWAY_NOT_ENABLED: Explained(
        when="No such account, no gateway module, access suspended, or no quota row for the environment (Q1, Q6).",
        message="the gateway is not enabled: the account has no quota in test",
    ),
    Code.RESOURCE_NOT_FOUND: Explained(
        when="What the path names does not exist for the asker (J11).", message="job call-4471 does not exist"
    ),
    "method_not_allowed": Explained(
        when="The path is asked with a method that it has not; `Allow` names those it has.",
        message="the route has no such method",
    ),
    Code.IDEMPOTENCY_KEY_REUSED: Explained(
        when="The same id or key came before with another request; of a closed job, `details` tell how it ended (J10).",
        message="this job_id was used for another request",
        details=_CLOSED,
    ),
    Code.REQUEST_IN_FLIGHT: Explained(
        when="The job is still open, until `Retry-After` at the latest (J10).",
        message="the job is still open",
        retry_after=1_140,
    ),
    Code.RESULT_NOT_REPLAYABLE: Explained(
        when="The job is settled, and its result was never kept or is past its 24 hours (J10).",
        message="the result's 24 hours are over",
        details=_CLOSED,
    ),
    Code.JOB_NOT_COMPLETED: Explained(
        when="The job outlived its deadline (J5, J6).",
        message="the job's deadline passed without a close",
        details={"job_id": "call-4471", "status": "expired", "credits_charged": 0},
    ),
    Code.JOB_ALREADY_CLOSED: Explained(
        when="The job was closed in the other way: released, or settled.",
        message="the job is already released",
        details={"job_id": "turn-9", "status": "released", "credits_charged": 0},
    ),
    Code.REQUEST_EXCEEDS_PERIOD_QUOTA: Explained(
        when="It would not fit even an unused month's ceiling, so waiting does not help (Q3).",
        message="the request does not fit the period's ceiling even when it is unused",
        details={"required_credits": 3_560, "period_credits": 3_000},
    ),
    "payload_too_large": Explained(
        when="The body, or the result in it, is larger than is taken.", message="result: more than 262144 bytes"
    ),
    "unsupported_media_type": Explained(
        when="The body says that it is not JSON.", message="the body must be application/json"
    ),
    Code.PERIOD_QUOTA_EXHAUSTED: Explained(
        when="What is left of the month's ceiling does not cover it (Q3); `Retry-After` up to the next month.",
        message="what is left of the period's ceiling does not cover it",
        details={
            "required_credits": 620,
            "remaining_credits": 460,
            "period_credits": 100_000,
            "resets_at": "2026-12-01T00:00:00Z",
        },
        retry_after=1_434_600,
    ),
    Code.CONCURRENCY_LIMIT_REACHED: Explained(
        when="All simultaneous requests of the environment are taken (Q4).",
        message="all 10 simultaneous requests are taken",
        details={"limit": 10, "open": 10},
        retry_after=1,
    ),
    Code.CALL_CONCURRENCY_LIMIT_REACHED: Explained(
        when="All simultaneous calls of the environment are taken (Q4).",
        message="all 5 simultaneous calls are taken",
        details={"limit": 5, "open": 5},
        retry_after=30,
    ),
    Code.OPERATION_NOT_PRICED: Explained(
        when="The catalog in force lacks a price for the operation: our defect (P1).",
        message="operation agent_dream has no price",
        details={"operation": "agent_dream"},
    ),
    "internal_error": Explained(
        when="A defect of ours; quote the request id.", message="an unforeseen error; quote the request_id"
    ),
    "upstream_unavailable": Explained(
        when="The database is away, or too much is under way; repeating the request is safe.",
        message="the database is away",
        retry_after=1,
    ),
}
"""Every code of `errors.STATUS`."""


def example_of(code: str) -> Schema:
    """Return an answer of a code, as it is sent."""
    explained = EXPLAINED[code]
    error = ApiError(code, explained.message, explained.details, retry_after=explained.retry_after)
    value = msgspec.to_builtins(answer_of(error, REQUEST_ID, DOC_BASE))
    return {"summary": explained.when, "value": value}


def response_of(codes: tuple[str, ...]) -> Schema:
    """Return the response of a status: what its codes say, and an example of each."""
    narrowed = {"properties": {"error": {"properties": {"code": {"enum": list(codes)}}}}}
    return {
        "description": "\n".join(f"- `{code}`: {EXPLAINED[code].when}" for code in codes),
        "headers": {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}, **_headers(codes)},
        "content": {
            "application/json": {
                "schema": {"allOf": [reference(ErrorAnswer), narrowed]},
                "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in codes},
            }
        },
    }


def _headers(codes: tuple[str, ...]) -> Schema:
    """Return the headers that only some errors have."""
    headers: Schema = {}
    temporary = [code for code in codes if EXPLAINED[code].retry_after is not None]
    if temporary:
        named = ", ".join(f"`{code}`" for code in temporary)
        headers["Retry-After"] = {
            "description": f"Seconds after which trying again may help; sent with {named} and never else (E2).",
            "required": temporary == list(codes),
            "schema": {"type": "integer", "minimum": 1},
        }
    if "authentication_required" in codes:
        headers["WWW-Authenticate"] = {"required": True, "schema": {"const": "Bearer"}}
    if "method_not_allowed" in codes:
        headers["Allow"] = {
            "description": "The methods that the path has.",
            "required": True,
            "schema": {"type": "string"},
        }
    return headers


def name_of(codes: tuple[str, ...]) -> str:
    """Return the name under which a response is kept."""
    return ".".join(codes)


def by_status(codes: frozenset[str]) -> dict[HTTPStatus, tuple[str, ...]]:
    """Return the statuses that codes come to, each with its codes in the order of `errors.STATUS`."""
    statuses: dict[HTTPStatus, tuple[str, ...]] = {}
    for code, status in STATUS.items():
        if code in codes:
            statuses[HTTPStatus(status)] = (*statuses.get(HTTPStatus(status), ()), str(code))
    return statuses
