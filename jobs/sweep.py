"""What a sweep is, and what it works with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import asyncpg

from ledger.engine import Engine
from ledger.queries import Reading

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy

Progress = Callable[[int], None]
"""Called now and then with how many accounts or rows were dealt with since the last call."""


@dataclass(slots=True)
class Context:
    """What one run of a sweep works with.

    `connection` is the run's own; the sweep's lock is kept by another, and a run that loses it is cut off.
    `counts` is what was done so far, which is kept also of a run that fails.
    """

    engine: Engine
    connection: Connection
    primary: Reading
    simulated_clock: bool
    progress: Progress
    counts: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    """How many accounts were passed over, because of a defect of ours that is in the log."""

    async def now(self) -> datetime:
        """Return the instant of the clock that every decision uses (T3)."""
        sql = "select now from ledger.clock" if self.simulated_clock else "select clock_timestamp()"
        now = await self.connection.fetchval(sql)
        assert isinstance(now, datetime)
        return now


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep: its name, how often it runs, what it counts, and what it does.

    `run` works in bounded pages, can be interrupted anywhere, and does nothing twice when it is run again.
    """

    name: str
    every: timedelta
    counts: tuple[str, ...]
    run: Callable[[Context], Awaitable[None]]
