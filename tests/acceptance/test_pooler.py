"""The service behind a pooler in transaction mode: two replicas on few sessions do all that they do without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from tests.support.client import Client, connect
from tests.support.pgbouncer import running_pgbouncer
from tests.support.service import Service

SESSIONS = 5
ACCOUNTS = 6
JOBS = 12


@pytest.fixture
def pooled(postgres: EmbeddedPostgres, database: ConnectionUrls, open_dir: Path) -> Iterator[str]:
    with running_pgbouncer(postgres, database.service, open_dir, SESSIONS) as url:
        yield url


async def test_two_replicas_on_five_sessions(pooled: str, services: Callable[..., Service]) -> None:
    async with (
        connect(services("--database-url", pooled)) as one,
        connect(services("--database-url", pooled)) as other,
    ):
        names = [f"acct-{n}" for n in range(ACCOUNTS)]
        await asyncio.gather(*(one.open_account(name, 10_000) for name in names))
        await asyncio.gather(*(_work((one, other), name) for name in names))
        for name in names:
            assert (await other.balance(name))["available"] == 10_000 - JOBS // 2 * 11
            usage = await one.get(f"/v1/accounts/{name}/usage?period={await _month(one)}")
            assert usage.body["totals"]["credits"] == JOBS // 2 * 11
            assert len((await other.get(f"/v1/accounts/{name}/entries?limit=500")).body["data"]) == 1 + 2 * JOBS
        sweeps = (await one.get("/v1/sweeps")).body["data"]
        for sweep in sweeps:
            ran = await other.call("POST", f"/v1/sweeps/{sweep['name']}")
            assert ran.status == 200, ran
        report = (await one.call("POST", "/v1/audit", {"account_id": None})).body
        assert (report["ok"], report["discrepancies"]) == (True, [])


async def _work(replicas: tuple[Client, Client], account_id: str) -> None:
    for n in range(JOBS):
        one, other = replicas if n % 2 else replicas[::-1]
        reserved = await one.reserve(account_id, f"j{n}")
        assert reserved.status == 201, reserved
        closing: tuple[str, dict[str, Any]] = ("release", {})
        if n % 2:
            closing = ("settle", {"lines": [{"operation": "agent_turn", "quantity": 1}], "result": {"n": n}})
        closed = await other.call("POST", f"/v1/accounts/{account_id}/jobs/j{n}/{closing[0]}", closing[1])
        assert closed.status == 200, closed
        assert (await one.get(f"/v1/accounts/{account_id}/jobs/j{n}")).status == 200


async def _month(client: Client) -> str:
    return str((await client.get("/v1/clock")).body["now"])[:7]
