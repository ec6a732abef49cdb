"""Connections: what one answer consists of leaves in one piece, and a caller that dawdles is not waited for.

Whoever opens a connection has so long to send a request, and must go on taking its answer; else the connection is cut,
without an answer, since nobody listens. Of what is no body, a head without an end for instance, only so much is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class Corked:
    """A transport that sends what was written in one turn of the loop at its end, in one piece.

    uvicorn writes the head of an answer and its body apart: two system calls, and a caller that is woken twice.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data when the loop has done what it is at."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Send what is left and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts and not self._transport.is_closing():
            self._transport.write(b"".join(self._parts))
        self._parts.clear()


HEAD_SECONDS_MAX: Final = 10.0
"""How long a caller has to send the head of a request, from its first byte, or from the start of the connection.

Of this, and of the time for a whole request, nothing counts while we work on the one before, send, or take nothing.
"""

REQUEST_SECONDS_MAX: Final = 60.0
"""How long a caller has to send a request with its body: 64 MB, the most there is, at ten megabits a second."""

ANSWER_SECONDS_MAX: Final = 30.0
"""How long a caller may take nothing of what is to be sent to it."""

OVERHEAD_BYTES_MAX: Final = 64 * 1024
"""How many bytes may come one after the other that are no body: of heads, trailers and what is around chunks."""


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP, over corked transports; `check` it now and then."""

    _waits_since: float | None = None
    """Since when we wait for the caller to send a request to its end, or None."""
    _has_head = False
    """Whether the head of that request is here."""
    _unsent = 0
    """How many bytes the caller had not taken when that was last looked at."""
    _took_at = 0.0
    """When it took some, or there were none."""
    _overhead = 0
    """How many bytes came since the last that were of a body, or ended a head or a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(Corked(transport, self.loop))  # type: ignore[arg-type]
        self._waits_since = self.loop.time()

    def check(self, now: float) -> None:
        """Cut the connection if its caller had long enough."""
        unsent = self.transport.get_write_buffer_size()
        if not self._unsent or unsent < self._unsent:
            self._took_at = now
        self._unsent = unsent
        if self._waits_since is not None and (unsent or self.flow.read_paused or self._has_whole_request()):
            self._waits_since = now  # It is us who keep the caller waiting, or the limit of answers holds.
        limit = REQUEST_SECONDS_MAX if self._has_head else HEAD_SECONDS_MAX
        dawdles = self._waits_since is not None and now - self._waits_since > limit
        if dawdles or now - self._took_at > ANSWER_SECONDS_MAX:
            self.transport.abort()

    def _has_whole_request(self) -> bool:
        """Return whether a request is here to its end, and not answered to its end."""
        last = self.last_request()  # Those before it, if any are left, have it wait in the pipeline.
        return bool(self.pipeline) or (last is not None and not last.more_body and not last.response_complete)

    def last_request(self) -> RequestResponseCycle | None:
        """Return the request whose head came last, with what has become of it, or None if there was none."""
        return self.cycle

    def data_received(self, data: bytes) -> None:
        """Take bytes; refuse what has no end."""
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead and self._waits_since is None:  # Empty lines, between requests: a caller that never begins.
            self._waits_since, self._has_head = self.loop.time(), False
        if self._overhead > OVERHEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("Too much without a body.")

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        super().on_message_begin()
        self._waits_since, self._has_head = self.loop.time(), False

    def on_headers_complete(self) -> None:
        """Note that the head is here."""
        self._overhead, self._has_head = 0, True
        super().on_headers_complete()
        self.headers = []  # What comes behind the body, as trailers do, is none of the request's headers.

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is here."""
        self._overhead, self._waits_since = 0, None
        super().on_message_complete()

    def resume_writing(self) -> None:
        """Note that the caller took most of what was to be sent."""
        self._took_at = self.loop.time()
        super().resume_writing()


class Refusal(NamedTuple):
    """What bytes that are no HTTP are answered with, beside the status 400."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


def refusing(refusal: Callable[[str], Refusal]) -> type[Protocol]:
    """Return the protocol that answers bytes that are no HTTP with a refusal, given what is wrong with them."""

    class Refusing(Protocol):
        def send_400_response(self, msg: str) -> None:
            """Refuse, and close the connection: where a next request would begin is not known.

            A request that is not answered yet may come to be committed: its caller would take the refusal for the
            answer to it. The connection is cut without a word.
            """
            last = self.last_request()
            if last is not None and not last.response_complete:
                self.transport.abort()
                return
            headers, body = refusal(msg)
            own = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
            lines = [b"%s: %s" % header for header in (*self.server_state.default_headers, *headers, *own)]
            self.transport.write(b"\r\n".join([b"HTTP/1.1 400 Bad Request", *lines, b"", body]))
            self.transport.close()

    return Refusing


def check_all(connections: Iterable[object], now: float) -> None:
    """Cut every connection whose caller had long enough."""
    for connection in list(connections):
        if isinstance(connection, Protocol):
            connection.check(now)
