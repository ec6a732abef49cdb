"""What the routes work with, made once when the service starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import asyncpg
import msgspec
from litestar.types import Scope

from ledger.api.gauges import Gauges
from ledger.engine import Engine
from ledger.queries import Reading
from ledger.settings import Settings
from pricing.catalog import Catalog

CLOCK_SECONDS_MAX: Final = 5


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a sweep that came to its end, and what it did."""

    name: str
    started_at: datetime
    finished_at: datetime
    counts: dict[str, int]


class SweepView(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep: its last run, on whichever replica, and when this one runs it next."""

    name: str
    every_seconds: int
    started_at: datetime | None
    finished_at: datetime | None
    counts: dict[str, int] | None
    error: str | None
    next_run_at: datetime | None


class SweepsBusy(Exception):
    """A run by hand has waited long enough for another run of the same sweep to end."""


class Sweeps(Protocol):
    """The sweeps of the service (`jobs` has them, which stands above this)."""

    async def run(self, name: str, progress: Callable[[int], None] | None = None) -> SweepRun | None:
        """Run a sweep now, telling how far it is; None where there is none of that name. Raise `SweepsBusy`."""
        ...

    async def show(self) -> Sequence[SweepView]:
        """Return every sweep, with its last run and its next."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """What a service has.

    `engine` carries commands out; `pool` is for what operators ask for, `audits` (one at a time) and `health` stand
    apart from it so that neither waits for the other; `reading` is for reads, and may lag behind on a replica;
    `primary` reads what was just written; `sweeps` run when asked; `gauges` know what `/metrics` shows of the database.
    """

    settings: Settings
    catalog: Catalog
    engine: Engine
    pool: asyncpg.Pool
    audits: asyncpg.Pool
    health: asyncpg.Pool
    reading: Reading
    primary: Reading
    sweeps: Sweeps
    gauges: Gauges


def services_of(scope: Scope) -> Services:
    """Return the services of the application that serves a request."""
    found = scope["litestar_app"].state.services
    assert isinstance(found, Services)
    return found


async def database_now(services: Services) -> datetime:
    """Return the instant of the clock that every decision uses (T3)."""
    sql = "select now from ledger.clock" if services.settings.simulated_clock else "select clock_timestamp()"
    async with services.pool.acquire(timeout=CLOCK_SECONDS_MAX) as connection:
        now = await connection.fetchval(sql)
    assert isinstance(now, datetime)
    return now
