"""Answers leave in one piece, in order, and nothing is lost at the end; who is waited for, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from ledger.wire import ANSWER_SECONDS_MAX, HEAD_SECONDS_MAX, REQUEST_SECONDS_MAX, Corked, Protocol, Refusal, refusing

REQUEST = b"POST / HTTP/1.1\r\nHost: ledger\r\nContent-Length: 3\r\n\r\nxxx"


class Spy(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.sent: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.unsent = 0
        self.was_written = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.sent.append(bytes(data))
        self.was_written.set()

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class App:
    """Takes no body before it `may_take`, and answers when it `may_answer`."""

    def __init__(self) -> None:
        self.may_take = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.may_take.wait()
        while (message := await receive()).get("more_body"):
            pass
        await self.may_answer.wait()
        if message["type"] == "http.request":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})


class Connection:
    """A connection to the app, and a clock of its own."""

    def __init__(self, app: App) -> None:
        config = uvicorn.Config(app, loop="none", lifespan="off", log_config=None, access_log=False)
        self.state = ServerState()
        self.spy = Spy()
        self.protocol: Protocol = refusing(lambda what: Refusal([], what.encode()))(config, self.state, {})
        self.protocol.connection_made(self.spy)
        self.now = asyncio.get_running_loop().time()

    def is_cut_after(self, seconds: float) -> bool:
        self.now += seconds
        self.protocol.check(self.now)
        return self.spy.aborted

    async def until_answered(self) -> None:
        await asyncio.wait_for(self.spy.was_written.wait(), 30)

    async def close(self) -> None:
        self.protocol.connection_lost(None)
        for task in list(self.state.tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def app() -> App:
    return App()


@pytest.fixture
async def connection(app: App) -> AsyncIterator[Connection]:
    opened = Connection(app)
    yield opened
    await opened.close()


async def test_what_is_written_in_one_turn_leaves_in_one_piece() -> None:
    spy = Spy()
    corked = Corked(spy, asyncio.get_running_loop())
    corked.write(b"head ")
    corked.write(b"body")
    assert spy.sent == []
    await asyncio.sleep(0)
    assert spy.sent == [b"head body"]
    corked.write(b"next")
    await asyncio.sleep(0)
    assert spy.sent == [b"head body", b"next"]


async def test_closing_sends_what_is_left() -> None:
    spy = Spy()
    corked = Corked(spy, asyncio.get_running_loop())
    corked.write(b"last words")
    corked.close()
    await asyncio.sleep(0)
    assert (spy.sent, spy.closed) == ([b"last words"], True)


async def test_nothing_is_sent_over_a_connection_that_was_lost() -> None:
    spy = Spy()
    corked = Corked(spy, asyncio.get_running_loop())
    corked.write(b"to nobody")
    spy.closed = True
    await asyncio.sleep(0)
    assert spy.sent == []


async def test_the_rest_is_the_transports() -> None:
    assert Corked(Spy(), asyncio.get_running_loop()).get_extra_info("peername") == ("127.0.0.1", 1)


async def test_whoever_takes_some_of_its_answer_is_not_cut_off(connection: Connection) -> None:
    connection.spy.unsent = 30_000_000
    for _ in range(100):
        assert not connection.is_cut_after(0.9 * ANSWER_SECONDS_MAX)
        connection.spy.unsent -= 1_000
    assert not connection.is_cut_after(1)  # It took some.
    assert not connection.is_cut_after(0.9 * ANSWER_SECONDS_MAX)
    assert connection.is_cut_after(0.2 * ANSWER_SECONDS_MAX)


async def test_what_is_written_behind_what_was_taken_is_no_standstill(connection: Connection) -> None:
    connection.spy.unsent = 100_000
    assert not connection.is_cut_after(-0.9 * ANSWER_SECONDS_MAX)  # That long ago.
    connection.protocol.resume_writing()
    connection.now = asyncio.get_running_loop().time()
    connection.spy.unsent = 200_000
    assert not connection.is_cut_after(0.9 * ANSWER_SECONDS_MAX)
    assert connection.is_cut_after(0.2 * ANSWER_SECONDS_MAX)


@pytest.mark.parametrize("unsent", [1, 1_000_000])
async def test_whoever_takes_nothing_is_cut_off(connection: Connection, unsent: int) -> None:
    """However little there is to be sent."""
    assert not connection.is_cut_after(1)
    connection.protocol.data_received(REQUEST)  # Nothing else is waited for.
    connection.spy.unsent = unsent
    assert not connection.is_cut_after(0)
    assert not connection.is_cut_after(0.9 * ANSWER_SECONDS_MAX)
    assert connection.is_cut_after(0.2 * ANSWER_SECONDS_MAX)


@pytest.mark.parametrize("behind", [b"\r\n", b"GET /", REQUEST[:-1]], ids=["empty line", "head", "body"])
async def test_what_comes_behind_a_request_has_its_time_once_that_is_answered(
    app: App, connection: Connection, behind: bytes
) -> None:
    connection.protocol.data_received(REQUEST)
    connection.protocol.data_received(behind)
    app.may_take.set()
    for _ in range(10):
        await asyncio.sleep(0)
        assert not connection.is_cut_after(REQUEST_SECONDS_MAX)
    app.may_answer.set()
    await connection.until_answered()
    limit = HEAD_SECONDS_MAX if behind != REQUEST[:-1] else REQUEST_SECONDS_MAX
    assert not connection.is_cut_after(0.9 * limit)
    assert connection.is_cut_after(0.2 * limit)


async def test_a_body_that_we_do_not_take_is_not_waited_for(app: App, connection: Connection) -> None:
    connection.protocol.data_received(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000)
    for _ in range(10):
        assert not connection.is_cut_after(REQUEST_SECONDS_MAX)
    app.may_take.set()
    await asyncio.sleep(0)
    assert not connection.is_cut_after(0.9 * REQUEST_SECONDS_MAX)
    assert connection.is_cut_after(0.2 * REQUEST_SECONDS_MAX)


async def test_an_answer_that_is_taken_has_its_time_whatever_comes_behind(connection: Connection) -> None:
    connection.protocol.data_received(b"\r\n")
    connection.spy.unsent = 1_000
    for _ in range(10):
        assert not connection.is_cut_after(0.9 * HEAD_SECONDS_MAX)
        connection.spy.unsent -= 100
    assert not connection.is_cut_after(0.9 * HEAD_SECONDS_MAX)
    assert connection.is_cut_after(0.2 * HEAD_SECONDS_MAX)


@pytest.mark.parametrize("request_before", [REQUEST, REQUEST[:-1], REQUEST * 2])
async def test_a_refusal_is_no_answer_to_a_request_that_is_not_answered(
    connection: Connection, request_before: bytes
) -> None:
    connection.protocol.data_received(request_before)
    connection.protocol.send_400_response("What came behind is no HTTP.")
    await asyncio.sleep(0)
    assert (connection.spy.sent, connection.spy.aborted) == ([], True)


async def test_nonsense_is_refused_behind_an_answer(app: App, connection: Connection) -> None:
    app.may_take.set()
    app.may_answer.set()
    connection.protocol.data_received(REQUEST)
    await connection.until_answered()
    connection.protocol.data_received(b"nonsense\r\n\r\n")
    assert [answer[:13] for answer in connection.spy.sent] == [b"HTTP/1.1 200 ", b"HTTP/1.1 400 "]
    assert (connection.spy.closed, connection.spy.aborted) == (True, False)
