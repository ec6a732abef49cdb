"""One batch, one transaction: prefetch, decide, write, commit; and again where the database asks for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg
import structlog

from ledger import failpoints, metrics, store, tracing
from ledger.core.account import Account
from ledger.core.commands import BringUp, Command, Outcome
from ledger.core.decide import decide
from ledger.core.timeline import bring_up_to
from ledger.database import AGAIN, is_away, knows_other_types
from ledger.engine.errors import DatabaseAway
from ledger.engine.measuring import Laps, Measures
from pricing.catalog import Catalog

ATTEMPTS_MAX: Final = 3
ACQUIRE_SECONDS_MAX: Final = 5
RETRY_PAUSE_SECONDS: Final = 0.05

log = structlog.get_logger(__name__)

Outcomes = list[Outcome | None]
"""An outcome for each command of a batch; None for one that must wait until its account is brought up."""

OnCommit = Callable[[Sequence[Account]], None]
"""Called with the accounts of a batch right after its commit, in the event loop, so it must not wait for anything.

A hint and not a message: a crash can come in between, and another replica's batches are not told here. Whoever needs
all of what was committed reads it from the database.
"""


def tell_nobody(_: Sequence[Account]) -> None:
    """Do nothing: nobody waits to hear of commits."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a transaction was about to commit: the batch, its outcomes, and the last entry it wrote of each account."""

    batch: store.Batch
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
        self,
        pool: asyncpg.Pool,
        catalog: Catalog,
        *,
        simulated_clock: bool,
        thresholds: tuple[int, ...],
        on_commit: OnCommit = tell_nobody,
    ) -> None:
        self._pool = pool
        self._catalog = catalog
        self._simulated_clock = simulated_clock
        self._thresholds = thresholds
        self._on_commit = on_commit
        self._measures = Measures(catalog)
        self._unused_prices = {version.version: version.digest for version in catalog.versions}

    async def carry_out(self, commands: list[Command]) -> Outcomes:
        """Return the outcomes of a batch, committed.

        It is run again after a deadlock, a lock time-out, a lost connection or one that is stale. Where the
        connection was lost in the commit, the chained hash of the entries tells whether it happened, and if so the
        outcomes are those. Raise `DatabaseAway` when that does not help: then it may be committed or not. Whatever
        else is raised is a defect: one before the commit undid everything; one after it, such as the failpoint there,
        leaves all of it committed, and each of the commands finds that when it is repeated.
        """
        sent = await self._until_committed(commands)
        failpoints.reached("commit")
        self._note_prices(sent.batch)
        self._measure(commands, sent)
        self._tell(sent)
        return sent.outcomes

    async def _until_committed(self, commands: list[Command]) -> _Sent:
        attempt, sent = 1, None
        while True:
            try:
                if sent is not None and await self._was_committed(sent):
                    return sent
                return await self._transaction(commands)
            except Exception as error:
                lost = error.__cause__ if isinstance(error, _CommitLost | _NoConnection) else error
                assert isinstance(lost, Exception)
                away = isinstance(error, _NoConnection) or is_away(lost)
                stale = knows_other_types(lost) and attempt == 1
                if not away and not stale and not isinstance(lost, AGAIN):
                    raise
                log.warning("batch_retried", attempt=attempt, error=_shown(lost))
                metrics.BATCH_RETRIES.labels(_reason(error)).inc()
                if away or stale:
                    await self._pool.expire_connections()
                if attempt == ATTEMPTS_MAX:
                    metrics.BATCH_FAILURES.labels("away").inc()
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
            with tracing.statements(connection):
                yield connection
        except Exception as error:
            # One that was cut in the middle of a statement, which asyncpg itself has lost track of, or a stale one.
            if isinstance(error, asyncpg.InternalClientError) or knows_other_types(error):
                connection.terminate()
            raise
        finally:
            await self._release(connection)

    async def _release(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        """Give a connection back. If it turns out to be lost, that is no reason to doubt what was committed on it."""
        try:
            await self._pool.release(connection)
        except Exception as error:  # noqa: BLE001 - asyncpg has terminated it, and makes another when one is needed
            log.warning("connection_not_reset", error=repr(error))

    async def _transaction(self, commands: list[Command]) -> _Sent:
        sent = None
        laps = Laps()
        async with self._connection() as connection:
            laps.lap("connect")
            try:
                # What is read after a lock must be what its last holder committed: whatever the server's default.
                async with connection.transaction(isolation="read_committed"):
                    batch = await store.load(connection, commands, simulated_clock=self._simulated_clock)
                    laps.lap("lock", batch.locked_at)
                    laps.lap("prefetch")
                    failpoints.reached("prefetch")
                    outcomes = self._decide_all(batch, commands)
                    laps.lap("decide")
                    failpoints.reached("decide")
                    await store.write(connection, batch.accounts.values(), self._unused_prices)
                    sent = _Sent(batch, outcomes, _last_entries(batch))
                    laps.lap("write")
                    failpoints.reached("write")
            except Exception as error:
                if sent is not None and is_away(error):
                    raise _CommitLost(sent) from error
                raise
            laps.lap("commit")
        return sent

    def _measure(self, commands: list[Command], sent: _Sent) -> None:
        """Count what was committed. Whatever comes of that, the callers are told what happened."""
        try:
            self._measures.committed(sent.batch, commands, sent.outcomes)
        except Exception:
            log.exception("batch_not_measured")

    def _tell(self, sent: _Sent) -> None:
        """Call the hook. Whatever comes of that, the callers are told what happened."""
        try:
            self._on_commit(list(sent.batch.accounts.values()))
        except Exception:
            log.exception("commit_not_told")

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


def _shown(error: Exception) -> str:
    """Return what the log says of an error: asyncpg quotes a row that it cannot encode."""
    return type(error).__name__ if isinstance(error, asyncpg.DataError) else repr(error)


def _reason(error: Exception) -> str:
    """Name why a batch is run again, for a metric: one of a closed set."""
    match error:
        case _NoConnection():
            return "no_connection"
        case _CommitLost():
            return "commit_lost"
        case asyncpg.DeadlockDetectedError():
            return "deadlock"
        case asyncpg.LockNotAvailableError():
            return "lock_timeout"
        case asyncpg.TransactionRollbackError():
            return "serialization"
        case _ if knows_other_types(error):
            return "stale_types"
        case _:
            return "connection_lost"
