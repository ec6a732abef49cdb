"""Requests as bytes made beforehand, and connections that read no more of an answer than they must.

The load generator shares two cores with the service and PostgreSQL: an ordinary HTTP client would take the most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

LINES: Final = b'"lines":[{"operation":"agent_turn","quantity":1}]'
_RESERVE_BODY: Final = b'{"environment":"live",%b}' % LINES
_SETTLE_BODY: Final = b"{%b}" % LINES
_BATCH_RESERVE: Final = b'{"command":"reserve","account_id":"%b","job_id":"%b","environment":"live",' + LINES + b"}"
_BATCH_SETTLE: Final = b'{"command":"settle","account_id":"%b","job_id":"%b",' + LINES + b"}"

Job = tuple[bytes, bytes]
"""An account and a job of it."""
Answered = Callable[[bool, bytes], None]
"""Told whether an answer was a success, and the answer."""


class Requests:
    """The bytes of each request that is sent, for one service and token."""

    def __init__(self, host: str, token: str) -> None:
        head = (
            f" HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n".encode()
        )
        self._head = head
        self._settle_head = b"POST /v1/accounts/%b/jobs/%b/settle" + head + b"Content-Length: "
        self._batch_head = b"POST /v1/batch" + head + b"Content-Length: "
        self._reserve = b"PUT /v1/accounts/%b/jobs/%b" + _with_body(head, _RESERVE_BODY)
        self._settle = b"POST /v1/accounts/%b/jobs/%b/settle" + _with_body(head, _SETTLE_BODY)

    def request(self, method: str, path: str, body: bytes) -> bytes:
        """Send any body anywhere."""
        return f"{method} {path}".encode() + _with_body(self._head, body)

    def reserve(self, job: Job) -> bytes:
        """Reserve one text turn."""
        return self._reserve % job

    def settle(self, job: Job) -> bytes:
        """Settle it."""
        return self._settle % job

    def settle_with(self, job: Job, result: bytes) -> bytes:
        """Settle it with a result, in JSON, that is kept."""
        body = b'{%b,"result":%b}' % (LINES, result)
        return self._settle_head % job + b"%d\r\n\r\n" % len(body) + body

    def reserve_all(self, jobs: Sequence[Job]) -> bytes:
        """Reserve one text turn for each job, in one batch."""
        return self._batch(_BATCH_RESERVE, jobs)

    def settle_all(self, jobs: Sequence[Job]) -> bytes:
        """Settle them all, in one batch."""
        return self._batch(_BATCH_SETTLE, jobs)

    def _batch(self, command: bytes, jobs: Sequence[Job]) -> bytes:
        body = b'{"commands":[%b]}' % b",".join([command % job for job in jobs])
        return self._batch_head + b"%d\r\n\r\n" % len(body) + body


def _with_body(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Connection(asyncio.Protocol):
    """One connection, on which one request is answered at a time."""

    def __init__(self, broken: Callable[[Exception], None]) -> None:
        """Take what is told of an answer that cannot be read, or of the end of the connection."""
        self._broken = broken
        self._transport: asyncio.Transport | None = None
        self._answered: Answered | None = None
        self._received = bytearray()
        self._size = 0

    def send(self, request: bytes, answered: Answered) -> None:
        """Send a request and call `answered` when the whole answer is there."""
        assert self._transport is not None
        assert self._answered is None, "one request at a time"
        self._answered = answered
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._size:
            self._size = _answer_size(self._received)
        if self._size and len(self._received) >= self._size:
            answer, answered = bytes(self._received), self._answered
            self._received.clear()
            self._size, self._answered = 0, None
            assert answered is not None
            answered(answer[9:10] == b"2", answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None:
            self._broken(exc or ConnectionError("the service closed a connection on which it owed an answer"))


def _answer_size(received: bytearray) -> int:
    """Return how many bytes the answer has that begins here, or 0 while its head is not complete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = received[: end + 2].lower()
    start = head.find(b"\r\ncontent-length:")
    if start < 0:
        raise ValueError(f"an answer without its length: {bytes(head)!r}")
    start += len(b"\r\ncontent-length:")
    return end + 4 + int(head[start : head.index(b"\r\n", start)])
