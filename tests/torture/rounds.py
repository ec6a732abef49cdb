"""One round: services on a PostgreSQL, a load, faults, quiet, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from tests.support.client import Client
from tests.torture.faults import Faults
from tests.torture.load import ATTEMPT_SECONDS_MAX, Load
from tests.torture.plan import KILLS, Fault
from tests.torture.stage import Stage
from tests.torture.verify import audit, verify

READ_SECONDS_MAX: Final = 60.0


@dataclass
class Report:
    """What rounds came to."""

    hits: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    commands: int = 0
    repeated: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(count for name, count in self.hits.items() if name in KILLS)

    def add(self, other: Report) -> None:
        """Take over what another round came to."""
        self.hits += other.hits
        self.unanswered += other.unanswered
        self.refusals += other.refusals
        self.commands += other.commands
        self.repeated += other.repeated
        self.differences += other.differences


async def play(stage: Stage, plan: Iterator[Fault], count: int, seed: str, prefix: str, callers: int) -> Report:
    """Do so many faults of a plan to a stage under load, and verify everything when it is quiet again."""
    faults = Faults(stage)
    timeout = aiohttp.ClientTimeout(total=ATTEMPT_SECONDS_MAX)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        session._retry_connection = False  # Else it sends a PUT again by itself, and nobody knows it was asked twice.
        load = Load(stage, session, seed, prefix, callers)
        await load.open_accounts()
        async with _running(load):
            for _ in range(count):
                await faults.do(next(plan))
    await stage.calm_down()
    async with _reader(stage) as client:
        differences = await verify(load, client, seed)
    return Report(
        hits=faults.hits,
        unanswered=load.unanswered,
        refusals=Counter(command.code for command in load.commands if command.code),
        commands=len(load.commands),
        repeated=sum(command.attempts > 1 for command in load.commands),
        differences=differences,
    )


async def audit_all(stage: Stage) -> list[str]:
    """Audit every account that there is."""
    async with _reader(stage) as client:
        return await audit(client)


@contextlib.asynccontextmanager
async def _running(load: Load) -> AsyncIterator[None]:
    running = asyncio.create_task(load.run())
    try:
        yield
    finally:
        load.finish()
        await running


@contextlib.asynccontextmanager
async def _reader(stage: Stage) -> AsyncIterator[Client]:
    """Open a client of one service that answers: the last one, which may be another than the one that wrote."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=READ_SECONDS_MAX)) as session:
        client = Client(session, stage.replicas[-1])
        async with asyncio.timeout(READ_SECONDS_MAX):
            while (await client.get("/health/ready")).status != 200:  # noqa: ASYNC110 - another process gets ready
                await asyncio.sleep(0.1)
        yield client
