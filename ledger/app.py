"""The application: its routes, and what they work with, made when it starts and closed in order when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

import asyncpg
from litestar import Litestar
from litestar.types import ASGIApp

from jobs.runner import Runner
from jobs.scheduler import Sweeps
from jobs.sweeps import SWEEPS
from ledger import metrics, tracing
from ledger.api import accounts, deletion, events, jobs, openapi, operation, prices, reading, sweeps
from ledger.api.admission import Admission
from ledger.api.edge import Edge
from ledger.api.gauges import Gauges
from ledger.api.http import BODY_BYTES_MAX, handle_exception
from ledger.api.services import Services
from ledger.core.account import Account
from ledger.database import batch_pool, health_pool, operator_pool, read_engine, use_of
from ledger.engine import Engine
from ledger.engine.batches import OnCommit
from ledger.engine.engine import FLUSHERS
from ledger.events.endpoints import load_endpoints
from ledger.events.link import connect as connect_redis
from ledger.events.mirror import Mirror
from ledger.events.webhooks import Webhooks
from ledger.queries import Reading
from ledger.settings import Settings, SettingsError
from pricing import catalog
from pricing.catalog import Catalog

SWEEP_CONNECTIONS: Final = 20
"""Two for each sweep, which can all run at once, and some for who waits for one."""


DELIVERY_CONNECTIONS: Final = 4
"""For deliveries, each step of which is one short transaction."""

IDLE_SECONDS_MAX: Final = 60
"""How long a connection of sweeps or deliveries is kept that none of them uses: most of the time nearly all are idle,
and a server gives out only so many to all replicas together."""

STATE_SECONDS_MAX: Final = 10
"""How long one statement for the gauges may take."""


@contextlib.asynccontextmanager
async def running_app(settings: Settings) -> AsyncIterator[ASGIApp]:
    """Run the application for these settings: connected and at work while the context is open.

    Raise `InvalidCatalog` for a catalog that cannot be used, `SettingsError` for a clock of the other kind than the
    database's, and what asyncpg raises when the database is away.
    """
    async with running_services(settings) as services:
        yield make_app(services, settings)


def make_app(services: Services, settings: Settings) -> ASGIApp:
    """Return the application: edge and admission around the hot routes, and those around Litestar's."""
    app = Litestar(
        route_handlers=[
            *accounts.ROUTES,
            *deletion.ROUTES,
            *reading.ROUTES,
            *prices.ROUTES,
            *events.ROUTES,
            *sweeps.ROUTES,
            *operation.ROUTES,
            *openapi.ROUTES,
        ],
        exception_handlers={Exception: handle_exception},
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=None,
        logging_config=None,
    )
    app.state.services = services
    admission = Admission(
        jobs.JobRoutes(app),
        requests=settings.requests_max,
        body_bytes=settings.body_bytes,
        doc_base=settings.doc_base_url,
    )
    return Edge(admission, log_requests=settings.log_requests)


@contextlib.asynccontextmanager
async def running_services(settings: Settings, *, tends_mirror: bool = True) -> AsyncIterator[Services]:
    """Connect to the database, check the catalog against what was used, and run the engine for as long as needed.

    `tends_mirror`: whether Redis is also shown what other processes did, which takes a walk through all accounts.
    """
    url = settings.database_url
    assert url is not None, "serve fills the database in"
    prices_in_use = catalog.load(settings.catalog or catalog.DEFAULT_FILE)
    endpoints = load_endpoints(settings.webhooks, os.environ) if settings.webhooks else ()
    metrics.BUILD.labels(version("gateway-ledger")).set(1)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, tracing.start(version("gateway-ledger"), os.environ))
        pool = await stack.enter_async_context(operator_pool(url, settings.pool_size))
        audits = await stack.enter_async_context(operator_pool(url, 1))
        health = await stack.enter_async_context(health_pool(url, operation.READY_SECONDS_MAX))
        batches = await stack.enter_async_context(batch_pool(url, FLUSHERS))
        primary = await stack.enter_async_context(_reading(url, settings))
        reading = primary
        if settings.read_database_url is not None:
            reading = await stack.enter_async_context(_reading(settings.read_database_url, settings))
        await check_used_prices(pool, prices_in_use)
        await set_clock(pool, simulated=settings.simulated_clock)
        delivering = await stack.enter_async_context(_seldom_used(url, DELIVERY_CONNECTIONS))
        webhooks = Webhooks(delivering, endpoints, simulated_clock=settings.simulated_clock)
        on_commit: OnCommit = webhooks.committed
        if settings.redis_url is not None:
            on_commit = _both(on_commit, await stack.enter_async_context(_mirror(settings, primary, tends_mirror)))
        engine = Engine(
            batches,
            prices_in_use,
            simulated_clock=settings.simulated_clock,
            thresholds=settings.thresholds,
            queue_max=settings.queue_size,
            queue_bytes=settings.queue_bytes,
            batch_max=settings.batch_size,
            on_commit=on_commit,
        )
        await engine.start()
        stack.push_async_callback(engine.stop)
        stack.push_async_callback(webhooks.stop)
        await webhooks.start()
        sweeping = await stack.enter_async_context(_seldom_used(url, SWEEP_CONNECTIONS))
        running = Sweeps(Runner(engine, sweeping, primary, simulated_clock=settings.simulated_clock))
        if not (settings.no_sweeps or settings.simulated_clock):
            await running.start()
            stack.push_async_callback(running.stop)
        figures = await stack.enter_async_context(health_pool(url, STATE_SECONDS_MAX))
        pools = {
            "batches": batches,
            "operator": pool,
            "audits": audits,
            "health": health,
            "sweeps": sweeping,
            "deliveries": delivering,
        }
        gauges = Gauges(
            figures,
            simulated_clock=settings.simulated_clock,
            sweeps=tuple(SWEEPS),
            endpoints=[endpoint.name for endpoint in endpoints],
            waiting=lambda: engine.waiting,
            pools={
                **{name: partial(use_of, each) for name, each in {**pools, "figures": figures}.items()},
                "primary": primary.use,
                **({"reading": reading.use} if reading is not primary else {}),
            },
        )
        stack.push_async_callback(gauges.stop)
        for sweep in SWEEPS.values():
            metrics.SWEEP_INTERVAL.labels(sweep.name).set(sweep.every.total_seconds())
        yield Services(settings, prices_in_use, engine, pool, audits, health, reading, primary, running, gauges)


@contextlib.asynccontextmanager
async def _mirror(settings: Settings, reading: Reading, tends: bool) -> AsyncIterator[OnCommit]:
    """Publish in Redis for as long as the context is open, and give what is to be told of commits."""
    assert settings.redis_url is not None
    redis = connect_redis(settings.redis_url)
    mirror = Mirror(
        redis, reading, prefix=settings.redis_prefix, stream_length=settings.redis_stream_length, tends=tends
    )
    await mirror.start()
    try:
        yield mirror.committed
    finally:
        await mirror.stop()


def _both(first: OnCommit, second: OnCommit) -> OnCommit:
    def tell(accounts: Sequence[Account]) -> None:
        first(accounts)
        second(accounts)

    return tell


def _seldom_used(url: str, size: int) -> asyncpg.Pool:
    return operator_pool(url, size, idle_seconds_max=IDLE_SECONDS_MAX)


@contextlib.asynccontextmanager
async def _reading(url: str, settings: Settings) -> AsyncIterator[Reading]:
    engine = read_engine(url, settings.read_pool_size)
    try:
        yield Reading(engine, simulated_clock=settings.simulated_clock)
    finally:
        await engine.dispose()


async def check_used_prices(pool: asyncpg.Pool, prices_in_use: Catalog) -> None:
    """Raise `InvalidCatalog` where the file drops or alters a version that reservations have used (P9)."""
    for row in await pool.fetch("select version, digest from ledger.price_versions order by version"):
        name = row["version"]
        if name not in prices_in_use:
            raise catalog.InvalidCatalog(f"version {name} is gone, and jobs were reserved under it")
        if prices_in_use.version(name).digest != row["digest"]:
            raise catalog.InvalidCatalog(f"version {name} was altered, and jobs were reserved under it")


async def set_clock(pool: asyncpg.Pool, *, simulated: bool) -> None:
    """Start a simulated clock at the real time, or go on where it stood, but never before what was decided last.

    Raise `SettingsError` where the database goes by the other kind of time: all replicas share one clock (T3).
    """
    state = await pool.fetchrow(
        "select exists (select from ledger.clock) as is_simulated, exists (select from ledger.accounts) as is_used"
    )
    assert state is not None
    if state["is_simulated"] and not simulated:
        raise SettingsError(
            "LEDGER_SIMULATED_CLOCK: the clock of this database is a simulated one: start with --simulated-clock"
            " (real time begins when the table ledger.clock is emptied)"
        )
    if simulated and state["is_used"] and not state["is_simulated"]:
        raise SettingsError(
            "LEDGER_SIMULATED_CLOCK: this database has gone by real time: start without --simulated-clock"
            " (a copy of it can be given a clock: insert into ledger.clock (now) values (clock_timestamp()))"
        )
    if simulated:
        await pool.execute(
            "insert into ledger.clock as c (now) values (clock_timestamp()) on conflict (one) do update"
            " set now = greatest(c.now, (select max(at) from ledger.balances))"
        )
