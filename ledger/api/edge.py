"""The edge of the service: every request has an id, is counted and timed, and has one line in the log.

What the line says is what routes leave in the scope: the template of the path, its names, and what came of it. Never a
token, a query, a body or anything of one.
"""

from __future__ import annotations

import itertools
import re
import secrets
import time
from typing import TYPE_CHECKING, Final

import structlog
from litestar.enums import ScopeType
from litestar.types import Receive, Scope, Send

from ledger import metrics, tracing
from ledger.api.bodies import IDENTIFIER
from ledger.api.errors import answer_of, invalid
from ledger.api.http import encode, header
from ledger.wire import Refusal

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPScope, Message
    from opentelemetry.trace import Span
    from prometheus_client import Counter, Histogram

UNMATCHED: Final = "unmatched"
"""The route of requests that have none."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER: Final = "other"
"""What any other method is called."""

PROBES: Final = frozenset({"/health/live", "/health/ready", "/metrics"})
"""Routes that are asked all the time: when they answer well, that is logged at the level `debug`."""

_PROCESS: Final = secrets.token_hex(8)
_numbers: Final = itertools.count(1)
"""Request ids of this process: chance tells it from every other, and a number the request, without a system call."""

_REQUEST_ID: Final = re.compile(r"[\x20-\x7e]{1,255}")
_NAME: Final = re.compile(IDENTIFIER)


class Edge:
    """ASGI middleware, the outermost: gives a request its id, the caller's or a new one, and tells of it (E1)."""

    def __init__(self, app: ASGIApp, *, log_requests: str = "all") -> None:
        self._app = app
        self._status_logged_from = 0 if log_requests == "all" else 400
        self._log = structlog.get_logger(__name__).bind()  # Made once: a line for each request is to cost little.
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its id."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        given = header(scope, b"x-request-id")
        request_id = given if given and _REQUEST_ID.fullmatch(given) else _new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                nonlocal status
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        with tracing.request(scope["headers"]) as span:
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                self._tell(scope, status, time.perf_counter() - begun, span)

    def _tell(self, scope: HTTPScope, status: int, seconds: float, span: Span | None) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = scope.get("path_template") or UNMATCHED
        requests, durations = self._series.get((method, route, status)) or self._new_series(method, route, status)
        requests.inc()
        durations.observe(seconds)
        if span is not None:
            tracing.answered(span, str(scope["state"]["request_id"]), method, route, status)
        if status >= self._status_logged_from:
            self._write_line(scope, method, route, status, seconds)

    def _new_series(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        """Keep the series of a kind of request at hand; there are only so many kinds."""
        series = (metrics.HTTP_REQUESTS.labels(method, route, str(status)), metrics.HTTP_SECONDS.labels(method, route))
        self._series[method, route, status] = series
        return series

    def _write_line(self, scope: HTTPScope, method: str, route: str, status: int, seconds: float) -> None:
        state = scope["state"]
        names = scope.get("path_params", {})
        line = {"request_id": state["request_id"], "method": method, "route": route}
        for key, name in _NAMES:
            if name in names and _NAME.match(names[name]):
                line[key] = names[name]
        line["outcome"] = state.get("outcome", "done")
        line["status"] = status
        line["ms"] = round(seconds * 1000, 2)
        if "outcomes" in state:
            line["outcomes"] = state["outcomes"]
        if status >= 500:
            self._log.error("request", **line)
        elif route in PROBES:
            self._log.debug("request", **line)
        else:
            self._log.info("request", **line)


_NAMES: Final = (("account", "account_id"), ("job", "job_id"))


def no_http(message: str, doc_base: str) -> Refusal:
    """Return what bytes are answered with that are no HTTP, and so no request that the edge sees (E1)."""
    request_id = _new_request_id()
    answer = answer_of(invalid(f"HTTP: {message}"), request_id, doc_base)
    return Refusal([(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())], encode(answer))


def _new_request_id() -> str:
    return f"req_{_PROCESS}{next(_numbers):08x}"
