"""`gateway-ledger events tail`: prints events as they come, as `GET /v1/events` shows them.

A client like any other: it knows the service by its HTTP interface alone, and outlives its restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import msgspec

PAGE: Final = 500
POLL_SECONDS: Final = 1.0
"""How soon an event is seen once there are no more."""

ANSWER_SECONDS_MAX: Final = 30.0
AWAY_SECONDS_FIRST: Final = 0.5
AWAY_SECONDS_MAX: Final = 5.0
"""How long an absent service is left alone: twice as long each time, up to this."""

_AWAY_STATUSES: Final = frozenset({429, 502, 503, 504})


class TailStopped(Exception):
    """It cannot go on: the service refuses, or is another program; the message says why."""


class _Page(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]
    next_cursor: str


class _Failure(msgspec.Struct, frozen=True):
    code: str
    message: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Failure


async def tail(url: str, token: str, account_id: str | None, after: str | None, *, from_start: bool) -> None:
    """Print events, one JSON object a line, until SIGINT or SIGTERM or until nobody reads them any more.

    It begins with what comes from now on, unless it is given a cursor or told to begin at the start. In the end it says
    where to go on from. Raise `TailStopped`.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        reader = _Reader(session, url, account_id, after)
        try:
            if after is None and not from_start:
                await reader.skip_to_the_end()
                _say("waiting for events")
            async for event in reader.events():
                sys.stdout.buffer.write(event + b"\n")
                sys.stdout.buffer.flush()
        except asyncio.CancelledError:
            _say_where(reader)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # So that nothing is flushed at the end.
            _say_where(reader)


class _Reader:
    """Reads events behind a cursor, page by page, whether or not the service is there all the time."""

    def __init__(self, session: aiohttp.ClientSession, url: str, account_id: str | None, after: str | None) -> None:
        self._session = session
        self._url = f"{url}/v1/events"
        self._account_id = account_id
        self._following = after
        self.after = after
        """The cursor of the last page all of whose events were handed out."""

    async def skip_to_the_end(self) -> None:
        """Pass over what there is."""
        while (await self._page()).data:
            self.after = self._following

    async def events(self) -> AsyncIterator[bytes]:
        """Give events as they come, for ever."""
        while True:
            page = await self._page()
            for event in page.data:
                yield bytes(event)
            self.after = self._following
            if not page.data:
                await asyncio.sleep(POLL_SECONDS)

    async def _page(self) -> _Page:
        """Read the next page; wait for a service that is away."""
        wait = AWAY_SECONDS_FIRST
        while True:
            try:
                page = await self._ask()
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, _Away) as error:
                if wait == AWAY_SECONDS_FIRST:
                    _say(f"the service is away, waiting for it: {str(error) or type(error).__name__}")
                await asyncio.sleep(wait)
                wait = min(2 * wait, AWAY_SECONDS_MAX)
            else:
                self._following = page.next_cursor
                return page

    async def _ask(self) -> _Page:
        given = {"after": self._following, "account_id": self._account_id, "limit": str(PAGE)}
        parameters = {name: value for name, value in given.items() if value is not None}
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        async with self._session.get(self._url, params=parameters, timeout=timeout, allow_redirects=False) as answer:
            text = await answer.read()
        if answer.status in _AWAY_STATUSES:
            raise _Away(_message(answer.status, text))
        if answer.status != 200:
            raise TailStopped(_message(answer.status, text))
        try:
            return msgspec.json.decode(text, type=_Page)
        except msgspec.DecodeError as error:
            raise TailStopped(f"{self._url} does not answer as a service should: {error}") from error


class _Away(Exception):
    """The service answers that it, or what it needs, is away."""


def _message(status: int, text: bytes) -> str:
    try:
        failure = msgspec.json.decode(text, type=_Refusal).error
    except msgspec.DecodeError:
        return f"the service answered {status}"
    return f"{failure.code}: {failure.message}"


def _say(message: str) -> None:
    """Tell whoever sits there; what is piped on is events alone."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()


def _say_where(reader: _Reader) -> None:
    if reader.after is not None:
        _say(f"to go on from here: --after {reader.after}")
