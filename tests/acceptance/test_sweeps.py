"""Sweeps, events, deletions as operators meet them: over HTTP, on the command line, by the clock (contract S, R7)."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from jobs.sweeps import SWEEPS
from ledger.core.commands import PolicyChange, PutAccount, PutGrant
from ledger.embedded import ConnectionUrls
from ledger.tokens import Role
from tests.support.client import Client, connect
from tests.support.history import set_clock
from tests.support.service import Service
from tests.support.sweeping import carry_out, services_on

PROGRAM = str(Path(sys.executable).with_name("gateway-ledger"))
MANY = 2_000
README = Path(__file__).parents[2] / "README.md"


def sweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `gateway-ledger sweep`."""
    return subprocess.run(
        [PROGRAM, "sweep", *arguments], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}
    )


async def move(client: Client, now: str) -> None:
    moved = await client.call("PUT", "/v1/clock", {"now": now})
    assert moved.status == 200, moved


async def run(client: Client, name: str) -> dict[str, int]:
    answer = await client.call("POST", f"/v1/sweeps/{name}")
    assert answer.status == 200, answer
    counts: dict[str, int] = answer.body["counts"]
    return counts


# -- over HTTP -----------------------------------------------------------------------------------------------------


async def test_sweeps_are_listed_and_run_by_hand(server: Service) -> None:
    async with connect(server) as client:
        listed = (await client.get("/v1/sweeps")).body["data"]
        assert [view["name"] for view in listed] == list(SWEEPS)
        assert all(view["started_at"] is view["counts"] is view["next_run_at"] is None for view in listed)
        await client.open_account("a", 1_000)
        await client.reserve("a", "j", ttl_seconds=60)
        now = datetime.fromisoformat((await client.get("/v1/clock")).body["now"])
        await move(client, now.replace(year=now.year + 1).isoformat())
        answer = await client.call("POST", "/v1/sweeps/expire_holds")
        assert answer.body["counts"] == {"accounts": 1, "holds_expired": 1, "credits_returned": 11}
        (view,) = [v for v in (await client.get("/v1/sweeps")).body["data"] if v["name"] == "expire_holds"]
        assert {name: view[name] for name in answer.body} == answer.body
        assert (view["every_seconds"], view["error"]) == (30, None)
        assert (await client.call("POST", "/v1/sweeps/dream")).code == "resource_not_found"
    async with connect(server, Role.GATEWAY) as gateway:
        assert (await gateway.get("/v1/sweeps")).status == 200
        assert (await gateway.call("POST", "/v1/sweeps/audit")).code == "permission_denied"


async def test_metrics_tell_of_sweeps(server: Service) -> None:
    async with connect(server) as client:
        await run(client, "audit")
        text = (await client.get("/metrics")).body.decode()
    assert 'ledger_sweep_runs_total{outcome="done",sweep="audit"} 1.0' in text
    assert 'ledger_sweep_last_success_timestamp_seconds{sweep="audit"}' in text
    assert 'ledger_sweep_last_duration_seconds{sweep="audit"}' in text
    assert "ledger_audit_discrepancies 0.0" in text


async def test_events_are_read_in_order_and_gone_on_from(server: Service) -> None:
    async with connect(server) as client:
        start = (await client.get("/v1/events")).body
        assert start["data"] == []
        for name in ("a", "b"):
            await client.open_account(name, 100)
            await client.reserve(name, "j", ttl_seconds=1, metadata={"loan_id": name})
            await client.reserve(name, "k", ttl_seconds=2)
        now = datetime.fromisoformat((await client.get("/v1/clock")).body["now"])
        await move(client, now.replace(year=now.year + 1).isoformat())
        await run(client, "expire_holds")
        seen, after = [], start["next_cursor"]
        while (page := (await client.get(f"/v1/events?limit=3&after={after}")).body)["data"]:
            seen += page["data"]
            after = page["next_cursor"]
        assert len({event["id"] for event in seen}) == len(seen) == 4
        mine = (await client.get("/v1/events?account_id=a")).body["data"]
        assert [event["data"]["job_id"] for event in mine] == ["j", "k"]
        assert set(mine[0]) == {"id", "type", "created", "environment", "account_id", "data"}
        assert mine[0]["data"] == {
            "job_id": "j",
            "operation": "agent_turn",
            "status": "expired",
            "credits_charged": 0,
            "error_code": "job_not_completed",
            "metadata": {"loan_id": "a"},
        }
        assert (await client.get("/v1/events?account_id=nobody")).body["data"] == []
        assert (await client.get(f"/v1/events?after={after}x")).code == "validation_error"


async def test_an_account_is_deleted_after_its_grace(server: Service) -> None:
    """R7: asked for, cancelled, revived, carried out; and the id is free again."""
    path = "/v1/accounts/leaving/deletion"
    async with connect(server) as client:
        await move(client, "2030-01-10T12:00:00Z")
        await client.open_account("leaving", 1_000)
        asked = await client.call("POST", path)
        assert asked.status == 202
        code = asked.body["confirmation_code"]
        assert asked.body == {
            "confirmation_code": code,
            "status": "pending",
            "requested_at": "2030-01-10T12:00:00Z",
            "executes_at": "2030-02-09T12:00:00Z",
        }
        await move(client, "2030-01-20T12:00:00Z")
        assert (await client.call("POST", path)).body == asked.body
        cancelled = await client.call("DELETE", path)
        assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
        revived = (await client.call("POST", path)).body
        assert (revived["confirmation_code"], revived["executes_at"]) == (code, "2030-02-19T12:00:00Z")
        await move(client, "2030-02-19T11:59:59Z")
        assert (await run(client, "delete_accounts"))["accounts_deleted"] == 0
        await client.reserve("leaving", "open", ttl_seconds=86_400)
        await move(client, "2030-02-19T12:00:00Z")
        counts = await run(client, "delete_accounts")
        assert (counts["accounts_deleted"], counts["holds_ended"], counts["months_closed"]) == (1, 1, 1)
        assert (await client.get(f"/v1/deletions/{code}")).body["status"] == "executed"
        for gone in ("", "/balance", "/jobs/open", "/entries"):
            assert (await client.get(f"/v1/accounts/leaving{gone}")).code == "resource_not_found"
        assert (await client.call("DELETE", path)).code == "resource_not_found"
        await client.assert_audit_clean()
        await client.open_account("leaving", 50)
        account = (await client.get("/v1/accounts/leaving")).body
        assert (account["deletion"], account["created_at"]) == (None, "2030-02-19T12:00:00Z")
        assert (await client.reserve("leaving", "open")).status == 201
        await client.assert_audit_clean()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's commands need curl")
async def test_the_month_of_the_readme_is_as_it_says(server: Service) -> None:
    text = README.read_text()
    commands = text[text.index("## A month in five commands") :].split("```sh\n")[1].split("```")[0]
    script = re.sub(r"^\. \S+; L=\S+;", f"set -e; L={server.url};", commands)
    assert script != commands
    environment = {"PATH": os.environ["PATH"], "LEDGER_ADMIN_TOKEN": server.tokens[Role.ADMIN]}
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", script.replace("curl ", "curl -sSf ")], env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode()
    for expected in (
        '"available":0,"held":0,',  # what came back of the lost call's hold has ended with the plan
        '"months_closed":1,',
        '"status":"closed","opening_balance":0,"granted":2000,"adjusted":0,"charged":1000,',
        '"expired":1000,"closing_balance":0,',
        '"type":"job.expired"',
        '"type":"period.closed"',
        '"ok":true',
    ):
        assert expected in said, said


# -- by the clock, and in other processes --------------------------------------------------------------------------


async def test_serve_runs_sweeps_by_the_clock(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """A hold that is over is entered as expired although nobody asks for anything; another replica is told not to."""
    idle = services("--database-url", database.service, "--no-sweeps")
    async with connect(idle) as client:
        await client.open_account("a", 100)
        await client.reserve("a", "j", ttl_seconds=1)
        assert all(view["next_run_at"] is None for view in (await client.get("/v1/sweeps")).body["data"])
    await asyncio.sleep(1)
    sweeper = services("--database-url", database.service)
    connection = await asyncpg.connect(database.owner)
    deadline = time.monotonic() + 20
    while await connection.fetchval("select count(*) from ledger.events where type = 'job.expired'") == 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert await connection.fetchval("select count(*) from ledger.holds") == 0
    while await connection.fetchval("select count(*) from ledger.sweeps where finished_at is not null") < len(SWEEPS):
        assert time.monotonic() < deadline + 20
        await asyncio.sleep(0.1)
    assert await connection.fetchval("select count(*) from ledger.sweeps where error is not null") == 0
    await connection.close()
    async with connect(sweeper) as client:
        listed = (await client.get("/v1/sweeps")).body["data"]
        assert all(datetime.fromisoformat(view["next_run_at"]) > datetime.now(UTC) for view in listed)
        await client.assert_audit_clean()
    assert sweeper.stop() == 0


def test_the_command_line_says_what_is_wrong(database: ConnectionUrls) -> None:
    for arguments, code, message in (
        (("expire_holds",), 2, "give --database-url"),
        (("dream", "--database-url", database.service), 2, "there is no sweep dream; there are expire_holds, "),
        (("audit", "--database-url", "postgresql://u@/d?host=/nonexistent"), 1, "the database cannot be used"),
    ):
        done = sweep(*arguments)
        assert (done.returncode, message in done.stderr) == (code, True), done


async def test_a_process_of_its_own_sweeps_by_the_clock_of_the_services(
    server: Service, database: ConnectionUrls
) -> None:
    async with connect(server) as client:
        await client.open_account("a", 100)
        await client.reserve("a", "j", ttl_seconds=60)
        await move(client, "2031-01-01T00:00:00Z")
        done = sweep("expire_holds", "--database-url", database.service)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "expire_holds: 1 accounts, 1 holds expired, 11 credits returned (0.0 s)\n"
        assert (await client.get("/v1/clock")).body == {"now": "2031-01-01T00:00:00Z", "simulated": True}
        (view,) = [v for v in (await client.get("/v1/sweeps")).body["data"] if v["name"] == "expire_holds"]
        assert view["counts"]["holds_expired"] == 1


@pytest.mark.parametrize("signal", ["kill", "terminate"])
async def test_killed_in_the_middle_and_run_again(database: ConnectionUrls, signal: str) -> None:
    """Every month is closed once, whenever the process was killed."""
    async with services_on(database.service) as services:
        await set_clock(services.pool, datetime(2026, 11, 15, tzinfo=UTC))
        names = [f"many-{n}" for n in range(MANY)]
        opened = (PutAccount(account_id=name, change=PolicyChange(module_enabled=True)) for name in names)
        await asyncio.gather(*(carry_out(services, put) for put in opened))
        plans = (PutGrant(account_id=name, grant_id="plan", kind="plan", credits=1_000) for name in names)
        await asyncio.gather(*(carry_out(services, plan) for plan in plans))
        await set_clock(services.pool, datetime(2026, 12, 2, tzinfo=UTC))
    connection = await asyncpg.connect(database.owner)
    closed = "select count(*) from ledger.statements"
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *("sweep", "close_period", "--database-url", database.service),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while await connection.fetchval(closed) < MANY // 10:
        assert process.returncode is None
        await asyncio.sleep(0.002)
    getattr(process, signal)()
    await process.wait()
    before = await connection.fetchval(closed)
    assert before < MANY
    done = await asyncio.to_thread(sweep, "close_period", "--database-url", database.service)
    assert f"{MANY - before:,} months closed" in done.stdout, done
    told = "select count(*), count(distinct account) from ledger.events where type = 'period.closed'"
    assert [tuple(row) for row in await connection.fetch(told)] == [(MANY, MANY)]
    assert await connection.fetchval(closed) == MANY
    await connection.close()
    done = await asyncio.to_thread(sweep, "audit", "--database-url", database.service)
    assert "0 discrepancies" in done.stdout, done
