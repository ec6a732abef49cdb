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
    """Answers with the size of the body, behind as many megabytes as the path says; notes who went away.

    The megabytes are written one by one, or `in_one_piece`. Whoever has sent its whole request waits for `may_answer`.
    """

    def __init__(self) -> None:
        self.went_away = asyncio.Event()
        self.works = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.in_one_piece = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.went_away.set()
                return
            size, more = size + len(message["body"]), message["more_body"]
        self.works.set()
        await self.may_answer.wait()
        answer = str(size).encode()
        megabytes = int(scope["path"][1:] or 0)
        pieces = [megabytes] if self.in_one_piece else [1] * megabytes
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in pieces:
            await send({"type": "http.response.body", "body": b" " * 1_000_000 * piece, "more_body": True})
            await asyncio.sleep(0)  # Now it is on its way, and what comes behind waits until it was taken.
        await send({"type": "http.response.body", "body": answer, "more_body": False})
        if scope["path"] != "/":
            self.went_away.set()


@contextlib.asynccontextmanager
async def _running(app: App) -> AsyncIterator[int]:
    """Run the server, and give its port."""
    started = asyncio.Event()
    http = wire.refusing(lambda what: wire.Refusal([], what.encode()))
    config = uvicorn.Config(app, loop="none", http=http, lifespan="off", log_config=None, access_log=False)
    server = serve._Server(config, started.set)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # What is taken is soon seen to be.
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
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
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


@pytest.mark.parametrize(
    ("behind", "drip"),
    [(b"\r\n", b"\r\n"), (b"GET /", b"x"), (HEAD + b"Content-Length: 100000\r\n\r\nx", b"x")],
    ids=["empty line", "head", "body"],
)
async def test_nobody_is_cut_off_while_we_are_at_work(
    port: int, app: App, monkeypatch: pytest.MonkeyPatch, behind: bytes, drip: bytes
) -> None:
    """Whatever it has sent of a next request: that has its time when the first one is answered."""
    monkeypatch.setattr(wire, "HEAD_SECONDS_MAX", LIMIT_SECONDS)
    monkeypatch.setattr(wire, "REQUEST_SECONDS_MAX", LIMIT_SECONDS)
    app.may_answer.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"Content-Length: 3\r\n\r\nxxx")
    await asyncio.wait_for(app.works.wait(), PATIENCE_SECONDS)
    writer.write(behind)  # In a packet of its own.
    await asyncio.sleep(4 * LIMIT_SECONDS)
    app.may_answer.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"1\r\n3\r\n0\r\n\r\n")
    dripping = asyncio.create_task(_drip(writer, drip))
    assert await _until_closed(reader) == b""
    writer.close()
    await dripping


async def test_what_is_no_http_is_not_refused_in_place_of_the_request_before(port: int, app: App) -> None:
    """It might have been committed."""
    app.may_answer.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"Content-Length: 3\r\n\r\nxxx")
    await asyncio.wait_for(app.works.wait(), PATIENCE_SECONDS)
    writer.write(b"nonsense\r\n\r\n")
    assert await _until_closed(reader) == b""
    app.may_answer.set()
    writer.close()


async def test_but_it_is_when_that_was_answered(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: ledger\r\n\r\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await reader.readuntil(b"0\r\n\r\n")
    writer.write(b"nonsense\r\n\r\n")
    assert (await _until_closed(reader)).startswith(b"HTTP/1.1 400 ")
    writer.close()


@pytest.mark.parametrize("in_one_piece", [False, True])
async def test_an_answer_that_nobody_takes_is_given_up(
    port: int, app: App, monkeypatch: pytest.MonkeyPatch, in_one_piece: bool
) -> None:
    monkeypatch.setattr(wire, "ANSWER_SECONDS_MAX", LIMIT_SECONDS)
    app.in_one_piece = in_one_piece
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
    writer.write(b"GET /50 HTTP/1.1\r\nHost: ledger\r\n\r\n")
    await asyncio.wait_for(app.went_away.wait(), PATIENCE_SECONDS)
    assert len(await _until_closed(reader)) < 50_000_000
    writer.close()


async def test_an_answer_that_is_taken_steadily_is_sent_to_its_end(
    port: int, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes, and though it is written in one piece: it is the standstill that is limited."""
    limit = 1.0  # Long enough for a loaded machine to let the caller take some.
    monkeypatch.setattr(wire, "ANSWER_SECONDS_MAX", limit)
    app.in_one_piece = True
    begun = time.monotonic()
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        caller.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(caller, ("127.0.0.1", port))
        await loop.sock_sendall(caller, b"GET /4 HTTP/1.1\r\nHost: ledger\r\nConnection: close\r\n\r\n")
        taken = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while data := await loop.sock_recv(caller, 16_384):
                taken += len(data)
                await asyncio.sleep(limit / 80)
    assert taken > 4_000_000
    assert time.monotonic() - begun > 2 * limit


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
