"""Events for tests that are about where they go: written as the engine writes them, without the rest."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
from yarl import URL

from ledger.events.endpoints import TYPES, Endpoint
from ledger.events.signing import Secret
from tests.support.history import set_clock

NOON = datetime(2026, 11, 3, 12, tzinfo=UTC)
SECRET = "whsec_0123456789abcdefghij"
OLD_SECRET = "whsec_the-one-before-it-is-gone"

ADD_ACCOUNT = "insert into ledger.accounts (account_id, created_at) values ($1, $2) returning account"
ADD_EVENT = """
insert into ledger.events (account, id, once, type, environment, created, data)
values ($1, $2, $2, $3, $4, $5, $6::json)
"""


class Outbox:
    """Writes events of accounts, and moves the clock."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self._accounts: dict[str, int] = {}

    async def tells(
        self,
        account_id: str,
        *ids: str,
        type: str = "job.expired",
        environment: str = "live",
        data: str = "{}",
    ) -> None:
        if account_id not in self._accounts:
            self._accounts[account_id] = await self.pool.fetchval(ADD_ACCOUNT, account_id, NOON)
        for id in ids:
            await self.pool.execute(ADD_EVENT, self._accounts[account_id], id, type, environment, NOON, data)

    async def at(self, now: datetime) -> None:
        await set_clock(self.pool, now)


def endpoint(name: str = "main", url: str = "http://127.0.0.1:1/", **changes: object) -> Endpoint:
    fields: dict[str, object] = {
        "name": name,
        "url": URL(url),
        "secrets": (Secret(SECRET),),
        "environment": "live",
        "types": TYPES,
        "allow_private": True,
        "from_start": False,
        **changes,
    }
    return Endpoint(**fields)  # type: ignore[arg-type] # names of its fields
