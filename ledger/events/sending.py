"""Sending one delivery: one request, one answer, within ten seconds (contract V4)."""

from __future__ import annotations

import asyncio
import errno
import time
from importlib.metadata import version
from typing import Final

import aiohttp
import structlog

from ledger.events.addresses import public_socket
from ledger.events.deliveries import Attempt
from ledger.events.endpoints import Endpoint
from ledger.events.signing import HEADER

ATTEMPT_SECONDS_MAX: Final = 10.0
"""From looking the name up to the end of the answer."""

ANSWER_BYTES_MAX: Final = 64 * 1024
"""How much of an answer is read; nothing of it is looked at or kept."""

log = structlog.get_logger(__name__)

_ERRORS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (TimeoutError, "timeout"),
    (aiohttp.InvalidURL, "invalid_url"),
    (aiohttp.ClientConnectorDNSError, "name_not_resolved"),
    (aiohttp.ClientSSLError, "tls_failed"),
    (aiohttp.ClientConnectorError, "connection_failed"),
    (aiohttp.ClientPayloadError, "connection_lost"),
    (aiohttp.ClientResponseError, "invalid_answer"),
    (aiohttp.ClientError, "connection_lost"),
    (OSError, "connection_lost"),
)
"""What can be in an attempt's way, the first that fits. The record knows these names alone: no address, no text."""


class Sender:
    """Sends the deliveries of one endpoint. Each endpoint has connections of its own, so none waits for another's."""

    def __init__(self, endpoint: Endpoint, *, seconds_max: float = ATTEMPT_SECONDS_MAX) -> None:
        self._endpoint = endpoint
        self._seconds_max = seconds_max
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # How many there are at once is decided before.
                socket_factory=None if endpoint.allow_private else public_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),  # There is one limit, around everything.
            headers={
                "Content-Type": "application/json",
                "User-Agent": f"gateway-ledger/{version('gateway-ledger')}",
                "Accept-Encoding": "identity",
            },
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def send(self, body: bytes, signature: str) -> Attempt:
        """Send one signed body and return how it went: whatever happens is an answer or the name of an error."""
        begun = time.monotonic()
        status_code, error = None, None
        try:
            async with asyncio.timeout(self._seconds_max):
                status_code = await self._post(body, signature)
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is this attempt's failure
            error = _name_of(failure)
        return Attempt(status_code, error, round((time.monotonic() - begun) * 1000))

    async def _post(self, body: bytes, signature: str) -> int:
        """Return the status of an answer that came whole, or as far as it is read. Follows no redirect."""
        async with self._session.post(
            self._endpoint.url, data=body, headers={HEADER: signature}, allow_redirects=False
        ) as answer:
            left = ANSWER_BYTES_MAX
            while left > 0 and (chunk := await answer.content.read(left)):
                left -= len(chunk)
            if left <= 0:
                answer.close()
            return answer.status


def _name_of(failure: Exception) -> str:
    if isinstance(failure, aiohttp.ClientConnectorError) and failure.os_error.errno == errno.EACCES:
        return "address_refused"
    for kind, name in _ERRORS:
        if isinstance(failure, kind):
            return name
    log.error("delivery_attempt_failed", kind=type(failure).__name__)  # Its text might show the URL.
    return "internal_error"
