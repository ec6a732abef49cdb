"""Whatever bytes come as a body, the answer is one of ours and never a 5xx, and what is refused changes nothing (E2).

`LEDGER_TEST_EXAMPLES=20000` makes a long run of it.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.parse
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.service import Service

EXAMPLES: Final = int(os.environ.get("LEDGER_TEST_EXAMPLES", "400"))
ON_PURPOSE: Final = {"operation_not_priced"}
"""The one refusal that is a 5xx (P1)."""

TURN: Final = {"operation": "agent_turn", "quantity": 1}
JOB: Final = "/v1/accounts/fuzzed/jobs/fuzz-1"
REQUESTS: Final[list[tuple[str, str, Any]]] = [
    (
        "PUT",
        JOB,
        {
            "environment": "live",
            "lines": [{"operation": "voice_call_minute", "quantity": 90.5}, TURN],
            "transferable": True,
            "allow_partial": True,
            "idempotency_key": "key",
            "fingerprint": "print",
            "metadata": {"loan_id": "L-9", "nested": [1, {"a": None}]},
        },
    ),
    (
        "POST",
        f"{JOB}/settle",
        {
            "lines": [TURN, {"operation": "audio_transcription", "quantity": None}],
            "result": {"status": "completed", "parts": [1, "two"]},
            "result_stored": True,
            "record": {"request_id": "req", "status_code": 200, "latency_ms": 1, "key_prefix": "ak"},
        },
    ),
    ("POST", f"{JOB}/release", {"error_code": "upstream_unavailable", "originated": False, "record": {}}),
    ("POST", f"{JOB}/refunds", {"refund_id": "rf-1", "credits": 5, "reason": "late"}),
    ("POST", "/v1/quotes", {"lines": [TURN], "transferable": False}),
    (
        "POST",
        "/v1/batch",
        {
            "commands": [
                {"command": "reserve", "account_id": "fuzzed", "job_id": "b", "environment": "test", "lines": [TURN]},
                {"command": "settle", "account_id": "fuzzed", "job_id": "b", "lines": [TURN]},
                {"command": "refund", "account_id": "fuzzed", "job_id": "b", "refund_id": "r", "credits": 1},
            ]
        },
    ),
    (
        "PATCH",
        "/v1/accounts/fuzzed",
        {
            "payment_method_verified": True,
            "overage": {"enabled": True, "cap_usd": "50.00", "credit_price_usd": "0.001"},
            "environments": {"test": {"max_requests": 10, "max_calls": 5, "period_credits": None}},
        },
    ),
    (
        "PUT",
        "/v1/accounts/fuzzed/grants/g-1",
        {"kind": "plan", "credits": 100, "expires_at": "2999-01-01T00:00:00Z", "reference": "inv"},
    ),
    ("PUT", "/v1/accounts/fuzzed/billing-cycles/2026-01", {"status": "paid_on_time"}),
    ("POST", "/v1/audit", {"account_id": "fuzzed"}),
]

JUNK: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**40, 1e308, 5e-324, -0.0, 1.5]),
    st.floats(allow_nan=True),
    st.text(max_size=20),
    st.sampled_from(["", "\0", "\ud800", "a" * 300, "2026-13-45T99:99:99Z", "2026-01-01T00:00:00+23:59", "0x10", "💥"]),
    st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def _places(body: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Go through the path of every value inside a body."""
    yield at
    if isinstance(body, dict):
        for key, value in body.items():
            yield from _places(value, (*at, key))
    elif isinstance(body, list):
        for index, value in enumerate(body):
            yield from _places(value, (*at, index))


def _with(body: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Return a body with another value in one place."""
    if not at:
        return value
    first, *rest = at
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[first] = _with(body[first], tuple(rest), value)
    return copy


@st.composite
def odd_bodies(draw: st.DrawFn, body: Any) -> bytes:
    """A valid body with junk in one or two places, then maybe with bytes changed, cut off, doubled or put in front."""
    for _ in range(draw(st.integers(0, 2))):
        body = _with(body, draw(st.sampled_from(list(_places(body)))), draw(JUNK))
    text = json.dumps(body, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 6))
        text = text[:place] + draw(st.binary(max_size=6)) + text[place + cut :]
    match draw(st.sampled_from(["as it is"] * 6 + ["marked", "nested", "doubled"])):
        case "marked":
            return b"\xef\xbb\xbf" + text
        case "nested":
            return b'{"lines": ' * 3_000 + text
        case "doubled":
            return text[:-1] + b", " + text[1:]
        case _:
            return text


class Caller:
    """Sends one request after the other over one connection."""

    def __init__(self, service: Service) -> None:
        address = urllib.parse.urlsplit(service.url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        self._headers = {**service.headers(), "Content-Type": "application/json"}

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")

    def close(self) -> None:
        self._connection.close()

    def available(self) -> int:
        return int(self.call("GET", "/v1/accounts/fuzzed/balance")[1]["available"])


@pytest.fixture(scope="module")
def caller(module_server: Service) -> Iterator[Caller]:
    made = Caller(module_server)
    account = {
        "module_enabled": True,
        "payment_method_verified": True,
        "environments": {"live": {"max_requests": 10_000, "max_calls": 10_000}, "test": {"max_requests": 10_000}},
    }
    assert made.call("PUT", "/v1/accounts/fuzzed", json.dumps(account).encode())[0] == 201
    opening = b'{"kind": "purchase", "credits": 1000000}'
    assert made.call("PUT", "/v1/accounts/fuzzed/grants/opening", opening)[0] == 201
    yield made
    made.close()


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=[f"{m} {p}" for m, p, _ in REQUESTS])
@settings(
    max_examples=EXAMPLES // len(REQUESTS),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_odd_bodies(caller: Caller, method: str, path: str, body: Any, data: st.DataObject) -> None:
    text = data.draw(odd_bodies(body))
    before = caller.available()
    status, answer = caller.call(method, path, text)
    _check(status, answer)
    if path == "/v1/batch" and status == 200:
        for result in answer["results"]:
            _check(result["status"], result["body"])
    elif status >= 400:
        assert caller.available() == before


def _check(status: int, answer: Any) -> None:
    if status < 400:
        return
    assert set(answer) == {"error"}, answer
    assert {"code", "message", "request_id", "doc_url"} <= set(answer["error"]) <= {*SHAPE}, answer
    assert status < 500 or answer["error"]["code"] in ON_PURPOSE, (status, answer)


SHAPE: Final = ("code", "message", "request_id", "doc_url", "details")


def test_the_books_are_clean_after_all_that(caller: Caller) -> None:
    status, report = caller.call("POST", "/v1/audit", b'{"account_id": "fuzzed"}')
    assert (status, report["ok"], report["discrepancies"]) == (200, True, [])
