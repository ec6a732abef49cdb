"""The service's role has these privileges and no others: whoever takes its place can do so much, and no more (A1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import asyncpg
import pytest

from ledger.embedded import ConnectionUrls

ALL: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})
ADD: Final = frozenset({"SELECT", "INSERT"})

TABLES: Final[dict[str, frozenset[str]]] = {
    # The journal, and which prices it was made with: added to, never changed.
    "entries": ADD,
    "postings": ADD,
    "price_versions": ADD,
    # The record of deliveries is added to as well; of a delivery, how far it got may be changed.
    "deliveries": ADD,
    "delivery_attempts": ADD,
    "endpoints": ADD | {"UPDATE"},
    # What follows from the journal, and what customers and operators put.
    "accounts": ALL,
    "balances": ALL,
    "billing_cycles": ALL,
    "clock": ALL,
    "events": ALL,
    "grants": ALL,
    "holds": ALL,
    "job_results": ALL,
    "jobs": ALL,
    "periods": ALL,
    "quotas": ALL,
    "refunds": ALL,
    "statements": ALL,
    "sweeps": ALL,
    "usage_records": ALL,
    "usage_totals": ALL,
}
COLUMNS: Final = {
    ("deliveries", name, "UPDATE")
    for name in ("status", "attempts", "next_attempt_at", "claimed_until", "status_code", "error", "finished_at")
}
"""What may be changed of tables that may not be changed as a whole."""

KINDS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")


@pytest.fixture
async def owner(database: ConnectionUrls) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.owner)
    yield connection
    await connection.close()


async def test_of_tables_and_views(owner: asyncpg.Connection) -> None:
    rows = await owner.fetch(
        "select n.nspname, c.relname, p.kind from pg_class c join pg_namespace n on n.oid = c.relnamespace,"
        " unnest($1::text[]) p (kind) where n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')"
        " and c.relkind in ('r', 'p', 'v', 'm', 'f') and has_table_privilege('ledger_service', c.oid, p.kind)",
        KINDS,
    )
    found: dict[str, set[str]] = {}
    for schema, table, kind in rows:
        found.setdefault(table if schema == "ledger" else f"{schema}.{table}", set()).add(kind)
    assert found.pop("public.alembic_version") == {"SELECT"}  # which version the tables are
    assert found == TABLES


async def test_of_columns(owner: asyncpg.Connection) -> None:
    rows = await owner.fetch(
        "select c.relname, a.attname, p.kind from pg_class c join pg_attribute a on a.attrelid = c.oid,"
        " unnest(array['INSERT', 'UPDATE', 'REFERENCES']) p (kind)"
        " where c.relnamespace = 'ledger'::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped"
        " and has_column_privilege('ledger_service', c.oid, a.attnum, p.kind)"
        " and not has_table_privilege('ledger_service', c.oid, p.kind)"
    )
    assert {tuple(row) for row in rows} == COLUMNS


async def test_of_everything_else(owner: asyncpg.Connection) -> None:
    """It creates nothing, anywhere; owns nothing; is a member of no role; and no function runs with other rights."""
    asked = {
        "schemas": "select nspname::text from pg_namespace where has_schema_privilege('ledger_service', oid, 'CREATE')",
        "database": (
            "select p.kind from unnest(array['CREATE', 'TEMPORARY']) p (kind)"
            " where has_database_privilege('ledger_service', current_database(), p.kind)"
        ),
        "owned": "select count(*)::text from pg_shdepend where deptype = 'o' and refobjid = 'ledger_service'::regrole"
        " and dbid = (select oid from pg_database where datname = current_database()) having count(*) > 0",
        "roles": (
            "select r.rolname::text from pg_roles r where r.rolname <> 'ledger_service'"
            " and pg_has_role('ledger_service', r.oid, 'MEMBER')"
        ),
        "functions": (
            "select oid::regprocedure::text from pg_proc where prosecdef"
            " and pronamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)"
        ),
        "sequences": (
            "select relname::text from pg_class where"
            " case when relkind = 'S' then has_sequence_privilege('ledger_service', oid, 'UPDATE') end"
        ),
    }
    found = {name: [row[0] for row in await owner.fetch(sql)] for name, sql in asked.items()}
    assert found == {name: [] for name in asked}
