"""The engine: gathers waiting commands into batches, one durable transaction each (design: "The idea in one breath").

Commands of one account are decided in the order they were submitted in, and an account is in one batch at a time.
An idle engine answers at once: a batch is whatever is waiting when a flusher is free, never a wait for company.
Accounts take turns, so a busy one makes batches longer and not the others late. Each command has one outcome,
whoever waits for it: a caller that goes away changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import asyncpg
import structlog

from ledger import metrics, store
from ledger.core.commands import BringUp, Command, Outcome, Refused
from ledger.core.decide import decide
from ledger.core.timeline import bring_up_to
from ledger.database import AGAIN, AWAY, is_away
from pricing.catalog import Catalog

ATTEMPTS_MAX: Final = 3
ACQUIRE_SECONDS_MAX: Final = 5
RETRY_PAUSE_SECONDS: Final = 0.05
BUSY_ACCOUNT_SHARE: Final = 4
"""With other accounts waiting, one takes at most this part (1/4) of a batch."""

log = structlog.get_logger(__name__)


class Unavailable(Exception):
    """The command was not accepted or not carried out; trying again later is safe and may help."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Unavailable):
    """More commands are waiting than the engine promises to serve."""


class DatabaseAway(Unavailable):
    """The database did not carry the batch out."""


class CommandFailed(Exception):
    """A defect of ours: deciding or writing this command failed, and nothing of it was written."""


@dataclass(slots=True, eq=False)
class _Waiting:
    command: Command
    future: asyncio.Future[Outcome]


@dataclass(slots=True)
class _Queue:
    """The commands that wait, by account, and the accounts whose turn it is."""

    items: dict[str, deque[_Waiting]] = field(default_factory=dict)
    turns: deque[str] = field(default_factory=deque)
    busy: set[str] = field(default_factory=set)
    size: int = 0

    def put(self, item: _Waiting) -> None:
        account_id = item.command.account_id
        waiting = self.items.get(account_id)
        if waiting is None:
            waiting = self.items[account_id] = deque()
            if account_id not in self.busy:
                self.turns.append(account_id)
        waiting.append(item)
        self.size += 1

    def take(self, most: int) -> list[_Waiting]:
        """Take a batch: accounts in turn, each with its commands in order, and none that is in another batch."""
        batch: list[_Waiting] = []
        while self.turns and len(batch) < most:
            share = most if len(self.turns) == 1 else max(1, most // BUSY_ACCOUNT_SHARE)
            account_id = self.turns.popleft()
            self.busy.add(account_id)
            waiting = self.items[account_id]
            count = min(len(waiting), share, most - len(batch))
            batch.extend(waiting.popleft() for _ in range(count))
            if not waiting:
                del self.items[account_id]
        self.size -= len(batch)
        return batch

    def give_back(self, items: list[_Waiting]) -> None:
        """Put commands that were taken too early back to the front of their accounts."""
        for item in reversed(items):
            self.items.setdefault(item.command.account_id, deque()).appendleft(item)
        self.size += len(items)

    def done(self, account_ids: set[str]) -> None:
        """Let the accounts of a finished batch take their next turn."""
        self.busy -= account_ids
        self.turns.extend(account_id for account_id in sorted(account_ids) if account_id in self.items)


class Engine:
    """Carries commands out. `start` it, `submit` commands, `stop` it: what was accepted is finished first."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        catalog: Catalog,
        *,
        simulated_clock: bool = False,
        thresholds: tuple[int, ...] = (80, 95),
        queue_max: int = 10_000,
        batch_max: int = 256,
        flushers: int = 2,
    ) -> None:
        self._pool = pool
        self._catalog = catalog
        self._simulated_clock = simulated_clock
        self._thresholds = thresholds
        self._queue_max = queue_max
        self._batch_max = batch_max
        self._flushers = flushers
        self._queue = _Queue()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._unused_prices = {version.version: version.digest for version in catalog.versions}

    async def start(self) -> None:
        """Start the flushers."""
        self._tasks = [asyncio.create_task(self._flush_for_ever(), name=f"flusher-{n}") for n in range(self._flushers)]

    async def stop(self) -> None:
        """Accept nothing more, finish what was accepted, and return."""
        self._stopping = True
        self._wake.set()
        await asyncio.gather(*self._tasks)

    @property
    def waiting(self) -> int:
        """How many commands wait for a batch."""
        return self._queue.size

    def submit(self, command: Command) -> asyncio.Future[Outcome]:
        """Accept a command and return where its outcome will be.

        Raise `QueueFull` when too many wait. The future raises `DatabaseAway` (nothing was done, or it was done and a
        repetition will find it), or `CommandFailed`.
        """
        if self._stopping or self._queue.size >= self._queue_max:
            raise QueueFull("too many commands are waiting", retry_after=1)
        item = _Waiting(command, asyncio.get_running_loop().create_future())
        self._queue.put(item)
        self._wake.set()
        return item.future

    async def execute(self, command: Command) -> Outcome:
        """Submit a command and wait for its outcome; raises what `submit` says."""
        return await self.submit(command)

    # -- batches ----------------------------------------------------------------------------------------------------

    async def _flush_for_ever(self) -> None:
        while True:
            items = self._queue.take(self._batch_max)
            if items:
                await self._flush(items)
            elif self._stopping and not self._queue.size:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _flush(self, items: list[_Waiting]) -> None:
        """Carry a batch to its end: whatever happens, every caller hears of it and the accounts are free again."""
        try:
            await self._carry_out(items)
        except BaseException:
            _fail(items, DatabaseAway("the service is stopping", retry_after=1))
            raise
        finally:
            self._queue.done({item.command.account_id for item in items})
            self._wake.set()

    async def _carry_out(self, items: list[_Waiting]) -> None:
        """Run a batch; where it fails for a defect, halve it until the command that fails is alone."""
        try:
            outcomes = await self._attempts([item.command for item in items])
        except DatabaseAway as error:
            _fail(items, error)
        except Exception:
            if len(items) == 1:
                log.exception("command_failed", command=type(items[0].command).__name__)
                _fail(items, CommandFailed("the command could not be carried out"))
                return
            middle = len(items) // 2
            await self._carry_out(items[:middle])
            await self._carry_out(items[middle:])
        else:
            self._answer(items, outcomes)

    def _answer(self, items: list[_Waiting], outcomes: list[Outcome | None]) -> None:
        again = [item for item, outcome in zip(items, outcomes, strict=True) if outcome is None]
        self._queue.give_back(again)
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome is not None and not item.future.done():
                item.future.set_result(outcome)

    async def _attempts(self, commands: list[Command]) -> list[Outcome | None]:
        """Run a batch's transaction, again where the database asks for it or its connection is lost.

        Every command can be repeated: had the lost one been committed, the repetition finds what it did.
        """
        attempt = 1
        while True:
            try:
                return await self._transaction(commands)
            except (*AGAIN, *AWAY) as error:
                away = is_away(error)
                if not away and not isinstance(error, AGAIN):
                    raise
                log.warning("batch_retried", attempt=attempt, error=repr(error))
                metrics.BATCH_RETRIES.labels(type(error).__name__).inc()
                if away:
                    await self._pool.expire_connections()
                if attempt == ATTEMPTS_MAX:
                    raise DatabaseAway("the database is away", retry_after=1) from error
            await asyncio.sleep(RETRY_PAUSE_SECONDS * attempt)
            attempt += 1

    async def _transaction(self, commands: list[Command]) -> list[Outcome | None]:
        """Prefetch, decide, write, commit. The outcome of a command that must wait for its account is None."""
        with metrics.BATCH_SECONDS.time():
            async with self._pool.acquire(timeout=ACQUIRE_SECONDS_MAX) as connection, connection.transaction():
                batch = await store.load(connection, commands, simulated_clock=self._simulated_clock)
                for account in batch.accounts.values():
                    account.thresholds = self._thresholds
                    bring_up_to(account, batch.backlog.get(account.account_id, batch.now))
                outcomes = [self._decide(batch, command) for command in commands]
                await store.write(connection, batch.accounts.values(), self._unused_prices)
        self._note_prices(batch)
        metrics.BATCH_COMMANDS.observe(len(commands))
        for command, outcome in zip(commands, outcomes, strict=True):
            metrics.COMMANDS.labels(type(command).__name__.lower(), _label(outcome)).inc()
        return outcomes

    def _decide(self, batch: store.Batch, command: Command) -> Outcome | None:
        if command.account_id in batch.backlog:
            if not isinstance(command, BringUp):
                return None
            entered = batch.accounts[command.account_id].brought_up
            entered.more = True
            return entered
        return decide(batch.accounts.get(command.account_id), command, batch.now, self._catalog)

    def _note_prices(self, batch: store.Batch) -> None:
        for account in batch.accounts.values():
            for job in account.changes.jobs_opened.values():
                self._unused_prices.pop(job.price_version, None)


def _label(outcome: Outcome | None) -> str:
    """Return what came of a command as a metric's label: a refusal's code, or done, or put back."""
    if outcome is None:
        return "put_back"
    return str(outcome.code) if isinstance(outcome, Refused) else "done"


def _fail(items: list[_Waiting], error: Exception) -> None:
    for item in items:
        if not item.future.done():
            item.future.set_exception(error)
