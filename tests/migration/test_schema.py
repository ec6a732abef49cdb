from __future__ import annotations

import uuid
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Constraint, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from ledger import schema
from ledger.database import sqlalchemy_url
from ledger.embedded import ConnectionUrls, EmbeddedPostgres

CONSTRAINTS = """
select conrelid::regclass::text, conname, pg_get_constraintdef(oid)
from pg_constraint where connamespace = 'ledger'::regnamespace and contype <> 'n' order by 1, 2
"""
INDEXES = "select tablename, indexname, indexdef from pg_indexes where schemaname = 'ledger' order by 1, 2"
COLUMNS = """
select table_name, ordinal_position, column_name, data_type, is_nullable, column_default, identity_generation
from information_schema.columns where table_schema = 'ledger' order by 1, 2
"""
STORAGE = """
select relname, reloptions from pg_class where relnamespace = 'ledger'::regnamespace and relkind = 'r' order by 1
"""
COMMENTS = """
select c.relname, a.attname, d.description
from pg_description d join pg_class c on c.oid = d.objoid and d.classoid = 'pg_class'::regclass
left join pg_attribute a on a.attrelid = c.oid and a.attnum = d.objsubid and d.objsubid > 0
where c.relnamespace = 'ledger'::regnamespace order by 1, 2
"""


def _differences(connection: Connection) -> list[Any]:
    options = {"include_schemas": True, "compare_type": True, "compare_server_default": True}
    context = MigrationContext.configure(
        connection, opts={**options, "include_name": lambda name, kind, _: kind != "schema" or name == "ledger"}
    )
    return list(compare_metadata(context, schema.metadata))


async def test_alembic_finds_no_difference_to_a_migrated_database(database: ConnectionUrls) -> None:
    engine = create_async_engine(sqlalchemy_url(database.owner), poolclass=NullPool)
    async with engine.connect() as connection:
        assert await connection.run_sync(_differences) == []
    await engine.dispose()


@pytest.mark.parametrize("query", [CONSTRAINTS, INDEXES, COLUMNS, STORAGE, COMMENTS])
async def test_the_tables_are_to_the_letter_what_the_migrations_make(
    database: ConnectionUrls, postgres: EmbeddedPostgres, query: str
) -> None:
    made = await postgres.create_database(f"test_{uuid.uuid4().hex}")
    engine = create_async_engine(sqlalchemy_url(made.owner), poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.execute(text("create schema ledger"))
        await connection.run_sync(schema.metadata.create_all)
    await engine.dispose()
    assert await _rows(made.owner, query) == await _rows(database.owner, query) != []


def test_every_constraint_and_index_has_a_name_of_its_own() -> None:
    for table in schema.metadata.tables.values():
        things: list[Constraint | Any] = [*table.constraints, *table.indexes]
        assert all(isinstance(thing.name, str) and thing.name.startswith(table.name) for thing in things), table
        assert table.primary_key.columns


async def _rows(url: str, query: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()
