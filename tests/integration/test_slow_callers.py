"""Callers that dawdle are cut off, and what they send without end is not kept; those that only take their time are not.

uvicorn as `serve` runs it, around an application that takes bodies and answers as much as it is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import uvicorn

from ledger import serve, wire

PATIENCE_SECONDS: Final = 30
LIMIT_SECONDS: Final = 0.5

HEAD: Final = b"POST / HTTP/1.1\r\nHost: ledger\r\n"
CHUNKED: Final = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class App:
    """Answers with the size of the body, or with so many megabytes as the path says; notes who went away."""

    def __init__(self) -> None:
        self.went_away = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.went_away.set()
                return
            size, more = size + len(message["body"]), message["more_body"]
        answer = str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(int(scope["path"][1:] or 0)):
            await send({"type": "http.response.body", "body": b" " * 1_000_000, "more_body": True})
        await send({"type": "http.response.body", "body": answer, "more_body": False})
        if scope["path"] != "/":
            self.went_away.set()


@contextlib.asynccontextmanager
async def _running(app: App) -> AsyncIterator[int]:
    """Run the server, and give its port."""
    started = asyncio.Event()
    config = uvicorn.Config(app, loop="none", http=wire.Protocol, lifespan="off", log_config=None, access_log=False)
    server = serve._Server(config, started.set)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await started.wait()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            server.force_exit = True
            await running


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def port(app: App, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(serve, "CHECK_TICKS", 1)
    async with _running(app) as port:
        yield port


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the other side closes or cuts the connection."""
    received = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                received += data
    return received


async def _drip(writer: asyncio.StreamWriter, what: bytes) -> None:
    """Send something again and again, slowly, until nobody takes it."""
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(what)
            await writer.drain()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("limit", "begin", "drip"),
    [
        ("HEAD_SECONDS_MAX", b"", b""),
        ("HEAD_SECONDS_MAX", HEAD, b"X-Slow: loris\r\n"),
        ("HEAD_SECONDS_MAX", b"GET /", b"x"),
        ("HEAD_SECONDS_MAX", b"", b"\r\n"),
        ("REQUEST_SECONDS_MAX", HEAD + b"Content-Length: 100000\r\n\r\n", b"x"),
        ("REQUEST_SECONDS_MAX", CHUNKED, b"1\r\nx\r\n"),
        ("REQUEST_SECONDS_MAX", CHUNKED + b"0\r\n", b"X-Trailer: slow\r\n"),
    ],
    ids=["silence", "headers", "address", "empty lines", "body", "chunks", "trailers"],
)
async def test_a_request_without_an_end_is_cut_off(
    port: int, app: App, monkeypatch: pytest.MonkeyPatch, limit: str, begin: bytes, drip: bytes
) -> None:
    monkeypatch.setattr(wire, limit, LIMIT_SECONDS)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.monotonic()
    writer.write(begin)
    dripping = asyncio.create_task(_drip(writer, drip))
    assert await _until_closed(reader) == b""
    assert time.monotonic() - begun >= LIMIT_SECONDS
    writer.close()
    await dripping
    if limit == "REQUEST_SECONDS_MAX":
        await asyncio.wait_for(app.went_away.wait(), PATIENCE_SECONDS)  # It does not wait for the rest.


async def test_so_is_one_that_never_begins_behind_another(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_SECONDS_MAX", LIMIT_SECONDS)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: ledger\r\n\r\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await reader.readuntil(b"0\r\n\r\n")
    dripping = asyncio.create_task(_drip(writer, b"\r\n"))
    assert await _until_closed(reader) == b""
    writer.close()
    await dripping


async def test_an_answer_that_nobody_takes_is_given_up(port: int, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ANSWER_SECONDS_MAX", LIMIT_SECONDS)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
    writer.write(b"GET /50 HTTP/1.1\r\nHost: ledger\r\n\r\n")
    await asyncio.wait_for(app.went_away.wait(), PATIENCE_SECONDS)
    assert len(await _until_closed(reader)) < 50_000_000
    writer.close()


async def test_an_answer_that_is_taken_is_sent_to_its_end(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: it is the standstill that is limited."""
    monkeypatch.setattr(wire, "ANSWER_SECONDS_MAX", 5.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /20 HTTP/1.1\r\nHost: ledger\r\nConnection: close\r\n\r\n")
    assert len(await _until_closed(reader)) > 20_000_000
    writer.close()


@pytest.mark.parametrize(
    ("begin", "flood"),
    [
        (b"GET / HTTP/1.1\r\nX-Long: ", b"x" * 4_096),
        (b"GET / HTTP/1.1\r\n", b"X-Many: x\r\n" * 400),
        (b"GET /", b"x" * 4_096),
        (CHUNKED + b"0\r\nX-Trailer: ", b"x" * 4_096),
        (CHUNKED + b"1;extension=", b"x" * 4_096),
    ],
    ids=["one header", "many headers", "address", "trailer", "extension"],
)
async def test_what_is_no_body_is_not_taken_without_end(port: int, begin: bytes, flood: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begin)
    sent = 0

    async def go_on() -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(flood)
                await writer.drain()
                sent += len(flood)
                await asyncio.sleep(0)

    sending = asyncio.create_task(go_on())
    answer = await _until_closed(reader)
    writer.close()
    await sending
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert sent < 10_000_000  # what the sockets between had room for


async def test_whoever_only_takes_its_time_is_served(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_SECONDS_MAX", 20.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):  # over one connection
        body = b"x" * 300_000
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
        for part in (head[:10], head[10:], body[:7], body[7:200_000], body[200_000:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"6\r\n300000\r\n0\r\n\r\n"
    writer.close()


async def test_requests_one_behind_the_other_are_all_served(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    one = HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 1_000
    writer.write(one * 200)
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(200):
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert b"1000" in await reader.readuntil(b"0\r\n\r\n")
    writer.close()
