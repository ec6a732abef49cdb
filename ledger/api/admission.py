"""How many requests are under way at a time, and how much of their bodies is in memory: what is too many is told so.

Those that were let in are answered in about the time that so many take. Accounts share the room: one that floods the
service leaves as much to the others as it has. What is turned away is not kept, but saying so costs as well, and
whoever asks again at once could take all the time there is. So no more than so many a second are told; others wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from litestar.enums import ScopeType
from litestar.types import Receive, Scope, Send

from ledger import metrics
from ledger.api.edge import PROBES
from ledger.api.errors import RETRY_SECONDS, ApiError
from ledger.api.http import error_reply, send_reply
from ledger.engine.room import Room

if TYPE_CHECKING:
    from litestar.types import ASGIApp
    from litestar.types.asgi_types import ReceiveMessage

ACCOUNTS: Final = "/v1/accounts/"

REFUSALS_PER_SECOND: Final = 1_000
"""How many are told that there is no room: a tenth or two of a core."""
REFUSAL_SECONDS_MAX: Final = 2.0
"""How long one waits to be told so, at most."""


class Pace:
    """Lets so many pass in a second, evenly, and none wait for longer than so long."""

    def __init__(self, per_second: float, seconds_max: float) -> None:
        self._interval = 1 / per_second
        self._seconds_max = seconds_max
        self._next = 0.0

    def wait_seconds(self, now: float) -> float:
        """Return how long the next one has to wait."""
        wait = min(max(self._next - now, 0.0), self._seconds_max)
        self._next = now + wait + self._interval
        return wait


class Admission:
    """ASGI middleware: lets a request in, or answers `503` at once."""

    def __init__(self, app: ASGIApp, *, requests: int, body_bytes: int, doc_base: str) -> None:
        self._app = app
        self._requests = Room(requests)
        self._bodies = Room(body_bytes)
        self._doc_base = doc_base
        self._pace = Pace(REFUSALS_PER_SECOND, REFUSAL_SECONDS_MAX)
        metrics.REQUESTS_LIMIT.set(requests)
        metrics.REQUESTS_IN_FLIGHT.set_function(lambda: self._requests.taken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, if there is room for it; probes always get through."""
        if scope["type"] != ScopeType.HTTP or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        who = account_of(scope["path"])
        if not self._requests.admits(who):
            metrics.REQUESTS_SHED.inc()
            await asyncio.sleep(self._pace.wait_seconds(asyncio.get_running_loop().time()))
            await send_reply(send, error_reply(_shed("too many requests are being served"), scope, self._doc_base))
            return
        self._requests.enter(who)
        size = 0

        async def receive_counted() -> ReceiveMessage:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request" and message["body"]:
                more = len(message["body"])
                if not self._bodies.admits(who, more):
                    metrics.REQUESTS_SHED.inc()
                    raise _shed("too much is being received")
                self._bodies.enter(who, more)
                size += more
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._requests.leave(who)
            if size:
                self._bodies.leave(who, size)


def account_of(path: str) -> str:
    """Return the account that a path names, or nothing: requests that are about none share the room of one."""
    return path[len(ACCOUNTS) :].partition("/")[0] if path.startswith(ACCOUNTS) else ""


def _shed(why: str) -> ApiError:
    return ApiError("upstream_unavailable", why, retry_after=RETRY_SECONDS)
