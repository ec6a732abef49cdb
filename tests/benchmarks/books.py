"""The ledger that load runs on: its accounts, opened beforehand, and its audit afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import asyncpg

from ledger.audit import audit
from ledger.core.commands import (
    Command,
    Environment,
    PatchAccount,
    PolicyChange,
    PutAccount,
    PutGrant,
    QuotaChange,
    Refused,
)
from ledger.database import batch_pool
from ledger.engine import Engine
from ledger.engine.engine import FLUSHERS
from pricing.catalog import load
from tests.benchmarks.server import BenchmarkError

CREDITS: Final = 10**12
WIDE_OPEN: Final[dict[Environment, QuotaChange | None]] = {
    "live": QuotaChange(max_requests=1_000_000, max_calls=1_000_000)
}
BOTH_WIDE_OPEN: Final[dict[Environment, QuotaChange | None]] = {**WIDE_OPEN, "test": WIDE_OPEN["live"]}


def names(prefix: str, count: int) -> list[str]:
    """Return the names of so many accounts."""
    return [f"{prefix}-{number}" for number in range(1, count + 1)]


async def open_accounts(
    service_url: str,
    account_ids: Sequence[str],
    quotas: dict[Environment, QuotaChange | None] = WIDE_OPEN,
) -> None:
    """Open accounts with credits and ceilings that no load reaches."""
    change = PolicyChange(module_enabled=True, quotas=quotas)
    await _carry_out(service_url, [PutAccount(account_id=account_id, change=change) for account_id in account_ids])
    grant = partial(PutGrant, grant_id="opening", kind="purchase", credits=CREDITS)
    await _carry_out(service_url, [grant(account_id=account_id) for account_id in account_ids])


async def widen_accounts(service_url: str, account_ids: Sequence[str]) -> None:
    """Give accounts ceilings that no load reaches."""
    change = PolicyChange(quotas=WIDE_OPEN)
    await _carry_out(service_url, [PatchAccount(account_id=account_id, change=change) for account_id in account_ids])


async def _carry_out(service_url: str, commands: Sequence[Command]) -> None:
    async with batch_pool(service_url, FLUSHERS) as pool:
        engine = Engine(pool, load())
        await engine.start()
        try:
            outcomes = await asyncio.gather(*(engine.execute(command) for command in commands))
        finally:
            await engine.stop()
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    if refused:
        raise BenchmarkError(f"the accounts are not as they should be: {refused[0]}")


async def discrepancies(service_url: str, account_ids: Iterable[str]) -> int:
    """Audit accounts, in all their parts, and return how many discrepancies there are."""
    found = 0
    async with asyncpg.create_pool(service_url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        for account_id in account_ids:
            report = await audit(connection, account_id)
            found += len(report.discrepancies) + report.unlisted
    return found
