"""More than the service can take: what is too much is told so at once, in our shape, and harms nobody else (E2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import aiohttp

from ledger.embedded import ConnectionUrls
from tests.support.client import Answer, connect
from tests.support.scraping import scrape
from tests.support.service import Service

MIB = 1024 * 1024


def assert_shed(answer: Answer) -> None:
    """Fail unless it is the 503 that everybody knows, with when to come back."""
    assert (answer.status, answer.code) == (503, "upstream_unavailable"), answer
    assert answer.headers["Retry-After"] == "1"
    assert answer.body["error"]["details"] == {"retry_after": 1}
    assert answer.headers["X-Request-Id"] == answer.body["error"]["request_id"]


async def test_an_account_that_floods_leaves_room_for_the_others(
    database: ConnectionUrls, services: Callable[..., Service]
) -> None:
    service = services("--database-url", database.service, environment={"LEDGER_REQUESTS_MAX": "20"})
    async with connect(service, connections=500) as client:
        await client.open_account("noisy", 10**6)
        await client.open_account("quiet", 10**6)
        flood = [asyncio.create_task(client.reserve("noisy", f"j{n}")) for n in range(300)]
        quiet = [await client.reserve("quiet", f"j{n}") for n in range(20)]
        answers = await asyncio.gather(*flood)
        assert {answer.status for answer in quiet} == {201}
        seen = Counter(answer.status for answer in answers)
        assert set(seen) == {201, 503}
        for answer in answers:
            if answer.status == 503:
                assert_shed(answer)
        assert (await client.balance("noisy"))["held"] == 11 * seen[201]
        metrics = await scrape(client)
        assert metrics.value("ledger_requests_shed_total") == seen[503]
        assert metrics.value("ledger_requests_limit") == 20
        assert metrics.value("ledger_requests_in_flight") == 0
        assert (await client.reserve("noisy", "afterwards")).status == 201


async def test_bodies_are_bounded_in_all(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """A body is not kept where there is no room for it, and the connection goes on."""
    service = services("--database-url", database.service, environment={"LEDGER_BODY_BYTES": str(MIB)})
    async with connect(service, connections=1) as client:
        await client.open_account("a", 10**6)
        large = b'{"commands": [' + b" " * 2 * MIB + b"]}"
        answer = await client.call("POST", "/v1/batch", data=large, headers={"Content-Type": "application/json"})
        assert_shed(answer)
        assert (await client.reserve("a", "j")).status == 201


async def test_slow_bodies_take_their_room_and_give_it_back(
    database: ConnectionUrls, services: Callable[..., Service]
) -> None:
    """Callers that stop in the middle of their bodies hold so much and no more, until they go away."""
    service = services("--database-url", database.service, environment={"LEDGER_REQUESTS_MAX": "4"})
    host, port = service.url.removeprefix("http://").split(":")
    head = "PUT /v1/accounts/slow/jobs/j HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in service.headers().items()
    )
    writers = []
    for _ in range(2):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + b"\r\n{")
        await writer.drain()
        writers.append(writer)
    async with connect(service) as client:
        async with asyncio.timeout(20):
            while (await client.reserve("slow", "j")).status != 503:  # noqa: ASYNC110 - until both are received
                await asyncio.sleep(0.05)
        await client.open_account("quick", 100)
        assert (await client.reserve("quick", "j")).status == 201
        for writer in writers:
            writer.close()
        async with asyncio.timeout(20):
            while (await client.reserve("slow", "j")).status == 503:  # noqa: ASYNC110 - until both are gone
                await asyncio.sleep(0.05)


async def test_probes_always_get_through(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    service = services("--database-url", database.service, environment={"LEDGER_REQUESTS_MAX": "1"})
    async with connect(service) as client, aiohttp.ClientSession() as session:
        await client.open_account("a", 10**6)
        answers = await asyncio.gather(
            *(client.reserve("a", f"j{n}") for n in range(50)),
            *(client.get(path) for path in ("/health/live", "/health/ready", "/metrics") for _ in range(5)),
        )
        assert {answer.status for answer in answers[50:]} == {200}
        assert 503 in {answer.status for answer in answers[:50]}
        async with session.get(f"{service.url}/health/ready") as response:
            assert response.status == 200
