"""The service answers what its OpenAPI document says: every success, and every error that can be brought about."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import aiohttp
import pytest

from ledger.tokens import Role
from tests.support.client import Answer, Client, connect
from tests.support.openapi import Document, Operation
from tests.support.service import Service

A = "/v1/accounts/a"
CALL = ("voice_call_minute", 60)
CSV = {"Accept": "text/csv"}
JSON = {"Content-Type": "application/json"}
NAMES = {
    "account_id": "a",
    "job_id": "settled",
    "grant_id": "opening",
    "month": "2026-10",
    "confirmation_code": "code",
    "sweep": "audit",
}
WITHOUT = {Role.GATEWAY: Role.READER, Role.ADMIN: Role.GATEWAY}
"""A role that is too small for those that need one."""

NOT_BROUGHT_ABOUT = {
    "reserveJob": {"resource_not_found"},  # the job that is the answer is deleted between the decision and the reading
    "moveClock": {"resource_not_found"},  # the clock is real
}
NEVER = {"internal_error", "upstream_unavailable"}  # defects, and a database that is away


class Checked(Client):
    """A client that holds every answer against the document, and notes what it has seen."""

    def __init__(self, session: aiohttp.ClientSession, service: Service, document: Document) -> None:
        super().__init__(session, service)
        self.document = document
        self.seen: set[tuple[str, int, str | None]] = set()

    async def call(
        self,
        method: str,
        path: str,
        json: object = None,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and check its answer."""
        answer = await super().call(method, path, json, data=data, headers=headers)
        operation = self.document.operation(method, path.split("?")[0])
        assert operation is not None, (method, path)
        self.document.check(operation, answer)
        self.seen.add((operation.id, answer.status, answer.code))
        return answer

    async def refused(self, code: str, method: str, path: str, json: object = None, **more: Any) -> None:
        """Send one request, and fail unless it is refused with a code."""
        answer = await self.call(method, path, json, **more)
        assert answer.code == code, answer

    async def wait(self, seconds: int) -> None:
        """Move the clock on."""
        now = datetime.fromisoformat((await self.call("GET", "/v1/clock")).body["now"])
        moved = await self.call("PUT", "/v1/clock", {"now": (now + timedelta(seconds=seconds)).isoformat()})
        assert moved.status == 200


@contextlib.asynccontextmanager
async def checked(service: Service) -> AsyncIterator[Checked]:
    async with connect(service) as client:
        document = Document((await client.get("/schema/openapi.json")).body).strict()
    async with aiohttp.ClientSession() as session:
        yield Checked(session, service, document)


async def test_it_needs_no_token(module_server: Service) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{module_server.url}/schema/openapi.json") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/json"
        assert (await response.json())["info"]["title"] == "Gateway Ledger"


@pytest.mark.timeout(300)
async def test_the_service_answers_what_the_document_says_and_all_of_it(module_server: Service) -> None:
    async with checked(module_server) as client:
        await _accounts(client)
        await _jobs(client)
        await _refused_reservations(client)
        await _repeated(client)
        await _closed(client)
        await _batch(client)
        await _reads(client)
        await _operation(client)
        await _sweeps_and_events(client)
        await _deletion(client)
        for operation in client.document.operations:
            await _shared(client, module_server, operation)
        assert _documented(client.document) - client.seen == set()


def _documented(document: Document) -> set[tuple[str, int, str | None]]:
    """Return every answer that is described and can be brought about."""
    answers: set[tuple[str, int, str | None]] = set()
    for operation in document.operations:
        elsewhere = NEVER | NOT_BROUGHT_ABOUT.get(operation.id, set())
        for status in document.responses(operation):
            codes = document.codes(operation, status) - elsewhere
            answers |= {(operation.id, status, code) for code in (codes if status >= 400 else (None,))}
    return answers


# -- the walk ------------------------------------------------------------------------------------------------------


async def _accounts(client: Checked) -> None:
    quotas = {"live": {"max_requests": 100, "max_calls": 100}, "test": {"max_requests": 0, "max_calls": 0}}
    for _ in range(2):
        await client.call("PUT", A, {"module_enabled": True, "environments": quotas})
        await client.grant("a", "opening", 100_000, reference="inv-77")
        await client.call("PUT", f"{A}/billing-cycles/2026-10", {"status": "paid_on_time"})
    changed = await client.call("PATCH", A, {"overage": {"cap_usd": "50.00", "credit_price_usd": "0.001"}})
    assert changed.body["effective_cap_credits"] == 20_000
    await client.refused("validation_error", "PUT", A, {"overage": {"enabled": True}})
    await client.refused("validation_error", "PATCH", A, {"access": None})
    await client.refused("resource_not_found", "PATCH", "/v1/accounts/nobody", {})
    grant = {"kind": "adjustment", "credits": -1_000_000}
    await client.refused("insufficient_credits", "PUT", f"{A}/grants/too-much", grant)
    await client.refused("idempotency_key_reused", "PUT", f"{A}/grants/opening", {"kind": "purchase", "credits": 1})
    await client.refused("validation_error", "PUT", f"{A}/grants/welcome", {"kind": "purchase", "credits": 1})
    await client.refused("resource_not_found", "PUT", "/v1/accounts/nobody/grants/g", grant)
    await client.refused("validation_error", "PUT", f"{A}/billing-cycles/2026-13", {"status": "open"})
    await client.refused("resource_not_found", "PUT", "/v1/accounts/nobody/billing-cycles/2026-10", {"status": "open"})


async def _jobs(client: Checked) -> None:
    """A call with a transfer, a refund, a release: each twice."""
    lines = (("voice_call_minute", 150.5), ("voice_transfer_minute", None), ("sentiment_analysis", 0))
    for _ in range(2):
        await client.reserve(
            "a", "settled", ("voice_call_minute", 300.5), transferable=True, metadata={"loan_id": "L-9"}
        )
    await client.refused("request_in_flight", "POST", f"{A}/jobs/settled/refunds", {"refund_id": "early"})
    for _ in range(2):
        await client.settle("a", "settled", *lines, result=["any", {"json": None}], record={"latency_ms": 812.0})
        await client.refund("a", "settled", "rf-1", 500)
    await client.reserve("a", "released")
    for _ in range(2):
        released = await client.release("a", "released", error_code="upstream_unavailable", record={"status_code": 503})
        assert released.body["credits_returned"] == 11
    replayed = await client.reserve("a", "settled", ("voice_call_minute", 300.5), transferable=True)
    assert replayed.body["replayed"] is True
    for job in ("settled", "released"):
        assert (await client.get(f"{A}/jobs/{job}")).status == 200


async def _refused_reservations(client: Checked) -> None:
    """What a reservation is refused for (Q6)."""

    async def refused(code: str, account: str, *lines: tuple[str, float], **more: object) -> None:
        answer = await client.reserve(account, "refused", *lines, **more)
        assert answer.code == code, answer

    await client.open_account("poor", 10)
    await refused("insufficient_credits", "poor")
    overage = {"enabled": True, "cap_usd": "0.01", "credit_price_usd": "0.001"}
    await client.call("PATCH", "/v1/accounts/poor", {"payment_method_verified": True, "overage": overage})
    await client.call(
        "PUT", "/v1/accounts/poor", {"module_enabled": True, "environments": {"live": {"period_credits": 100}}}
    )
    await refused("request_exceeds_period_quota", "poor", CALL)
    await client.open_account("capped", payment_method_verified=True, overage=overage, access="suspended")
    await refused("gateway_not_enabled", "capped")
    capped = {"access": "active", "module_enabled": True, "environments": {"live": {"period_credits": 3_005}}}
    await client.call("PATCH", "/v1/accounts/capped", capped)
    await client.reserve("capped", "most", ("video_analysis", 11))  # of the welcome: 30 credits are left
    await refused("period_quota_exhausted", "capped", ("agent_turn", 4))
    await client.call("PATCH", "/v1/accounts/capped", {"environments": {"live": {"period_credits": None}}})
    await refused("spending_cap_reached", "capped", ("image_analysis", 1))
    await refused("gateway_not_enabled", "nobody")
    await refused("concurrency_limit_reached", "a", environment="test")
    await refused("call_concurrency_limit_reached", "a", CALL, environment="test")
    await refused("operation_not_priced", "a", ("agent_dream", 1))
    await refused("validation_error", "a", ("agent_turn", 1.5))


async def _repeated(client: Checked) -> None:
    """What a repeated request is answered with (J10)."""
    await client.reserve("a", "open", CALL, idempotency_key="key", ttl_seconds=60)
    partial = {"environment": "live", "lines": [{"operation": CALL[0], "quantity": CALL[1]}], "idempotency_key": "key"}
    await client.refused("request_in_flight", "PUT", f"{A}/jobs/other", partial)
    await client.refused("idempotency_key_reused", "PUT", f"{A}/jobs/other", {**partial, "transferable": True})
    await client.reserve("a", "resultless")
    await client.settle("a", "resultless")
    assert (await client.reserve("a", "resultless")).code == "result_not_replayable"
    await client.wait(60)
    assert (await client.reserve("a", "open", CALL)).code == "job_not_completed"
    assert (await client.get(f"{A}/jobs/open")).body["status"] == "expired"


async def _closed(client: Checked) -> None:
    """What closing a job is refused for."""
    turn = {"lines": [{"operation": "agent_turn", "quantity": 1}]}
    refund = {"refund_id": "rf-9"}
    for action, body in (("settle", turn), ("release", {}), ("refunds", refund)):
        for job, code in (("nothing", "resource_not_found"), ("open", "job_not_completed")):
            await client.refused(code, "POST", f"{A}/jobs/{job}/{action}", body)
    await client.refused("idempotency_key_reused", "POST", f"{A}/jobs/settled/settle", turn)
    await client.refused("job_already_closed", "POST", f"{A}/jobs/released/settle", turn)
    await client.refused("job_already_closed", "POST", f"{A}/jobs/settled/release", {})
    await client.refused("job_already_closed", "POST", f"{A}/jobs/released/refunds", refund)
    await client.refused(
        "idempotency_key_reused", "POST", f"{A}/jobs/settled/refunds", {"refund_id": "rf-1", "credits": 1}
    )
    await client.refused("validation_error", "POST", f"{A}/jobs/settled/refunds", {**refund, "credits": 0})
    await client.refused("validation_error", "POST", f"{A}/jobs/settled/settle", {"lines": []})
    await client.refused("validation_error", "POST", f"{A}/jobs/settled/release", {"originated": None})
    await client.reserve("a", "unpriced")
    dream = {"lines": [{"operation": "agent_dream", "quantity": 1}]}
    await client.refused("operation_not_priced", "POST", f"{A}/jobs/unpriced/settle", dream)


async def _batch(client: Checked) -> None:
    job = {"account_id": "a", "job_id": "batched"}
    lines = [{"operation": "agent_turn", "quantity": 1}]
    commands = [
        {"command": "reserve", **job, "environment": "live", "lines": lines, "metadata": {}},
        {"command": "settle", **job, "lines": lines, "result": 1},
        {"command": "reserve", **job, "environment": "live", "lines": lines},
        {"command": "refund", **job, "refund_id": "rf-2", "credits": None},
        {"command": "release", **job},
        {"command": "dream"},
    ]
    answer = await client.call("POST", "/v1/batch", {"commands": commands})
    assert [result["status"] for result in answer.body["results"]] == [201, 200, 200, 201, 409, 400]
    await client.refused("validation_error", "POST", "/v1/batch", {"commands": []})


async def _reads(client: Checked) -> None:
    """Every list is of some pages; CSV has the columns of the example."""
    for path in ("", "/balance", "/balance?at=2026-01-01T00:00:00Z", "/grants", "/billing-cycles", "/jobs?limit=2"):
        assert (await client.get(A + path)).status == 200
    period = (await client.balance("a"))["period"]
    for path in ("/usage", "/usage/records", "/entries?limit=3", f"/statements/{period}"):
        assert (await client.get(A + path)).status == 200
        table = await client.call("GET", A + path, headers=CSV)
        operation = client.document.operation("GET", A + path.split("?")[0])
        assert operation is not None
        example = client.document.responses(operation)[200]["content"]["text/csv"]["examples"]["the_same_rows"]
        assert table.body.decode().splitlines()[0] == example["value"].splitlines()[0]
    assert (await client.get(f"{A}/usage?group_by=day,environment")).body["lines"]
    assert (await client.get(f"{A}/entries?canonical=true")).body["data"][0]["canonical"]
    for operation in client.document.operations:
        if operation.method == "get" and "{account_id}" in operation.path:
            path = operation.path.format(**{**NAMES, "account_id": "nobody", "period": period})
            await client.refused("resource_not_found", "GET", path)


async def _operation(client: Checked) -> None:
    for path in ("/health/live", "/health/ready", "/metrics", "/v1/prices", "/schema/openapi.json"):
        assert (await client.get(path)).status == 200
    await client.refused("resource_not_found", "GET", "/v1/prices?at=2000-01-01T00:00:00Z")
    quote = {"lines": [{"operation": "voice_call_minute", "quantity": 300}], "transferable": True}
    assert (await client.call("POST", "/v1/quotes", quote)).body["credits"] == 3560
    await client.refused(
        "operation_not_priced", "POST", "/v1/quotes", {"lines": [{"operation": "dream", "quantity": 1}]}
    )
    await client.refused("validation_error", "POST", "/v1/quotes", {"lines": []})
    await client.refused("validation_error", "PUT", "/v1/clock", {"now": "2000-01-01T00:00:00Z"})
    await client.assert_audit_clean()
    await client.refused("resource_not_found", "POST", "/v1/audit", {"account_id": "nobody"})
    await client.refused("validation_error", "POST", "/v1/audit", {"account_id": ""})


async def _sweeps_and_events(client: Checked) -> None:
    swept = await client.call("POST", "/v1/sweeps/expire_holds")
    assert swept.status == 200
    await client.refused("resource_not_found", "POST", "/v1/sweeps/dream")
    assert (await client.get("/v1/sweeps")).body["data"][0]["counts"] == swept.body["counts"]
    events = await client.get("/v1/events?account_id=a&limit=500")
    assert {"job.expired"} <= {event["type"] for event in events.body["data"]}
    await client.refused("validation_error", "GET", "/v1/events?after=nowhere")


async def _deletion(client: Checked) -> None:
    """A deletion that is asked for, cancelled and revived."""
    path = "/v1/accounts/leaving/deletion"
    for method in ("POST", "DELETE"):
        await client.refused("resource_not_found", method, path)
        await client.refused("validation_error", method, "/v1/accounts/-/deletion")
    await client.open_account("leaving")
    for method, status in (("POST", "pending"), ("DELETE", "cancelled"), ("POST", "pending")):
        stands = (await client.call(method, path)).body
        assert stands["status"] == status
        assert (await client.get(f"/v1/deletions/{stands['confirmation_code']}")).body == stands
        assert (await client.get("/v1/accounts/leaving")).body["deletion"] == stands
    await client.refused("resource_not_found", "GET", "/v1/deletions/nobody")


# -- what operations share -----------------------------------------------------------------------------------------


async def _shared(client: Checked, service: Service, operation: Operation) -> None:
    """Tokens, roles, other methods, bodies of other types, bodies that are too large, unknown parameters."""
    path = operation.path.format(**NAMES, period="2026-10")
    method = operation.method.upper()
    statuses = client.document.responses(operation)
    body = b"{}" if "requestBody" in operation.shown else None
    if 401 in statuses:
        await client.refused("authentication_required", method, path, data=body, headers={"Authorization": "Bearer no"})
    if 403 in statuses:
        (scheme,) = operation.shown["security"]
        small = service.headers(WITHOUT[Role(scheme["bearer"][0])])
        await client.refused("permission_denied", method, path, data=body, headers=small)
    if body is not None:
        await client.refused("unsupported_media_type", method, path, data=body, headers={"Content-Type": "text/plain"})
        size = 65 if operation.id == "runBatch" else 1
        large = b" " * (size * 1024 * 1024 + 1)
        await client.refused("payload_too_large", method, path, data=large, headers=JSON)
    elif method == "GET":
        await _unknown_parameter(client, operation, path)
    await _other_method(client, service, operation, path)


async def _unknown_parameter(client: Checked, operation: Operation, path: str) -> None:
    """The parameters that the service says are allowed are those that the document has; some routes mind none."""
    answer = await client.get(f"{path}?colour=red")
    if 400 not in client.document.responses(operation):
        return
    assert answer.code == "validation_error"
    parameters = [client.document.follow(parameter) for parameter in operation.shown["parameters"]]
    documented = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
    message = answer.body["error"]["message"].removeprefix("colour: unknown parameter; ")
    allowed = message.removeprefix("allowed: ").removesuffix(" is allowed").split(", ")
    assert {*allowed} - {"none"} == documented, operation.id


async def _other_method(client: Checked, service: Service, operation: Operation, path: str) -> None:
    """What a path answers to a method that it has not."""
    item = client.document.shown["paths"][operation.path]
    method = next(method for method in ("delete", "patch", "put") if method not in item)
    async with connect(service) as plain:
        answer = await plain.call(method.upper(), path)
    client.document.check(operation, answer)
    assert answer.code == "method_not_allowed"
    assert operation.method.upper() in answer.headers["Allow"]
    client.seen.add((operation.id, answer.status, answer.code))
