"""Bad input gets a clear error that names the field, never a 5xx, and changes nothing (contract E1-E3, Q6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from ledger.tokens import Role
from tests.support.client import Client, connect
from tests.support.service import Service

TURN = {"operation": "agent_turn", "quantity": 1}
RESERVE: dict[str, object] = {"environment": "live", "lines": [TURN]}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def client(module_server: Service) -> AsyncIterator[Client]:
    async with connect(module_server) as opened:
        await opened.open_account("a", 10_000)
        await opened.reserve("a", "open")
        yield opened


def reserve(**change: object) -> dict[str, object]:
    return {**RESERVE, **change}


def line(**change: object) -> dict[str, object]:
    return reserve(lines=[{**TURN, **change}])


BAD_RESERVATIONS = [
    # what is wrong, the body, the field that the message names
    ("unknown field", reserve(zzz=1), "zzz"),
    ("unknown field of a line", line(zzz=1), "zzz"),
    ("no environment", {"lines": [TURN]}, "environment"),
    ("no lines", {"environment": "live"}, "lines"),
    ("another environment", reserve(environment="prod"), "environment"),
    ("empty lines", reserve(lines=[]), "lines"),
    ("21 lines", reserve(lines=[TURN] * 21), "lines"),
    ("lines of another type", reserve(lines={"a": 1}), "lines"),
    ("quantity as text", line(quantity="1"), "lines[0].quantity"),
    ("quantity true", line(quantity=True), "lines[0].quantity"),
    ("quantity null", line(quantity=None), "lines[0].quantity"),
    ("negative quantity", line(quantity=-1), "lines[0].quantity"),
    ("quantity 0", line(quantity=0), "lines[0].quantity"),
    ("quantity 2^63", line(quantity=2**63), "lines[0].quantity"),
    ("quantity above 10^9", line(quantity=10**9 + 1), "lines[0].quantity"),
    ("a fraction of a turn", line(quantity=1.5), "lines[0].quantity"),
    ("malformed operation", line(operation="Agent-Turn"), "lines[0].operation"),
    ("operation with a newline", line(operation="agent_turn\n"), "lines[0].operation"),
    ("operation too long", line(operation="a" * 65), "lines[0].operation"),
    ("ttl 0", reserve(ttl_seconds=0), "ttl_seconds"),
    ("ttl above a day", reserve(ttl_seconds=86_401), "ttl_seconds"),
    ("ttl with a fraction", reserve(ttl_seconds=1.5), "ttl_seconds"),
    ("transferable turn", reserve(transferable=True), "transferable"),
    ("partial turn", reserve(allow_partial=True), "allow_partial"),
    ("transferable of another type", reserve(transferable="yes"), "transferable"),
    ("empty key", reserve(idempotency_key=""), "idempotency_key"),
    ("key too long", reserve(idempotency_key="k" * 256), "idempotency_key"),
    ("key with NUL", reserve(idempotency_key="k\0"), "NUL"),
    ("fingerprint too long", reserve(fingerprint="f" * 129), "fingerprint"),
    ("metadata that is no object", reserve(metadata=[1]), "metadata"),
    ("21 keys of metadata", reserve(metadata={str(n): n for n in range(21)}), "metadata"),
    ("metadata above 4 KB", reserve(metadata={"a": "x" * 4096}), "metadata"),
    ("metadata with NUL", reserve(metadata={"a": ["\0"]}), "NUL"),
    ("2^53 credits", reserve(lines=[{"operation": "video_analysis", "quantity": 10**9}] * 20), None),
]


@pytest.mark.parametrize(("why", "body", "field"), BAD_RESERVATIONS, ids=[row[0] for row in BAD_RESERVATIONS])
async def test_a_bad_reservation(client: Client, why: str, body: dict[str, object], field: str | None) -> None:
    before = await client.balance("a")
    answer = await client.call("PUT", "/v1/accounts/a/jobs/j", body)
    if field is None:  # 5.4 x 10^12 credits are below 2^53, and more than the account has
        assert answer.code == "insufficient_credits"
    else:
        assert (answer.status, answer.code) == (400, "validation_error"), answer
        assert field in answer.body["error"]["message"]
    assert set(answer.body["error"]) == {"code", "message", "request_id", "doc_url", "details"}
    after = await client.balance("a")
    assert {**before, "at": None} == {**after, "at": None}
    assert (await client.get("/v1/accounts/a/jobs/j")).status == 404


def text(before: bytes = b"", quantity: bytes = b"1") -> bytes:
    return b'{"environment":"live",' + before + b'"lines":[{"operation":"agent_turn","quantity":' + quantity + b"}]}"


BAD_TEXTS = [
    ("empty", b"", 400),
    ("no JSON", b"{", 400),
    ("NaN", text(quantity=b"NaN"), 400),
    ("an infinite number", text(quantity=b"1e400"), 400),
    ("not UTF-8", text(b'"idempotency_key":"\xff",'), 400),
    ("not UTF-8 in metadata", text(b'"metadata":{"a":"\xff"},'), 400),
    ("a lone surrogate", text(b'"idempotency_key":"\\ud800",'), 400),
    ("a lone surrogate in metadata", text(b'"metadata":{"a":"\\udc00x"},'), 400),
    ("an array", b"[]", 400),
    ("null", b"null", 400),
    ("nested too deeply", text(b'"metadata":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b","), 400),
    ("above 1 MiB", b'{"x":"' + b"x" * (1024 * 1024) + b'"}', 413),
]


@pytest.mark.parametrize(("why", "text", "status"), BAD_TEXTS, ids=[row[0] for row in BAD_TEXTS])
async def test_a_body_that_is_no_reservation(client: Client, why: str, text: bytes, status: int) -> None:
    answer = await client.call("PUT", "/v1/accounts/a/jobs/j", data=text, headers=JSON)
    assert answer.status == status, answer
    assert answer.code == {400: "validation_error", 413: "payload_too_large"}[status]


async def test_content_types(client: Client) -> None:
    text = json.dumps(RESERVE).encode()
    other = await client.call("PUT", "/v1/accounts/a/jobs/j", data=text, headers={"Content-Type": "text/plain"})
    assert (other.status, other.code) == (415, "unsupported_media_type")
    with_charset = {"Content-Type": "application/json; charset=utf-8"}
    assert (await client.call("PUT", "/v1/accounts/a/jobs/charset", data=text, headers=with_charset)).status == 201


@pytest.mark.parametrize("bad", ["-a", "a" * 129, "a%20b", "a%00", "%F0%9F%98%80", "a%0A", "ä"])
async def test_identifiers(client: Client, bad: str) -> None:
    for path in (f"/v1/accounts/{bad}", f"/v1/accounts/a/jobs/{bad}", f"/v1/accounts/a/grants/{bad}"):
        body = {"kind": "purchase", "credits": 1} if "grants" in path else RESERVE if "jobs" in path else {}
        answer = await client.call("PUT", path, body)
        assert (answer.status, answer.code) == (400, "validation_error"), (path, answer)


async def test_results(client: Client) -> None:
    await client.reserve("a", "result")
    settle = "/v1/accounts/a/jobs/result/settle"
    too_big = await client.call("POST", settle, {"lines": [TURN], "result": "x" * (256 * 1024)})
    assert (too_big.status, too_big.code) == (413, "payload_too_large")
    with_nul = await client.call("POST", settle, {"lines": [TURN], "result": {"deep": [["\0"]]}})
    assert (with_nul.status, with_nul.code) == (400, "validation_error")
    assert (await client.get("/v1/accounts/a/jobs/result")).body["status"] == "reserved"
    fits = await client.call("POST", settle, {"lines": [TURN], "result": "x" * (256 * 1024 - 2)})
    assert fits.status == 200


BAD_GRANTS = [
    ({"kind": "purchase", "credits": 0}, "credits"),
    ({"kind": "purchase", "credits": -1}, "credits"),
    ({"kind": "purchase", "credits": 2**53}, "credits"),
    ({"kind": "purchase", "credits": 1.5}, "credits"),
    ({"kind": "purchase"}, "credits"),
    ({"kind": "gift", "credits": 1}, "kind"),
    ({"kind": "welcome", "credits": 1}, "kind"),
    ({"kind": "purchase", "credits": 1, "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
    ({"kind": "purchase", "credits": 1, "expires_at": "2030-01-01T00:00:00"}, "expires_at"),
    ({"kind": "purchase", "credits": 1, "expires_at": "soon"}, "expires_at"),
    ({"kind": "purchase", "credits": 1, "expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
    ({"kind": "purchase", "credits": 1, "reference": "\0"}, "NUL"),
]


@pytest.mark.parametrize(("body", "field"), BAD_GRANTS, ids=[str(row[0]) for row in BAD_GRANTS])
async def test_a_bad_grant(client: Client, body: dict[str, object], field: str) -> None:
    answer = await client.call("PUT", "/v1/accounts/a/grants/g", body)
    assert (answer.status, answer.code) == (400, "validation_error"), answer
    assert field in answer.body["error"]["message"]


@pytest.mark.parametrize("grant_id", ["welcome", "refund-x"])
async def test_the_service_keeps_its_own_grant_ids(client: Client, grant_id: str) -> None:
    answer = await client.grant("a", grant_id, 5)
    assert (answer.status, answer.code) == (400, "validation_error")


async def test_a_grant_past_two_to_the_53rd(client: Client) -> None:
    await client.open_account("rich", 10_000)
    assert (await client.grant("rich", "g1", 2**53 - 1)).code == "validation_error"
    assert (await client.grant("rich", "g2", 2**53 - 10_001)).status == 201
    assert (await client.grant("rich", "g3", 1)).code == "validation_error"


BAD_ACCOUNTS = [
    ({"zzz": 1}, "zzz"),
    ({"module_enabled": None}, "module_enabled"),
    ({"module_enabled": "yes"}, "module_enabled"),
    ({"access": "closed"}, "access"),
    ({"overage": None}, "overage"),
    ({"overage": {"enabled": True}}, "overage.credit_price_usd"),
    ({"overage": {"cap_usd": 20}}, "overage.cap_usd"),
    ({"overage": {"cap_usd": "-1"}}, "overage.cap_usd"),
    ({"overage": {"cap_usd": "1.1234567"}}, "overage.cap_usd"),
    ({"overage": {"credit_price_usd": "0"}}, "overage.credit_price_usd"),
    ({"environments": None}, "environments"),
    ({"environments": {"prod": {}}}, "prod"),
    ({"environments": {"live": {"max_requests": None}}}, "environments.live.max_requests"),
    ({"environments": {"live": {"max_requests": -1}}}, "environments.live.max_requests"),
    ({"environments": {"live": {"max_calls": 1.5}}}, "environments.live.max_calls"),
    ({"environments": {"live": {"period_credits": 2**53}}}, "environments.live.period_credits"),
]


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(("body", "field"), BAD_ACCOUNTS, ids=[str(row[0]) for row in BAD_ACCOUNTS])
async def test_a_bad_account(client: Client, method: str, body: dict[str, object], field: str) -> None:
    before = (await client.get("/v1/accounts/a")).body
    answer = await client.call(method, "/v1/accounts/a", body)
    assert (answer.status, answer.code) == (400, "validation_error"), answer
    assert field in answer.body["error"]["message"]
    assert (await client.get("/v1/accounts/a")).body == before


async def test_whole_numbers_may_be_written_with_a_point(client: Client) -> None:
    text = b'{"environment":"live","lines":[{"operation":"agent_turn","quantity":2.0}],"ttl_seconds":60.0}'
    answer = await client.call("PUT", "/v1/accounts/a/jobs/whole", data=text, headers={"Content-Type": ""})
    assert (answer.status, answer.body["lines"][0]["requested_quantity"]) == (201, 2)
    assert (await client.reserve("a", "whole", ("agent_turn", 2), ttl_seconds=99)).status == 200


async def test_tokens_and_roles(module_server: Service, client: Client) -> None:
    for headers in ({"Authorization": "Bearer nonsense"}, {"Authorization": "Basic x"}, {"Authorization": ""}):
        for method, path in (("PUT", "/v1/accounts/a/jobs/j"), ("GET", "/v1/accounts/a"), ("GET", "/v1/prices")):
            answer = await client.call(method, path, RESERVE if method == "PUT" else None, headers=headers)
            assert (answer.status, answer.code) == (401, "authentication_required"), (path, answer)
    async with connect(module_server, Role.READER) as reader:
        assert (await reader.reserve("a", "j")).code == "permission_denied"
        assert (await reader.call("PUT", "/v1/accounts/a", {})).code == "permission_denied"
        assert (await reader.get("/v1/accounts/a/balance")).status == 200
    async with connect(module_server, Role.GATEWAY) as gateway:
        assert (await gateway.call("PUT", "/v1/accounts/a", {})).code == "permission_denied"
        assert (await gateway.grant("a", "g", 5)).code == "permission_denied"
        assert (await gateway.get("/v1/accounts/a/balance")).status == 200
        assert (await gateway.reserve("a", "roles")).status == 201


async def test_routes_and_methods(client: Client) -> None:
    unknown = await client.get("/v1/nothing")
    assert (unknown.status, unknown.code) == (404, "resource_not_found")
    for method, path in (("DELETE", "/v1/accounts/a/jobs/open"), ("GET", "/v1/batch"), ("POST", "/v1/prices")):
        answer = await client.call(method, path)
        assert (answer.status, answer.code) == (405, "method_not_allowed"), (path, answer)


async def test_request_ids(client: Client) -> None:
    given = await client.call("GET", "/v1/accounts/nobody", headers={"X-Request-Id": "req-7"})
    assert given.headers["X-Request-Id"] == given.body["error"]["request_id"] == "req-7"
    assert given.body["error"]["doc_url"] == "https://asixto.com/docs/gateway/errors#resource_not_found"
    made_up = await client.get("/v1/prices")
    assert made_up.headers["X-Request-Id"]


async def test_a_bad_command_of_a_batch_does_not_touch_its_neighbours(client: Client) -> None:
    good = {"command": "reserve", "account_id": "a", "job_id": "b1", **RESERVE}
    commands = [
        good,
        {"command": "reserve", "account_id": "a", "job_id": "-", **RESERVE},
        {"command": "dance"},
        17,
        {"command": "settle", "account_id": "a", "job_id": "b1", "lines": [TURN], "result": "x" * 300_000},
        {"command": "settle", "account_id": "a", "job_id": "b1", "lines": [TURN]},
        {"command": "refund", "account_id": "a", "job_id": "b1", "refund_id": "r", "credits": 1},
        {"command": "release", "account_id": "a", "job_id": "b1"},
        {"command": "reserve", "account_id": "a", "job_id": "b2", **reserve(metadata={"a": "\0"})},
    ]
    answer = await client.call("POST", "/v1/batch", {"commands": commands}, headers={"X-Request-Id": "r-9"})
    assert answer.status == 200
    results = answer.body["results"]
    assert [r["status"] for r in results] == [201, 400, 400, 400, 413, 200, 201, 409, 400]
    assert {r["body"]["error"]["request_id"] for r in results if "error" in r["body"]} == {"r-9"}
    await client.assert_audit_clean()


async def test_a_lone_surrogate_in_one_command_of_a_batch_does_not_touch_its_neighbours(client: Client) -> None:
    one, other = (
        b'{"command":"reserve","account_id":"a","job_id":"%b","environment":"live",'
        b'"metadata":{"exact": 1.00000000000000000001},"lines":[{"operation":"agent_turn","quantity":1}]}' % name
        for name in (b"s1", b"s2")
    )
    odd = b'{"command":"refund","account_id":"a","job_id":"s1","refund_id":"\\ud800","reason":"],[{"}'
    sent = b' {"commands" :[\n%b , %b\t,%b ] } ' % (one, odd, other)
    answer = await client.call("POST", "/v1/batch", data=sent, headers=JSON)
    assert [result["status"] for result in answer.body["results"]] == [201, 400, 201]
    assert answer.body["results"][1]["body"]["error"]["code"] == "validation_error"
    for body in (b'{"commands":[%b,]}', b'{"commands":[%b]', b'{"x":[%b]}', b'{"commands":[%b]}x', b"[%b]"):
        answer = await client.call("POST", "/v1/batch", data=body % odd, headers=JSON)
        assert (answer.status, answer.code) == (400, "validation_error"), body
    too_many = b'{"commands":[%b]}' % b",".join([odd] * 1001)
    assert (await client.call("POST", "/v1/batch", data=too_many, headers=JSON)).code == "validation_error"
    await client.assert_audit_clean()


async def test_bad_batches(client: Client) -> None:
    bad: list[dict[str, object]] = [
        {"commands": []},
        {"commands": [{}] * 1001},
        {},
        {"commands": {}},
        {"commands": [], "x": 1},
    ]
    for body in bad:
        answer = await client.call("POST", "/v1/batch", body)
        assert (answer.status, answer.code) == (400, "validation_error"), body


async def test_a_refused_account_is_not_opened(client: Client) -> None:
    body = {"module_enabled": True, "overage": {"enabled": True}}
    assert (await client.call("PUT", "/v1/accounts/never", body)).code == "validation_error"
    assert (await client.get("/v1/accounts/never")).status == 404


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET /v1/prices HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
    ],
    ids=["no request", "no header", "no length"],
)
async def test_what_is_no_http_is_answered_as_everything_is(module_server: Service, sent: bytes) -> None:
    """E1, although no route, and no line of the log, sees it."""
    host, _, port = module_server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    head, _, body = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    error = msgspec.json.decode(body)["error"]
    assert status == "HTTP/1.1 400 Bad Request"
    assert (headers["content-type"], headers["content-length"]) == ("application/json", str(len(body)))
    assert set(error) == {"code", "message", "request_id", "doc_url", "details"}
    assert error["code"] == "validation_error"
    assert error["doc_url"].endswith("#validation_error")
    assert error["request_id"] == headers["x-request-id"]
