from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

import asyncpg
from alembic.config import Config
from alembic.script import ScriptDirectory

from ledger.embedded import ConnectionUrls, EmbeddedPostgres

ROOT = Path(__file__).parents[2]


async def _migrate(url: str) -> str:
    """Runs `gateway-ledger migrate` as an operator does, and returns what it said."""
    command = Path(sys.executable).with_name("gateway-ledger")
    process = await asyncio.create_subprocess_exec(
        command,
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
