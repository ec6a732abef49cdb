"""Starting the service: what it migrates, what it refuses, and how time goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from pricing.catalog import DEFAULT_FILE
from tests.support.client import connect
from tests.support.service import Service


async def test_an_empty_database_is_migrated_at_the_first_start(
    postgres: EmbeddedPostgres, services: Callable[..., Service]
) -> None:
    await postgres.create_database("quite_empty")
    service = services("--database-url", postgres.url("postgres", "quite_empty"))
    async with connect(service) as client:
        await client.open_account("a", 5)
        assert (await client.balance("a"))["available"] == 5


async def test_a_database_that_is_behind_is_refused(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    owner = await asyncpg.connect(database.owner)
    await owner.execute("drop schema ledger cascade; create schema ledger; create table ledger.accounts ()")
    await owner.execute("delete from alembic_version; insert into alembic_version values ('0000')")
    await owner.close()
    # A version that this program does not know is taken for a newer one; what it lacks then shows.
    with pytest.raises(AssertionError, match="did not start"):
        services("--database-url", database.service)


async def test_a_simulated_clock_stands_still_and_goes_on_where_it_stood(
    database: ConnectionUrls, services: Callable[..., Service]
) -> None:
    options = ("--database-url", database.service, "--simulated-clock")
    first = services(*options)
    async with connect(first) as client:
        clock = (await client.get("/v1/clock")).body
        assert clock["simulated"] is True
        assert (await client.get("/v1/clock")).body == clock
        back = await client.call("PUT", "/v1/clock", {"now": "2020-01-01T00:00:00Z"})
        assert (back.status, back.code) == (400, "validation_error")
        end = await client.call("PUT", "/v1/clock", {"now": "9999-01-01T00:00:00Z"})
        assert (end.status, end.code) == (400, "validation_error")
        moved = await client.call("PUT", "/v1/clock", {"now": "2031-05-01T02:00:00+02:00"})
        assert moved.body == {"now": "2031-05-01T00:00:00Z", "simulated": True}
    first.stop()
    async with connect(services(*options)) as client:
        assert (await client.get("/v1/clock")).body["now"] == "2031-05-01T00:00:00Z"


async def test_the_kind_of_clock_is_the_databases(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """T3: time that stands still, and time that goes on, are never two replicas' of one database."""
    options = ("--database-url", database.service)
    services(*options, "--simulated-clock").stop()
    with pytest.raises(AssertionError, match="a simulated one: start with --simulated-clock"):
        services(*options)
    connection = await asyncpg.connect(database.service)
    await connection.execute("delete from ledger.clock")
    real = services(*options)
    async with connect(real) as client:
        await client.open_account("a", 100)
    real.stop()
    with pytest.raises(AssertionError, match="has gone by real time"):
        services(*options, "--simulated-clock")
    assert await connection.fetchval("select count(*) from ledger.clock") == 0
    await connection.execute("insert into ledger.clock (now) values (clock_timestamp())")
    await connection.close()
    async with connect(services(*options, "--simulated-clock")) as client:
        assert (await client.get("/v1/clock")).body["simulated"] is True


async def test_real_time_cannot_be_moved(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    async with connect(services("--database-url", database.service)) as client:
        assert (await client.get("/v1/clock")).body["simulated"] is False
        moved = await client.call("PUT", "/v1/clock", {"now": "2031-05-01T00:00:00Z"})
        assert (moved.status, moved.code) == (404, "resource_not_found")


async def test_p9_prices_change_by_deploying_a_file(
    database: ConnectionUrls, services: Callable[..., Service], tmp_path: Path
) -> None:
    """P9: a job keeps its version to its last line; a file that drops or alters a used version is refused."""
    old = DEFAULT_FILE.read_text()
    added = old[old.index("[[versions]]") :].replace("2026-09-11", "2027-01-01").replace("credits = 11", "credits = 13")
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(old + "\n" + added)
    options = ("--database-url", database.service, "--simulated-clock", "--catalog", str(catalog))
    service = services(*options)
    async with connect(service) as client:
        await client.open_account("a", 1000)
        await client.call("PUT", "/v1/clock", {"now": "2026-12-31T23:59:59Z"})
        assert (await client.reserve("a", "old", ttl_seconds=60)).body["price_version"] == "2026-09-11"
        await client.call("PUT", "/v1/clock", {"now": "2027-01-01T00:00:00Z"})
        new = (await client.reserve("a", "new")).body
        assert (new["price_version"], new["held_credits"]) == ("2027-01-01", 13)
        assert (await client.settle("a", "old")).body["credits_charged"] == 11
        assert (await client.settle("a", "new")).body["credits_charged"] == 13
        before = await client.get("/v1/prices?at=2026-12-31T23:59:59.999999Z")
        assert before.body["version"] == "2026-09-11"
        assert (await client.get("/v1/prices?at=2026-09-10T00:00:00Z")).status == 404
    service.stop()
    for faulty, complaint in (
        (old, "version 2027-01-01 is gone"),
        (old + added.replace("13", "14"), "version 2027-01-01 was altered"),
        ("nonsense", "catalog.toml"),
    ):
        catalog.write_text(faulty)
        with pytest.raises(AssertionError, match=complaint):
            await asyncio.to_thread(services, *options)
