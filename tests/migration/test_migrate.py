from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from ledger.database import sqlalchemy_url
from ledger.embedded import ConnectionUrls, EmbeddedPostgres

ROOT = Path(__file__).parents[2]


async def _migrate(url: str) -> str:
    """Runs `gateway-ledger migrate` as an operator does, and returns what it said."""
    program = Path(sys.executable).with_name("gateway-ledger")
    process = await asyncio.create_subprocess_exec(
        program,
        "migrate",
        env={"LEDGER_OWNER_DATABASE_URL": url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def _version(urls: ConnectionUrls) -> str | None:
    connection = await asyncpg.connect(urls.owner)
    try:
        version: str | None = await connection.fetchval("select version_num from alembic_version")
    finally:
        await connection.close()
    return version


async def test_an_empty_database_comes_to_the_newest_version_also_from_two_places_at_once(
    postgres: EmbeddedPostgres,
) -> None:
    urls = await postgres.create_database(f"test_{uuid.uuid4().hex}")
    said = await asyncio.gather(_migrate(urls.owner), _migrate(urls.owner))
    assert set(said) == {"The database is up to date.\n"}
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    assert await _version(urls) == ScriptDirectory.from_config(config).get_current_head()
    await _migrate(urls.owner)


def _step(connection: Connection, to: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    config.attributes["connection"] = connection
    if to == "head":
        command.upgrade(config, to)
    else:
        command.downgrade(config, to)


async def test_views_can_be_taken_away_and_put_back(database: ConnectionUrls) -> None:
    engine = create_async_engine(sqlalchemy_url(database.owner), poolclass=NullPool)
    for to, there in (("0002", False), ("head", True)):
        async with engine.connect() as connection:
            await connection.run_sync(_step, to)
        reader = await asyncpg.connect(database.reader)
        assert (await reader.fetchval("select to_regclass('reporting.accounts')") is not None) == there
        if there:
            assert await reader.fetchval("select count(*) from reporting.accounts") == 0
        await reader.close()
    await engine.dispose()
