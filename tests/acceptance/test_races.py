"""Many callers at one instant: exactly as many win as may, over HTTP, on one service and on two replicas."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest

from ledger.embedded import ConnectionUrls
from ledger.tokens import variable_of
from tests.support.client import Answer, Client, connect
from tests.support.service import Service


@pytest.fixture(scope="module", params=["one service", "two replicas"])
def running(
    request: pytest.FixtureRequest, module_database: ConnectionUrls, module_services: Callable[..., Service]
) -> list[Service]:
    """As many services as there are, all on one database and with the same tokens."""
    options = ("--database-url", module_database.service, "--simulated-clock")
    first = module_services(*options)
    if request.param == "one service":
        return [first, first]
    environment = {variable_of(role): token for role, token in first.tokens.items()}
    return [first, module_services(*options, environment=environment)]


@pytest.fixture
async def clients(running: list[Service]) -> AsyncIterator[list[Client]]:
    """A client of each service."""
    async with connect(running[0]) as one, connect(running[1]) as other:
        yield [one, other]


@pytest.fixture
def a() -> str:
    """An account of the test's own."""
    return f"a-{uuid.uuid4().hex}"


async def at_once(calls: Iterable[Awaitable[Answer]]) -> list[Answer]:
    """Start all calls behind one barrier and return their answers in order."""
    gate = asyncio.Event()

    async def wait(call: Awaitable[Answer]) -> Answer:
        await gate.wait()
        return await call

    tasks = [asyncio.create_task(wait(call)) for call in calls]
    await asyncio.sleep(0)
    gate.set()
    return await asyncio.gather(*tasks)


def outcomes(answers: list[Answer]) -> Counter[str]:
    return Counter(answer.code or str(answer.status) for answer in answers)


async def test_one_credit_and_two_reservations(clients: list[Client], a: str) -> None:
    await clients[0].open_account(a, 1)
    answers = await at_once(c.reserve(a, f"j{n}", ("sentiment_analysis", 1)) for n, c in enumerate(clients))
    assert outcomes(answers) == {"201": 1, "insufficient_credits": 1}
    balance = await clients[0].balance(a)
    assert (balance["available"], balance["held"]) == (0, 1)
    await clients[0].assert_audit_clean()


async def test_fifty_reservations_of_the_whole_balance(clients: list[Client], a: str) -> None:
    await clients[0].open_account(a, 270)
    answers = await at_once(clients[n % 2].reserve(a, f"j{n}", ("video_analysis", 1)) for n in range(50))
    assert outcomes(answers) == {"201": 1, "insufficient_credits": 49}
    await clients[0].assert_audit_clean()


async def test_a_cap_admits_exactly_twenty_of_a_hundred(clients: list[Client], a: str) -> None:
    """O5, O7: 0.22 USD at 0.001 a credit is 220 credits, twenty turns of 11."""
    overage = {"enabled": True, "cap_usd": "0.22", "credit_price_usd": "0.001"}
    await clients[0].open_account(a, overage=overage, payment_method_verified=True)
    await clients[0].grant(a, "down", -3000, kind="adjustment")
    answers = await at_once(clients[n % 2].reserve(a, f"j{n}") for n in range(100))
    assert outcomes(answers) == {"201": 20, "spending_cap_reached": 80}
    assert (await clients[0].balance(a))["overage"]["held"] == 220
    await clients[0].assert_audit_clean()


async def test_settle_against_release(clients: list[Client], a: str) -> None:
    await clients[0].open_account(a, 1000)
    for n in range(10):
        assert (await clients[0].reserve(a, f"j{n}")).status == 201
    answers = await at_once(
        call for n in range(10) for call in (clients[0].settle(a, f"j{n}"), clients[1].release(a, f"j{n}"))
    )
    assert outcomes(answers) == {"200": 10, "job_already_closed": 10}
    charged = sum(a.body["credits_charged"] for a in answers if a.status == 200)
    balance = await clients[0].balance(a)
    assert (balance["available"], balance["held"]) == (1000 - charged, 0)
    await clients[0].assert_audit_clean()


async def test_settle_against_expiry(clients: list[Client], a: str) -> None:
    """J6, T1: from the deadline on a settlement bills nothing, whichever request comes first."""
    await clients[0].open_account(a, 1000)
    now = (await clients[0].get("/v1/clock")).body["now"]
    for n in range(10):
        assert (await clients[0].reserve(a, f"j{n}", ttl_seconds=60)).status == 201
    deadline = (await clients[0].get(f"/v1/accounts/{a}/jobs/j0")).body["expires_at"]
    assert deadline > now
    calls = [clients[n % 2].settle(a, f"j{n}") for n in range(10)]
    moved, *answers = await at_once([clients[0].call("PUT", "/v1/clock", {"now": deadline}), *calls])
    assert moved.status == 200
    seen = outcomes(answers)
    assert seen["200"] + seen["job_not_completed"] == 10
    balance = await clients[0].balance(a)
    assert (balance["available"], balance["held"]) == (1000 - 11 * seen["200"], 0)
    for n, answer in enumerate(answers):
        job = (await clients[0].get(f"/v1/accounts/{a}/jobs/j{n}")).body
        assert job["status"] == ("settled" if answer.status == 200 else "expired")
    await clients[0].assert_audit_clean()


async def test_the_same_refund_from_everywhere(clients: list[Client], a: str) -> None:
    await clients[0].open_account(a, 1000)
    await clients[0].reserve(a, "j")
    await clients[0].settle(a, "j")
    answers = await at_once(clients[n % 2].refund(a, "j", "rf", 11) for n in range(30))
    assert outcomes(answers) == {"201": 1, "200": 29}
    assert (await clients[0].balance(a))["available"] == 1000
    await clients[0].assert_audit_clean()


async def test_one_idempotency_key_from_thirty_connections(clients: list[Client], a: str) -> None:
    """J10: one job is reserved, and the others hear that it is in flight."""
    await clients[0].open_account(a, 1000)
    answers = await at_once(clients[n % 2].reserve(a, f"j{n}", idempotency_key="key") for n in range(30))
    assert outcomes(answers) == {"201": 1, "request_in_flight": 29}
    assert (await clients[0].balance(a))["held"] == 11
    await clients[0].assert_audit_clean()


async def test_the_same_job_from_thirty_connections(clients: list[Client], a: str) -> None:
    await clients[0].open_account(a, 1000)
    answers = await at_once(clients[n % 2].reserve(a, "j") for n in range(30))
    assert outcomes(answers) == {"201": 1, "200": 29}
    assert len({str(answer.body) for answer in answers}) == 1
    await clients[0].assert_audit_clean()


async def test_the_first_requests_ever_of_an_account(clients: list[Client], a: str) -> None:
    """F5, A6: thirty callers open the account at once; it is opened once and welcomed once."""
    body = {"module_enabled": True, "payment_method_verified": True, "environments": {"live": {}}}
    answers = await at_once(clients[n % 2].call("PUT", f"/v1/accounts/{a}", body) for n in range(30))
    assert outcomes(answers) == {"201": 1, "200": 29}
    balance = await clients[0].balance(a)
    assert (balance["available"], len(balance["grants"])) == (3000, 1)
    await clients[0].assert_audit_clean()


async def test_the_same_grant_from_everywhere(clients: list[Client], a: str) -> None:
    await clients[0].open_account(a)
    answers = await at_once(clients[n % 2].grant(a, "inv-1", 500) for n in range(30))
    assert outcomes(answers) == {"201": 1, "200": 29}
    assert (await clients[0].balance(a))["available"] == 500
    await clients[0].assert_audit_clean()
