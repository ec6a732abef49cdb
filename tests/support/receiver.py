"""A receiver of signed deliveries, as a customer's system has it, that can fail in every way a server can.

What it knows of signatures is written from the contract alone (V4), and shares nothing with the code that signs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDictProxy

WAIT_SECONDS_MAX: Final = 60


def verified(header: str, body: bytes, secret: str) -> bool:
    """Tell whether any signature of a header is the one that a secret gives."""
    parts = [part.partition("=") for part in header.split(",")]
    (instant,) = (value for name, _, value in parts if name == "t")
    signatures = [value for name, _, value in parts if name == "v1"]
    expected = hmac.new(secret.encode(), f"{instant}.".encode() + body, hashlib.sha256).hexdigest()
    return any(hmac.compare_digest(each, expected) for each in signatures)


@dataclass(frozen=True)
class Request:
    """What arrived at one path."""

    path: str
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def signature(self) -> str:
        (header,) = self.headers.getall("Asixto-Signature")
        return header

    @property
    def instant(self) -> int:
        return int(self.signature.split(",")[0].removeprefix("t="))

    @property
    def event(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """A server; the first part of a path says how it answers."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    """Paths that answer otherwise than they are called."""
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets go what waits at `/held`."""

    def at(self, path: str) -> list[Request]:
        """Return what has arrived at a path."""
        return [request for request in self.requests if request.path == path]

    def ids(self, path: str) -> list[str]:
        return [request.event["id"] for request in self.at(path)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not condition():  # noqa: ASYNC110 - what arrives is polled, whatever made it arrive
                await asyncio.sleep(0.02)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(Request(request.path, request.headers, await request.read()))
        kind = self.faults.get(request.path, request.path).split("/")[1]
        if kind.isdigit():
            return web.Response(status=int(kind), text="seen", headers={"Location": f"{self.url}/target"})
        answer: web.StreamResponse = await getattr(self, f"_{kind}")(request)
        return answer

    async def _ok(self, _: web.Request) -> web.StreamResponse:
        return web.Response(status=204)

    async def _held(self, _: web.Request) -> web.StreamResponse:
        await self.held.wait()
        return web.Response()

    async def _silent(self, _: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    async def _half(self, request: web.Request) -> web.StreamResponse:
        """Begin to answer, and go no further."""
        begun = web.StreamResponse(headers={"Content-Length": "1000"})
        await begun.prepare(request)
        await begun.write(b"x" * 500)
        await asyncio.sleep(3600)
        return begun

    async def _cut(self, request: web.Request) -> web.StreamResponse:
        """Close the connection in the middle of an answer."""
        begun = web.StreamResponse(headers={"Content-Length": "1000"})
        await begun.prepare(request)
        await begun.write(b"x" * 500)
        return await self._close(request)

    async def _close(self, request: web.Request) -> web.StreamResponse:
        """Close the connection, without or in the middle of an answer."""
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        begun = web.StreamResponse()
        await begun.prepare(request)
        while True:
            await begun.write(b"x" * 10_000)


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a receiver on a free port of this machine."""
    receiver = Receiver()
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", receiver.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
