"""What the model expects of the service: answers, and refusals with their figures (section E)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Final

from .model_books import Job
from .model_prices import Json


class _Absent:
    """The mark of a field that must not be there at all."""

    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final = _Absent()

TEMPORARY = {
    "period_quota_exhausted",
    "concurrency_limit_reached",
    "call_concurrency_limit_reached",
    "request_in_flight",
}

STATUS_OF_CODE = {
    "gateway_not_enabled": 403,
    "insufficient_credits": 402,
    "spending_cap_reached": 402,
    "period_quota_exhausted": 429,
    "concurrency_limit_reached": 429,
    "call_concurrency_limit_reached": 429,
    "request_exceeds_period_quota": 409,
    "request_in_flight": 409,
    "idempotency_key_reused": 409,
    "result_not_replayable": 409,
    "job_not_completed": 409,
    "job_already_closed": 409,
    "validation_error": 400,
    "resource_not_found": 404,
    "operation_not_priced": 500,
}


@dataclass(frozen=True)
class Expected:
    """What the service must answer; `body` has the fields that the contract makes predictable, no other."""

    status: int
    code: str | None = None
    body: Json | None = field(default=None)


def answer(status: int, body: Json) -> Expected:
    """An answer that is no refusal."""
    return Expected(status, None, copy.deepcopy(body))


def refusal(code: str, **details: Any) -> Expected:
    """A refusal; it says when to come back if it is temporary, and never otherwise (E2)."""
    assert (code in TEMPORARY) == ("retry_after" in details), code
    details.setdefault("retry_after", ABSENT)
    return Expected(STATUS_OF_CODE[code], code, {"error": {"code": code, "details": details}})


def refusal_of_closed(code: str, job: Job) -> Expected:
    """A 409 about a job that is closed says which, how it ended and what it cost (J10)."""
    return refusal(code, job_id=job.job_id, status=job.status, credits_charged=job.credits_charged)


NOT_FOUND = refusal("resource_not_found")
INVALID = refusal("validation_error")
