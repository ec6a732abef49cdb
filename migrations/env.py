"""What alembic runs around the migrations; `ledger.database.migrate` gives it the owner's connection."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, text

MIGRATION_LOCK = 0x6C656467_6D696772
"""The advisory lock that lets one migrator through at a time ("ledgmigr")."""

LOCK_TIMEOUT = "5s"
"""A migration that waits for a table holds up everybody behind it: better it gives up and is run again."""

STATEMENT_TIMEOUT = "10min"
"""No statement runs for ever. A migration that needs longer says so with `set local statement_timeout`."""


def run(connection: Connection) -> None:
    """Runs the migrations, each in a transaction of its own, with nobody else doing the same."""
    connection.execute(text("select set_config('statement_timeout', :limit, false)"), {"limit": STATEMENT_TIMEOUT})
    connection.execute(text("select pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
    connection.execute(text("select set_config('lock_timeout', :limit, false)"), {"limit": LOCK_TIMEOUT})
    connection.commit()
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
