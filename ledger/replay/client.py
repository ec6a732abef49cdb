"""Requests to the service, tried again while it is away.

Only a ``503`` and a lost connection are tried again, with the same identifiers, so that a retry can do no
harm (J1); every other answer is the answer.
"""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec
from yarl import URL

__all__ = ["Answer", "Client", "Failure", "Patience", "ReplayStoppedError", "service_url"]

T = TypeVar("T", bound=msgspec.Struct)

REQUEST_SECONDS_MAX = 30.0
_LOST = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)


class ReplayStoppedError(Exception):
    """The replay cannot go on: the service is away, is another program, or does not know the token."""


class Failure(msgspec.Struct, frozen=True):
    """The inside of an error answer: `code` is the contract, `message` is for people."""

    code: str
    message: str = ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: Failure


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and how often the request was sent until it came."""

    status: int
    body: bytes
    attempts: int

    def read(self, shape: type[T]) -> T:
        """The body as `shape`. Raises `msgspec.DecodeError` when it is something else."""
        return msgspec.json.decode(self.body, type=shape)

    def failure(self) -> Failure:
        """The error of a refusal; of an answer in no known form, its status stands for the code."""
        try:
            return self.read(_ErrorAnswer).error
        except msgspec.DecodeError:
            return Failure(f"http_{self.status}", self.body[:200].decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an absent service is waited for: waits double from the first to the longest.

    The default gives a service that restarts three quarters of a minute.
    """

    attempts_max: int = 15
    wait_seconds_first: float = 0.1
    wait_seconds_max: float = 5.0

    def wait_seconds(self, attempt: int, retry_after: str | None) -> float:
        """The wait after the attempt with this number (from 1): what was asked for, within our own bounds."""
        wait = self.wait_seconds_first * 2.0 ** min(attempt - 1, 30)
        if retry_after is not None and retry_after.isascii() and retry_after.isdecimal():
            wait = max(wait, float(retry_after[:9]))
        return min(wait, self.wait_seconds_max)


def service_url(text: str) -> URL:
    """The address of a service, without a slash at its end. Raises `ValueError` when it is not one."""
    url = URL(text.strip().rstrip("/"))
    if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment:
        raise ValueError(f"{text!r} is not the address of a service, such as http://127.0.0.1:8000")
    return url


class Client:
    """Sends requests with the two tokens. `retries` counts what had to be sent again."""

    def __init__(
        self, session: aiohttp.ClientSession, url: URL, *, admin: str, gateway: str, patience: Patience
    ) -> None:
        self._session = session
        self._url = url
        self._base = str(url)
        self._patience = patience
        self._admin = _headers(admin)
        self._gateway = _headers(gateway)
        self.retries = 0

    async def gateway(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Send as the gateway: jobs and reads. Raises `ReplayStoppedError`, also for a refused token."""
        return await self._send(method, path, body, self._gateway, self._patience, REQUEST_SECONDS_MAX)

    async def admin(self, method: str, path: str, body: bytes, seconds_max: float = REQUEST_SECONDS_MAX) -> Answer:
        """Send as the administrator. Raises `ReplayStoppedError`, also when the token is refused."""
        return await self._send(method, path, body, self._admin, self._patience, seconds_max)

    async def first(self, path: str) -> Answer:
        """The first request of all: a service that is not there is not waited for long."""
        patience = Patience(min(3, self._patience.attempts_max), self._patience.wait_seconds_first, 1.0)
        return await self._send("GET", path, None, self._gateway, patience, 10.0)

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        patience: Patience,
        seconds_max: float,
    ) -> Answer:
        url = URL(self._base + path, encoded=True)
        timeout = aiohttp.ClientTimeout(total=seconds_max)
        attempt = 0
        while True:
            attempt += 1
            retry_after: str | None = None
            try:
                async with self._session.request(
                    method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False
                ) as response:
                    content = await response.read()
                    if response.status != 503:
                        return self._known(Answer(response.status, content, attempt))
                    retry_after = response.headers.get("Retry-After")
                    reason = Answer(503, content, attempt).failure().message or "503"
            except aiohttp.ClientConnectorError as error:
                reason = str(error.os_error)
            except _LOST as error:
                reason = str(error) or type(error).__name__
            except aiohttp.ClientError as error:
                raise ReplayStoppedError(f"{self._url} does not answer as a service should: {error}") from error
            if attempt >= patience.attempts_max:
                raise ReplayStoppedError(f"the service at {self._url} is away: {reason}")
            self.retries += 1
            await asyncio.sleep(patience.wait_seconds(attempt, retry_after))

    def _known(self, answer: Answer) -> Answer:
        if answer.status in (401, 403):
            failure = answer.failure()
            if answer.status == 401 or failure.code == "permission_denied":
                raise ReplayStoppedError(f"the token is not accepted: {failure.code} {failure.message}".rstrip())
        return answer


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
