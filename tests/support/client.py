"""A client of the HTTP interface for tests: short calls that return status, body and headers."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import aiohttp
import msgspec

from ledger.tokens import Role
from tests.support.service import Service

ENVIRONMENTS = {"live": {"max_requests": 1000, "max_calls": 1000}, "test": {}}


class Answer(NamedTuple):
    """What came back; `body` is the JSON of it."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> str | None:
        """The error code, or None."""
        return self.body["error"]["code"] if isinstance(self.body, dict) and "error" in self.body else None


class Reachable(Protocol):
    """Where a service is, and what opens it."""

    @property
    def url(self) -> str: ...

    def headers(self, role: Role = Role.ADMIN) -> dict[str, str]: ...


class Client:
    """Calls one service with the token of one role."""

    def __init__(self, session: aiohttp.ClientSession, service: Reachable, role: Role = Role.ADMIN) -> None:
        self._session = session
        self._url = service.url
        self._headers = service.headers(role)

    async def call(
        self,
        method: str,
        path: str,
        json: object = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request; the token goes along unless `headers` has an Authorization of its own."""
        sent = {**self._headers, **(headers or {})}
        body = data if json is None else msgspec.json.encode(json)
        if json is not None:
            sent.setdefault("Content-Type", "application/json")
        stream = None if body is None else io.BytesIO(body)
        async with self._session.request(method, self._url + path, data=stream, headers=sent) as response:
            text = await response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
            return Answer(response.status, await response.json() if is_json else text, response.headers.copy())

    async def get(self, path: str) -> Answer:
        """Read."""
        return await self.call("GET", path)

    async def every(self, path: str, query: str = "") -> list[Any]:
        """Read a list to its end, page by page; a query begins with `&`."""
        rows: list[Any] = []
        cursor = ""
        while True:
            page = await self.get(f"{path}?limit=500{query}{cursor}")
            assert page.status == 200, page
            rows += page.body["data"]
            if page.body["next_cursor"] is None:
                return rows
            cursor = f"&cursor={quote(page.body['next_cursor'])}"

    async def open_account(self, account_id: str, credits: int = 0, **policy: object) -> None:
        """Open an account that may work in both environments, with purchased credits and no welcome."""
        body = {"module_enabled": True, "environments": ENVIRONMENTS, **policy}
        answer = await self.call("PUT", f"/v1/accounts/{account_id}", body)
        assert answer.status in (200, 201), answer
        if credits:
            await self.grant(account_id, "opening", credits)

    async def grant(self, account_id: str, grant_id: str, credits: int, **more: object) -> Answer:
        """Put a purchase, or what `more` says."""
        body = {"kind": "purchase", "credits": credits, **more}
        return await self.call("PUT", f"/v1/accounts/{account_id}/grants/{grant_id}", body)

    async def reserve(self, account_id: str, job_id: str, *lines: tuple[str, float], **more: object) -> Answer:
        """Reserve in `live`; without lines, one text turn of 11 credits."""
        body = {"environment": "live", "lines": _lines(lines or (("agent_turn", 1),)), **more}
        return await self.call("PUT", f"/v1/accounts/{account_id}/jobs/{job_id}", body)

    async def settle(self, account_id: str, job_id: str, *lines: tuple[str, float | None], **more: object) -> Answer:
        """Settle; without lines, one text turn."""
        body = {"lines": _lines(lines or (("agent_turn", 1),)), **more}
        return await self.call("POST", f"/v1/accounts/{account_id}/jobs/{job_id}/settle", body)

    async def release(self, account_id: str, job_id: str, **more: object) -> Answer:
        """Release."""
        return await self.call("POST", f"/v1/accounts/{account_id}/jobs/{job_id}/release", more)

    async def refund(self, account_id: str, job_id: str, refund_id: str, credits: int | None = None) -> Answer:
        """Refund some credits, or all that is left."""
        body = {"refund_id": refund_id, "credits": credits}
        return await self.call("POST", f"/v1/accounts/{account_id}/jobs/{job_id}/refunds", body)

    async def balance(self, account_id: str) -> Any:
        """Return the balance."""
        answer = await self.get(f"/v1/accounts/{account_id}/balance")
        assert answer.status == 200, answer
        return answer.body

    async def assert_audit_clean(self) -> None:
        """Fail unless every invariant of the books holds."""
        answer = await self.call("POST", "/v1/audit", {})
        assert answer.status == 200, answer
        assert answer.body["ok"] is True, answer.body["discrepancies"]


def _lines(lines: tuple[tuple[str, float | None], ...]) -> list[dict[str, object]]:
    return [{"operation": operation, "quantity": quantity} for operation, quantity in lines]


@contextlib.asynccontextmanager
async def connect(service: Service, role: Role = Role.ADMIN, connections: int = 100) -> AsyncIterator[Client]:
    """Open a client with that many connections at most."""
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session, service, role)
