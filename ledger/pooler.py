"""Connections through a pooler in transaction mode, such as PgBouncer, where nothing outlives a transaction.

Between two transactions the pooler may put another session of the server behind a connection. So on these connections
no statement has a name, no setting belongs to the session, and no statement runs outside a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import asyncpg
from sqlalchemy import make_url

PARAMETER: Final = "pooler"
"""What tells of a pooler in the URL of a database: `?pooler=transaction`, the one mode there is to tell of."""

STARTUP: Final = frozenset({"application_name", "timezone"})
"""The settings that a pooler takes from a client and gives to whichever session it puts behind it."""


def without_pooler(url: str) -> tuple[str, bool]:
    """Return a database's URL as drivers take it, and whether a pooler in transaction mode is there."""
    parsed = make_url(url)
    if PARAMETER not in parsed.query:
        return url, False
    return parsed.difference_update_query([PARAMETER]).render_as_string(hide_password=False), True


def transaction_connection(settings: Mapping[str, str]) -> type[asyncpg.Connection]:
    """Return the kind of connection on which every transaction begins by making some settings its own."""
    # A default is for the transactions to come; these settings are for the one that begins with them.
    own = {name.removeprefix("default_"): value for name, value in settings.items() if name not in STARTUP}
    begin = "".join(f" set local {name} = '{value}';" for name, value in own.items())
    return type("TransactionConnection", (_TransactionConnection,), {"begin": begin})


class _TransactionConnection(asyncpg.Connection):
    """A connection of which each transaction stands alone. It is to be opened with `statement_cache_size=0`."""

    begin = ""
    """What is sent with the `BEGIN` of each transaction, in one piece."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109 - asyncpg's
        """Run a statement; one that begins a transaction brings the settings along."""
        if query.startswith("BEGIN"):
            query += self.begin
        elif self._outside():
            async with self.transaction():
                return await super().execute(query, *args, timeout=timeout)
        return await super().execute(query, *args, timeout=timeout)

    async def _execute(self, *args: Any, **options: Any) -> Any:
        """Run a statement with arguments: asyncpg does so here, whichever method was called."""
        run = super()._execute  # type: ignore[misc] # The stubs name only what is public.
        if self._outside():
            async with self.transaction():
                return await run(*args, **options)
        return await run(*args, **options)

    def _outside(self) -> bool:
        """Tell whether a statement would be outside a transaction; one on a closed connection is refused anyway."""
        return not self.is_closed() and not self.is_in_transaction()

    def get_reset_query(self) -> str:
        """Return what undoes what users of the connection left in the session: they can leave nothing."""
        return ""
