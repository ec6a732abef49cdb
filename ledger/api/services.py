"""What the routes work with, made once when the service starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import asyncpg
from litestar.types import Scope

from ledger.engine import Engine
from ledger.queries import Reading
from ledger.settings import Settings
from pricing.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Services:
    """What a service has.

    `engine` carries commands out; `pool` is for small writes of operators; `reading` is for reads, and may lag behind
    on a replica; `primary` reads what was just written.
    """

    settings: Settings
    catalog: Catalog
    engine: Engine
    pool: asyncpg.Pool
    reading: Reading
    primary: Reading


def services_of(scope: Scope) -> Services:
    """Return the services of the application that serves a request."""
    found = scope["litestar_app"].state.services
    assert isinstance(found, Services)
    return found


async def database_now(services: Services) -> datetime:
    """Return the instant of the clock that every decision uses (T3)."""
    sql = "select now from ledger.clock" if services.settings.simulated_clock else "select clock_timestamp()"
    now = await services.pool.fetchval(sql)
    assert isinstance(now, datetime)
    return now
