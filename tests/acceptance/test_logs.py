"""What the service logs: one line a request, with who and what and how long, and never what it carried."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from ledger.embedded import ConnectionUrls
from ledger.tokens import Role, variable_of
from tests.support.client import Answer, Client, connect
from tests.support.scraping import scrape
from tests.support.service import Service, start_service

SECRET: Final = "CANARY7f3a"
"""It is in every token, query, header and body that is sent; never in a line of the log."""

TOKENS: Final = {variable_of(role): f"glt_{role}_{SECRET}" for role in Role}
NAMES: Final = {
    "account_id": "a",
    "job_id": "j",
    "grant_id": "opening",
    "month": "2026-10",
    "period": "2026-10",
    "sweep": "audit",
    "confirmation_code": SECRET,
}
FIELDS: Final = {"timestamp", "level", "event", "request_id", "method", "route", "outcome", "status", "ms"}

Line = dict[str, Any]


def start(services: Callable[..., Service], database: ConnectionUrls, **environment: str) -> Service:
    options = ("--database-url", database.service, "--simulated-clock")
    return services(*options, environment={**TOKENS, "LEDGER_LOG_LEVEL": "debug", **environment})


def lines_of(service: Service) -> list[Line]:
    """Return every line of a service's log, each of which is JSON."""
    return [msgspec.json.decode(line) for line in service.log.read_bytes().splitlines()]


async def requests_of(service: Service, count: int) -> list[Line]:
    """Return the lines about requests once there are so many: the last is written after its answer is sent."""
    async with asyncio.timeout(30):
        while len(found := [line for line in lines_of(service) if line["event"] == "request"]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def test_no_request_leaves_what_it_carried(services: Callable[..., Service], database: ConnectionUrls) -> None:
    """Every route, well and badly asked, with a secret wherever there is room for one."""
    service = start(services, database)
    async with connect(service) as client:
        await client.open_account("a", 10_000)
        answers = [answer for name in ("j", "k") for answer in await job_with_secrets(client, name)]
        document = (await client.get("/schema/openapi.json")).body
        operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
        for path, method in operations:
            answers += await ask_with_secrets(client, method.upper(), path)
        answers += [await client.get(f"/{SECRET}"), await client.call("PATCH", f"/v1/accounts/a/jobs/{SECRET}%20", {})]
    assert {answer.status for answer in answers} >= {200, 201, 400, 401, 404, 405}
    lines = await requests_of(service, len(answers) + 3)
    assert service.stop() == 0
    assert SECRET not in service.log.read_text()
    assert len(lines) == len(answers) + 3
    counted = Counter(line["request_id"] for line in lines)
    for answer in answers:
        assert counted[answer.headers["X-Request-Id"]] == 1
    for line in lines:
        assert set(line) - {"account", "job", "outcomes"} == FIELDS, line
    routes = {line["route"] for line in lines}
    assert routes == {path for path, _ in operations} | {"unmatched"}


async def job_with_secrets(client: Client, job_id: str) -> list[Answer]:
    reserved = {"idempotency_key": f"{SECRET}-{job_id}", "fingerprint": SECRET, "metadata": {SECRET: SECRET}}
    record = {"request_id": SECRET, "status_code": 200, "latency_ms": 1, "key_prefix": SECRET}
    return [
        await client.reserve("a", job_id, **reserved),
        await client.settle("a", job_id, result={SECRET: SECRET}, record=record),
        await client.get(f"/v1/accounts/a/jobs/{job_id}"),
    ]


async def ask_with_secrets(client: Client, method: str, path: str) -> list[Answer]:
    """Ask a route with a secret as its query, as its body, as another type of body, and as the token."""
    place = re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "x"), path)
    body = {SECRET: SECRET}
    return [
        await client.call(method, f"{place}?{SECRET}={SECRET}", body),
        await client.call(method, place, data=SECRET.encode(), headers={"Cookie": SECRET, "User-Agent": SECRET}),
        await client.call(method, place, body, headers={"Content-Type": SECRET, "Accept": f"text/{SECRET}"}),
        await client.call(method, place, body, headers={"Authorization": f"Bearer {SECRET}"}),
    ]


async def test_a_line_says_who_what_and_how_long(services: Callable[..., Service], database: ConnectionUrls) -> None:
    service = start(services, database)
    async with connect(service) as client:
        await client.open_account("a", 100)
        mine = {"X-Request-Id": 'mine "and" mine'}
        job = {"environment": "live", "lines": [{"operation": "agent_turn", "quantity": 1}]}
        for _ in range(2):
            await client.call("PUT", "/v1/accounts/a/jobs/j", job, headers=mine)
        await client.settle("a", "j", ("agent_turn", 1))
        await client.reserve("a", "large", ("agent_turn", 1000))
        await client.reserve("a\n%0aforged", "j")
        commands = [{"command": "reserve", "account_id": "a", "job_id": f"b{n}", **job} for n in range(9)]
        await client.call("POST", "/v1/batch", {"commands": [*commands, {"command": "settle"}]})
    _, _, first, again, settled, large, forged, batch = await requests_of(service, 8)
    assert first["request_id"] == 'mine "and" mine'
    assert first.items() >= {"method": "PUT", "account": "a", "job": "j", "outcome": "reserved", "status": 201}.items()
    assert first["route"] == "/v1/accounts/{account_id}/jobs/{job_id}"
    assert 0 < first["ms"] < 60_000
    assert (again["outcome"], again["status"]) == ("repeated", 200)
    assert (settled["outcome"], settled["route"][-6:]) == ("settled", "settle")
    assert (large["outcome"], large["status"], large["level"]) == ("insufficient_credits", 402, "info")
    assert "account" not in forged
    assert batch["outcomes"] == {"reserved": 8, "insufficient_credits": 1, "validation_error": 1}


async def test_only_errors_and_no_probes(services: Callable[..., Service], database: ConnectionUrls) -> None:
    """`LEDGER_LOG_REQUESTS=errors` leaves out what went well; probes that go well are for `debug`."""
    errors = start(services, database, LEDGER_LOG_REQUESTS="errors")
    everything = start(services, database, LEDGER_LOG_LEVEL="info")
    for service in (errors, everything):
        async with connect(service) as client:
            await client.get("/health/ready")
            await client.get("/metrics")
            await client.get("/v1/prices")
            await client.get("/v1/accounts/none")
    assert [line["status"] for line in await requests_of(errors, 1)] == [404]
    assert [line["status"] for line in await requests_of(everything, 2)] == [200, 404]


async def test_for_a_reader(services: Callable[..., Service], database: ConnectionUrls) -> None:
    service = start(services, database, LEDGER_LOG_FORMAT="console")
    async with connect(service) as client:
        await client.open_account("a", 100)
    assert service.stop() == 0
    line = service.log.read_text().splitlines()[0]
    assert re.search(r"\[info +\] request +account=a .*method=PUT", line), line


async def test_nobody_waits_for_whoever_reads_the_log(database: ConnectionUrls, tmp_path: Path) -> None:
    """A reader that has stopped: more than can wait is logged, and the service answers, counts it, and ends."""
    reader, writer = os.pipe()
    options = ("--database-url", database.service, "--simulated-clock")
    service = start_service(tmp_path, *options, environment={"LEDGER_LOG_LEVEL": "debug"}, stderr=writer)
    os.close(writer)
    try:
        async with connect(service) as client:
            named = {"X-Request-Id": "x" * 255}
            for _ in range(320):  # Of 32 lines of half a kilobyte: 5 MB, and a pipe holds 64 KB.
                answers = await asyncio.gather(*(client.call("GET", "/v1/prices", headers=named) for _ in range(32)))
                assert {answer.status for answer in answers} == {200}
            dropped = (await scrape(client)).value("ledger_log_lines_dropped_total")
        assert 0 < dropped < 5_000
        assert service.stop() == 0
    finally:
        os.close(reader)
        service.kill()


CRASH: Final = """
import structlog
import ledger.serve
from ledger.cli import main

async def crash(*_):
    structlog.get_logger().info("before")
    raise RuntimeError("crashed")

ledger.serve.serve = crash
main(["serve"])
"""


def test_what_was_logged_before_a_crash_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=60, check=False)
    before, _, after = done.stderr.partition("\n")
    assert msgspec.json.decode(before)["event"] == "before"
    assert after.startswith("Traceback")
    assert after.endswith("RuntimeError: crashed\n")
    assert done.returncode == 1
