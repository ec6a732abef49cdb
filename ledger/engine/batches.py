"""One batch, one transaction: prefetch, decide, write, commit; and again where the database asks for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import asyncpg
import structlog

from ledger import metrics, store
from ledger.core.commands import BringUp, Command, Outcome, Refused
from ledger.core.decide import decide
from ledger.core.timeline import bring_up_to
from ledger.database import AGAIN, is_away
from ledger.engine.errors import DatabaseAway
from pricing.catalog import Catalog

ATTEMPTS_MAX: Final = 3
ACQUIRE_SECONDS_MAX: Final = 5
RETRY_PAUSE_SECONDS: Final = 0.05

log = structlog.get_logger(__name__)

Outcomes = list[Outcome | None]
"""An outcome for each command of a batch; None for one that must wait until its account is brought up."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a transaction was about to commit: its outcomes, and the last entry it wrote of each account."""

    outcomes: Outcomes
    entries: list[tuple[int, int, bytes]]


class _CommitLost(Exception):
    """The connection was lost in the commit, so nobody knows whether it happened: the journal does."""

    def __init__(self, sent: _Sent) -> None:
        self.sent = sent


class _NoConnection(Exception):
    """No connection could be had, which is no command's fault."""


class Batches:
    """Carries batches out against one pool of connections, which should have one for each batch in flight."""

    def __init__(
        self, pool: asyncpg.Pool, catalog: Catalog, *, simulated_clock: bool, thresholds: tuple[int, ...]
    ) -> None:
        self._pool = pool
        self._catalog = catalog
        self._simulated_clock = simulated_clock
        self._thresholds = thresholds
        self._unused_prices = {version.version: version.digest for version in catalog.versions}

    async def carry_out(self, commands: list[Command]) -> Outcomes:
        """Return the outcomes of a batch, committed.

        It is run again after a deadlock, a lock time-out or a lost connection. Where the connection was lost in the
        commit, the chained hash of the entries tells whether it happened, and if so the outcomes are those. Raise
        `DatabaseAway` when that does not help; whatever else is raised is a defect, and nothing was written.
        """
        attempt, sent = 1, None
        while True:
            try:
                if sent is not None and await self._was_committed(sent):
                    return sent.outcomes
                return await self._transaction(commands)
            except Exception as error:
                lost = error.__cause__ if isinstance(error, _CommitLost | _NoConnection) else error
                assert isinstance(lost, Exception)
                away = isinstance(error, _NoConnection) or is_away(lost)
                if not away and not isinstance(lost, AGAIN):
                    raise
                log.warning("batch_retried", attempt=attempt, error=repr(lost))
                metrics.BATCH_RETRIES.labels(type(lost).__name__).inc()
                if away:
                    await self._pool.expire_connections()
                if attempt == ATTEMPTS_MAX:
                    raise DatabaseAway("the database is away, or too busy") from lost
                if isinstance(error, _CommitLost):
                    sent = error.sent
            await asyncio.sleep(RETRY_PAUSE_SECONDS * attempt)
            attempt += 1

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[store.Connection]:
        try:
            connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS_MAX)
        except Exception as error:
            raise _NoConnection from error
        try:
            yield connection
        except asyncpg.InternalClientError:
            connection.terminate()  # It was cut in the middle of a statement: asyncpg itself has lost track of it.
            raise
        finally:
            await self._pool.release(connection)

    async def _transaction(self, commands: list[Command]) -> Outcomes:
        sent = None
        with metrics.BATCH_SECONDS.time():
            async with self._connection() as connection:
                try:
                    # What is read after a lock must be what its last holder committed: whatever the server's default.
                    async with connection.transaction(isolation="read_committed"):
                        batch = await store.load(connection, commands, simulated_clock=self._simulated_clock)
                        outcomes = self._decide_all(batch, commands)
                        await store.write(connection, batch.accounts.values(), self._unused_prices)
                        sent = _Sent(outcomes, _last_entries(batch))
                except Exception as error:
                    if sent is not None and is_away(error):
                        raise _CommitLost(sent) from error
                    raise
        self._note_prices(batch)
        _count(commands, outcomes)
        return outcomes

    async def _was_committed(self, sent: _Sent) -> bool:
        """Ask the journal whether a commit happened: nothing else can have written an entry of the same hash."""
        if not sent.entries:
            return False
        async with self._connection() as connection:
            return await store.has_entries(connection, sent.entries)

    def _decide_all(self, batch: store.Batch, commands: list[Command]) -> Outcomes:
        for account in batch.accounts.values():
            account.thresholds = self._thresholds
            bring_up_to(account, batch.backlog.get(account.account_id, batch.now))
        return [self._decide(batch, command) for command in commands]

    def _decide(self, batch: store.Batch, command: Command) -> Outcome | None:
        if command.account_id not in batch.backlog:
            return decide(batch.accounts.get(command.account_id), command, batch.now, self._catalog)
        if not isinstance(command, BringUp):
            return None
        entered = batch.accounts[command.account_id].brought_up
        entered.more = True
        return entered

    def _note_prices(self, batch: store.Batch) -> None:
        for account in batch.accounts.values():
            for job in account.changes.jobs_opened.values():
                self._unused_prices.pop(job.price_version, None)


def _last_entries(batch: store.Batch) -> list[tuple[int, int, bytes]]:
    return [
        (account.number, account.sequence, bytes.fromhex(account.head))
        for account in batch.accounts.values()
        if account.changes.entries
    ]


def _count(commands: list[Command], outcomes: Outcomes) -> None:
    metrics.BATCH_COMMANDS.observe(len(commands))
    for command, outcome in zip(commands, outcomes, strict=True):
        metrics.COMMANDS.labels(type(command).__name__.lower(), _label(outcome)).inc()


def _label(outcome: Outcome | None) -> str:
    if outcome is None:
        return "put_back"
    return str(outcome.code) if isinstance(outcome, Refused) else "done"
