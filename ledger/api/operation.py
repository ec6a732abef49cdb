"""Operating the service: health, metrics, the clock, the audit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import asyncpg
import msgspec
from litestar import Request, Response, get, post, put
from prometheus_client import CONTENT_TYPE_LATEST

from ledger import metrics
from ledger.api import bodies
from ledger.api.errors import away, invalid, not_found
from ledger.api.http import json_response, needs, read_body, reply
from ledger.api.services import database_now, services_of
from ledger.audit import AccountUnknownError, audit
from ledger.tokens import Role

READY_SECONDS_MAX: Final = 2
AUDIT_WAIT_SECONDS_MAX: Final = 60
"""How long an audit waits for the one before it."""

CLOCK_END: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""Where a simulated clock ends: what is decided before it can still have deadlines and months after it."""

_read_clock = bodies.decoder(bodies.ClockBody)
_read_audit = bodies.decoder(bodies.AuditBody)

AnyRequest = Request[Any, Any, Any]


class HealthView(msgspec.Struct, frozen=True):
    """Whether the service is well."""

    status: str


class ClockView(msgspec.Struct, frozen=True):
    """The instant that decisions use, and whether it only moves when told to."""

    now: datetime
    simulated: bool


@get("/health/live")
async def live() -> Response[bytes]:
    """Say that the process answers."""
    return json_response(reply(200, HealthView("live")))


@get("/health/ready")
async def ready(request: AnyRequest) -> Response[bytes]:
    """Say whether commands can be carried out: 503 while the database is away."""
    services = services_of(request.scope)
    try:
        async with services.health.acquire(timeout=READY_SECONDS_MAX) as connection:
            await connection.fetchval("select 1")
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise away() from error
    return json_response(reply(200, HealthView("ready")))


@get("/metrics")
async def show_metrics(request: AnyRequest) -> Response[bytes]:
    """Show every metric to Prometheus, also while the database is away."""
    await services_of(request.scope).gauges.refresh()
    return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8"))


@get("/v1/clock", guards=[needs(Role.READER)])
async def show_clock(request: AnyRequest) -> Response[bytes]:
    """Show the instant that decisions use (T3)."""
    bodies.known_parameters(request.query_params.keys())
    services = services_of(request.scope)
    return json_response(reply(200, ClockView(_utc(await database_now(services)), services.settings.simulated_clock)))


@put("/v1/clock", guards=[needs(Role.ADMIN)])
async def move_clock(request: AnyRequest) -> Response[bytes]:
    """Move a simulated clock forwards."""
    services = services_of(request.scope)
    if not services.settings.simulated_clock:
        raise not_found("a simulated clock")
    body = _read_clock(await read_body(request.scope, request.receive))
    wanted = bodies.instant("now", body.now)
    if wanted >= CLOCK_END:
        raise invalid("now: the clock ends with the year 9998: months and deadlines after it need a name")
    moved = await services.pool.fetchval("update ledger.clock set now = $1 where now <= $1 returning now", wanted)
    if moved is None:
        now = _utc(await database_now(services))
        raise invalid(f"now: the clock only moves forwards, and is at {now.isoformat()}")
    return json_response(reply(200, ClockView(_utc(moved), True)))


@post("/v1/audit", guards=[needs(Role.ADMIN)], status_code=200)
async def run_audit(request: AnyRequest) -> Response[bytes]:
    """Check every invariant of the books, of one account or of all (contract A)."""
    services = services_of(request.scope)
    body = _read_audit(await read_body(request.scope, request.receive) or b"{}")
    async with services.audits.acquire(timeout=AUDIT_WAIT_SECONDS_MAX) as connection:
        try:
            report = await audit(connection, body.account_id)
        except AccountUnknownError:
            raise not_found(f"account {body.account_id}") from None
    return json_response(reply(200, report))


def _utc(instant: datetime) -> datetime:
    return instant.astimezone(UTC)


ROUTES: Final = [live, ready, show_metrics, show_clock, move_clock, run_audit]
