"""The parameters of paths and queries, and the headers that every request and answer has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ledger.api import bodies
from ledger.api.openapi.schemas import Schema
from ledger.api.parameters import STATUSES
from ledger.core.commands import ENVIRONMENTS
from ledger.queries.paging import LIMIT_DEFAULT, LIMIT_MAX
from ledger.queries.usage import BY_OPERATION, GROUPS

_NAME: Final = re.compile(r"\{(\w+)\}")
_IDENTIFIER: Final[Schema] = {"type": "string", "pattern": bodies.IDENTIFIER, "maxLength": 128}
_MONTH: Final[Schema] = {"type": "string", "pattern": bodies.MONTH}
_INSTANT: Final[Schema] = {"type": "string", "format": "date-time"}
_DAY: Final[Schema] = {"type": "string", "format": "date"}


def _path(name: str, description: str, schema: Schema, example: str) -> Schema:
    return _parameter(name, "path", description, schema, example) | {"required": True}


def _query(name: str, description: str, schema: Schema, example: object) -> Schema:
    return _parameter(name, "query", description, schema, example)


def _parameter(name: str, where: str, description: str, schema: Schema, example: object) -> Schema:
    return {"name": name, "in": where, "description": description, "schema": schema, "example": example}


PARAMETERS: Final[Mapping[str, Schema]] = {
    "account_id": _path("account_id", "The account, as the caller names it.", _IDENTIFIER, "acme"),
    "job_id": _path("job_id", "The job, as the caller names it.", _IDENTIFIER, "call-4471"),
    "grant_id": _path(
        "grant_id",
        "The grant, as the caller names it. `welcome` and `refund-…` are the service's own.",
        _IDENTIFIER,
        "inv-77",
    ),
    "month": _path("month", "The month of the invoice, `YYYY-MM`.", _MONTH, "2026-10"),
    "statement_period": _path("period", "The month, `YYYY-MM`, in UTC (Q2).", _MONTH, "2026-11"),
    "confirmation_code": _path(
        "confirmation_code",
        "What the request for a deletion was answered with.",
        {"type": "string", "minLength": 1},
        "del_Zk3vQ0p2mW8sYt5nB1xLc7Ha",
    ),
    "sweep": _path("sweep", "The sweep, by its name.", {"type": "string", "minLength": 1}, "expire_holds"),
    "after": _query(
        "after",
        "The `next_cursor` of the page before; opaque. Without it, the first events there are.",
        {"type": "string", "minLength": 1},
        "X3mcATM8WyJldmVudHMiLDAsWzFdXQ",
    ),
    "event_account": _query("account_id", "Only events of this account.", _IDENTIFIER, "acme"),
    "limit": _query(
        "limit",
        "How many rows to return at most.",
        {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
        LIMIT_DEFAULT,
    ),
    "cursor": _query(
        "cursor",
        "The `next_cursor` of the page before, of the same list and account; opaque.",
        {"type": "string", "minLength": 1},
        "8pG5QVHRWyJlbnRyaWVzIiwxLFszXV0",
    ),
    "environment": _query("environment", "Only this environment.", {"enum": list(ENVIRONMENTS)}, "live"),
    "status": _query(
        "status", "Only jobs of this status, as time has decided it (T1).", {"enum": [*STATUSES]}, "settled"
    ),
    "operation": _query(
        "operation",
        "Only jobs whose own operation is this.",
        {"type": "string", "pattern": bodies.OPERATION},
        "agent_turn",
    ),
    "from": _query(
        "from",
        "The first instant, with `Z` or an offset; the range is half-open (T2).",
        _INSTANT,
        "2026-11-01T00:00:00Z",
    ),
    "to": _query("to", "The first instant after the range.", _INSTANT, "2026-12-01T00:00:00Z"),
    "from_day": _query(
        "from",
        "The first day, in UTC; comes with `to`, and not with `period`. Days are those of settlement.",
        _DAY,
        "2026-11-01",
    ),
    "to_day": _query("to", "The day after the last; comes with `from`.", _DAY, "2026-12-01"),
    "period": _query("period", "The month that jobs count in (J14); this month, without a range.", _MONTH, "2026-11"),
    "group_by": _query(
        "group_by",
        "What lines are apart by, separated by commas.",
        {"type": "array", "items": {"enum": list(GROUPS)}, "minItems": 1, "default": list(BY_OPERATION)},
        ["operation", "day"],
    )
    | {"style": "form", "explode": False},
    "canonical": _query(
        "canonical",
        "Whether each entry shows the exact text that was hashed (A7).",
        {"type": "boolean", "default": False},
        True,
    ),
    "at": _query(
        "at",
        "The instant to look back to, inclusive, with `Z` or an offset; now without it.",
        _INSTANT,
        "2026-11-14T09:30:00Z",
    ),
    "X-Request-Id": _parameter(
        "X-Request-Id",
        "header",
        "A name for the request, which the answer and its errors repeat; made up where it is absent, or not 1 to 200 "
        "visible ASCII characters.",
        {"type": "string"},
        "req_0f6f7c1d2b9a4e5d8c3b2a19",
    ),
}
"""By a name of ours, which is the parameter's own unless two of them share it."""

HEADERS: Final[Mapping[str, Schema]] = {
    "X-Request-Id": {
        "description": "The request's id: the caller's, or a new one (E1).",
        "required": True,
        "schema": {"type": "string"},
    }
}

LIST: Final = ("limit", "cursor")
"""The parameters of every list."""
JOB_FILTER: Final = ("environment", "status", "operation", "from", "to")
"""What narrows lists of jobs and of usage records."""


def names_in(path: str) -> list[str]:
    """Return the parameters of a path, by our names for them."""
    return ["statement_period" if name == "period" else name for name in _NAME.findall(path)]
