"""How many connections replicas take: no more than the README says, and none that they do not use for long."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from ledger.database import operator_pool
from ledger.embedded import ConnectionUrls
from tests.support.client import connect
from tests.support.service import Service

LIMIT = re.compile(r'^ledger_database_connections_limit{pool="(\w+)"} ([\d.]+)$', re.MULTILINE)
SAID = re.compile(r"a replica opens at most (\d+) connections.* `LEDGER_NO_SWEEPS=1` \((\d+) each\)")
README = Path(__file__).parents[2] / "README.md"


async def test_a_replica_takes_as_many_as_the_readme_says(
    database: ConnectionUrls, services: Callable[..., Service]
) -> None:
    async with connect(services("--database-url", database.service)) as client:
        exposed = (await client.get("/metrics")).body.decode()
    limits = {pool: int(float(limit)) for pool, limit in LIMIT.findall(exposed)}
    said = SAID.search(README.read_text())
    assert said is not None
    assert sum(limits.values()) == int(said[1])
    assert sum(limits.values()) - limits["sweeps"] == int(said[2])


async def test_what_is_not_used_is_given_back(database: ConnectionUrls) -> None:
    async with operator_pool(database.service, 3, idle_seconds_max=0.2) as pool:
        await asyncio.gather(*(pool.execute("select pg_sleep(0.1)") for _ in range(3)))
        assert pool.get_size() > 0
        async with asyncio.timeout(30):
            while pool.get_size():  # noqa: ASYNC110 - time passes of itself
                await asyncio.sleep(0.05)
        assert await pool.fetchval("select 1") == 1
