"""The product's engine in process: so many callers at once, each reserving and settling again and again."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ledger.core.commands import Command, Line, Refused, Reserve, Settle
from ledger.database import batch_pool
from ledger.engine import Engine
from ledger.engine.engine import FLUSHERS
from pricing.catalog import load
from tests.benchmarks.figures import percentile
from tests.benchmarks.worker import run_worker, serve_task

LINES: Final = (Line("agent_turn", 1),)
WARM_UP_SECONDS: Final = 1.0


class RefusedError(Exception):
    """A command was refused that should have been carried out."""


class EngineTask(msgspec.Struct):
    """What to run: the service's database, the accounts that exist, and a prefix that makes the jobs new."""

    url: str
    accounts: list[str]
    prefix: str
    seconds: float
    callers: int = 64


class EngineReport(msgspec.Struct):
    """What it came to; a command is a reservation or a settlement, from submission to outcome."""

    pairs_per_second: float
    ms_p50: float
    ms_p99: float


async def measure(task: EngineTask) -> EngineReport:
    """Run the engine in a process of its own, on the loop that `serve` uses."""
    return await run_worker("tests.benchmarks.engine", task, EngineReport)


@dataclass
class _Run:
    """A run in progress: commands that end within the window count."""

    engine: Engine
    accounts: Sequence[str]
    names: Iterator[str]
    start: float
    end: float
    taken_ms: list[float]
    pairs: int = 0

    async def call_again_and_again(self) -> None:
        while time.perf_counter() < self.end:
            account_id, job_id = random.choice(self.accounts), next(self.names)  # noqa: S311 - no secret
            await self._timed(Reserve(account_id=account_id, job_id=job_id, environment="live", lines=LINES))
            await self._timed(Settle(account_id=account_id, job_id=job_id, lines=LINES))
            self.pairs += self.start <= time.perf_counter() < self.end

    async def _timed(self, command: Command) -> None:
        begun = time.perf_counter()
        outcome = await self.engine.execute(command)
        now = time.perf_counter()
        if isinstance(outcome, Refused):
            raise RefusedError(f"{command} was refused: {outcome}")
        if self.start <= now < self.end:
            self.taken_ms.append((now - begun) * 1_000)


async def _work(task: EngineTask) -> EngineReport:
    async with batch_pool(task.url, FLUSHERS) as pool:
        engine = Engine(pool, load())
        await engine.start()
        try:
            start = time.perf_counter() + WARM_UP_SECONDS
            names = (f"{task.prefix}-{number}" for number in itertools.count())
            run = _Run(engine, task.accounts, names, start, start + task.seconds, [])
            async with asyncio.TaskGroup() as callers:
                for _ in range(task.callers):
                    callers.create_task(run.call_again_and_again())
        finally:
            await engine.stop()
    return EngineReport(run.pairs / task.seconds, percentile(run.taken_ms, 50), percentile(run.taken_ms, 99))


if __name__ == "__main__":
    serve_task(EngineTask, _work)
