"""The requests that a job's plan is sent as. Pure.

A row always gives the same bodies, so that to send it again is a repetition and nothing else.
"""

from decimal import Decimal

import msgspec

from ledger.replay.trace import NS_PER_SECOND, Close, JobPlan, Line

__all__ = ["job_path", "release", "reservation", "settlement", "ttl_seconds"]

SPARE_SECONDS = 900
"""How long a hold lives after its job should have been closed: the service's own default."""

TTL_SECONDS_MAX = 86_400


def job_path(plan: JobPlan) -> str:
    """The path of the job; its settlement and its release are below it."""
    return f"/v1/accounts/{plan.account_id}/jobs/{plan.job_id}"


def reservation(plan: JobPlan, stem: str, speed: float) -> bytes:
    """The body of a job's reservation: the same for the same row, but for a time to live at slow motion."""
    row = plan.row
    body: dict[str, object] = {
        "environment": plan.environment,
        "lines": _lines(plan.reserved),
        "ttl_seconds": ttl_seconds(plan, speed),
        "metadata": {
            "trace": stem,
            "row": str(row.number),
            "context_tokens": str(row.context_tokens),
            "generated_tokens": str(row.generated_tokens),
        },
    }
    if plan.is_call:
        body |= {"transferable": True, "allow_partial": True, "idempotency_key": plan.job_id}
    return msgspec.json.encode(body)


def ttl_seconds(plan: JobPlan, speed: float) -> int:
    """How long a hold lives, in seconds: until its close is due, and a quarter of an hour more."""
    if plan.close is Close.EXPIRE:
        return SPARE_SECONDS
    open_seconds = plan.close_after_ns / NS_PER_SECOND / (min(speed, 1.0) or 1.0)
    return int(min(SPARE_SECONDS + open_seconds, TTL_SECONDS_MAX))


def settlement(plan: JobPlan, stem: str) -> bytes:
    """The body of a job's settlement. Speech keeps no result (the gateway stores no audio), the others do."""
    body: dict[str, object] = {"lines": _lines(plan.settled), "record": _record(plan, stem, 200)}
    if plan.operation == "tts_synthesis":
        body["result_stored"] = False
    else:
        body["result"] = {"status": "completed", "generated_tokens": plan.row.generated_tokens}
    return msgspec.json.encode(body)


def release(plan: JobPlan, stem: str) -> bytes:
    """The body of a job's release: the provider was away."""
    return msgspec.json.encode({"error_code": "upstream_unavailable", "record": _record(plan, stem, 503)})


def _record(plan: JobPlan, stem: str, status_code: int) -> dict[str, object]:
    return {
        "request_id": f"req_{stem}_{plan.row.number}",
        "status_code": status_code,
        "latency_ms": 10 * plan.row.generated_tokens,
        "key_prefix": f"ak_{plan.environment}_{plan.account_id.removeprefix('acct-')}",
    }


def _lines(lines: tuple[Line, ...]) -> list[dict[str, object]]:
    return [{"operation": each.operation, "quantity": _number(each.quantity)} for each in lines]


def _number(quantity: Decimal) -> int | float:
    """A JSON number; at most two decimals, so a float's shortest form is exact."""
    return int(quantity) if quantity == quantity.to_integral_value() else float(quantity)
