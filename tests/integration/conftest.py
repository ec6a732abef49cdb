"""What integration tests share: a database with a little history in it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import asyncpg
import pytest

from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from tests.support.history import write_history

FILLED = "template_history"


@pytest.fixture(scope="session")
def filled_template(postgres: EmbeddedPostgres, migrated_template: str) -> str:
    """The name of a database with the history of `tests/support/history.py`, which others are copied from."""

    async def make() -> None:
        urls = await postgres.create_database(FILLED, migrated_template)
        await write_history(urls.service)

    asyncio.run(make())
    return FILLED


@pytest.fixture
def filled(postgres: EmbeddedPostgres, filled_template: str) -> Iterator[ConnectionUrls]:
    """A database of one's own with that history."""
    name = f"test_{uuid.uuid4().hex}"
    yield asyncio.run(postgres.create_database(name, filled_template))
    asyncio.run(_execute(postgres.url("postgres", "postgres"), f'drop database "{name}" with (force)'))


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()
