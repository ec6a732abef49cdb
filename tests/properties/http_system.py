"""The real service behind the `System` protocol: what the machine asks goes over HTTP."""

from __future__ import annotations

import http.client
import itertools
import json
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from tests.support.service import Service

from .machine import Answer, World
from .model_books import instant_text
from .model_prices import Json

_examples = itertools.count(1)


class HttpSystem:
    """Talks to one service with a simulated clock. Each example has accounts of its own."""

    def __init__(self, service: Service) -> None:
        address = urlsplit(service.url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        self._headers = {**service.headers(), "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request; a header Retry-After must say what the details say."""
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, self._headers)
        response = self._connection.getresponse()
        answer: Json = json.loads(response.read())
        details = answer.get("error", {}).get("details", {})
        header = response.headers["Retry-After"]
        assert header == (str(details["retry_after"]) if "retry_after" in details else None), (header, answer)
        return response.status, answer

    def begin(self) -> World:
        """Begin each world in the middle of a November: what Hypothesis draws must not depend on the calendar."""
        number = next(_examples)
        now = datetime.fromisoformat(self.call("GET", "/v1/clock")[1]["now"]).astimezone(UTC)
        start = datetime(now.year, 11, 15, 12, tzinfo=UTC)
        start = start if start >= now else start.replace(year=now.year + 1)
        self.advance(start)
        return World(start, (f"acct-{number}-a", f"acct-{number}-b"))

    def advance(self, to: datetime) -> None:
        status, answer = self.call("PUT", "/v1/clock", {"now": instant_text(to)})
        assert status == 200, answer

    def close(self) -> None:
        self._connection.close()

    def put_account(self, account_id: str, body: Json) -> Answer:
        return self.call("PUT", f"/v1/accounts/{account_id}", body)

    def patch_account(self, account_id: str, body: Json) -> Answer:
        return self.call("PATCH", f"/v1/accounts/{account_id}", body)

    def get_account(self, account_id: str) -> Answer:
        return self.call("GET", f"/v1/accounts/{account_id}")

    def put_cycle(self, account_id: str, month: str, status: str) -> Answer:
        return self.call("PUT", f"/v1/accounts/{account_id}/billing-cycles/{month}", {"status": status})

    def put_grant(self, account_id: str, grant_id: str, body: Json) -> Answer:
        return self.call("PUT", f"/v1/accounts/{account_id}/grants/{grant_id}", body)

    def reserve(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.call("PUT", f"/v1/accounts/{account_id}/jobs/{job_id}", body)

    def settle(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.call("POST", f"/v1/accounts/{account_id}/jobs/{job_id}/settle", body)

    def release(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.call("POST", f"/v1/accounts/{account_id}/jobs/{job_id}/release", body)

    def refund(self, account_id: str, job_id: str, body: Json) -> Answer:
        return self.call("POST", f"/v1/accounts/{account_id}/jobs/{job_id}/refunds", body)

    def get_job(self, account_id: str, job_id: str, environment: str | None = None) -> Answer:
        query = f"?environment={environment}" if environment else ""
        return self.call("GET", f"/v1/accounts/{account_id}/jobs/{job_id}{query}")

    def balance(self, account_id: str, at: datetime | None = None) -> Answer:
        query = f"?at={quote(instant_text(at))}" if at else ""
        return self.call("GET", f"/v1/accounts/{account_id}/balance{query}")

    def quote(self, body: Json) -> Answer:
        return self.call("POST", "/v1/quotes", body)

    def usage(self, account_id: str, period: str) -> Answer:
        return self.call("GET", f"/v1/accounts/{account_id}/usage?period={period}")

    def statement(self, account_id: str, period: str) -> Answer:
        return self.call("GET", f"/v1/accounts/{account_id}/statements/{period}")
