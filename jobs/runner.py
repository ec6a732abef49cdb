"""Runs one sweep: on one replica at a time, and with a row of what came of it.

The lock is an advisory one of a PostgreSQL transaction, which does nothing else and is open for as long as the sweep
runs. Whatever ends the process or the connection ends the lock with it, so a crash leaves nothing to clean up. Of a
transaction and not of a session, because a pooler in between may give the session to somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg
import msgspec
import structlog

from jobs.sweep import Connection, Context, Progress, Sweep
from ledger import metrics
from ledger.api.services import SweepRun, SweepsBusy
from ledger.database import CONNECT_SECONDS_MAX, is_away
from ledger.engine import Engine, Unavailable
from ledger.queries import DatabaseAway, Reading

WAIT_SECONDS_MAX: Final = 60
"""How long a run by hand waits for another to end."""

POLL_SECONDS: Final = 0.25
LOCKS: Final = 7_235_409
"""The advisory locks of sweeps; the second number is the sweep's."""

BEGIN: Final = """
insert into ledger.sweeps (name, started_at) values ($1, $2)
on conflict (name) do update set started_at = $2, finished_at = null, counts = null, error = null,
    succeeded_counts = case when sweeps.finished_at = sweeps.succeeded_at then sweeps.counts
        else sweeps.succeeded_counts end
"""
"""What a run of before there were `succeeded_counts` did is in `counts` alone, and is kept as well."""

END: Final = """
update ledger.sweeps set finished_at = $3, counts = $4, error = $5,
    succeeded_at = case when $5::text is null then $3 else succeeded_at end,
    succeeded_counts = case when $5::text is null then $4 else succeeded_counts end
where name = $1 and started_at = $2
"""
LAST: Final = "select name, started_at, finished_at, succeeded_at, counts, error from ledger.sweeps"

log = structlog.get_logger(__name__)


class LockLost(ConnectionError):
    """The connection that held the sweep's lock was lost, so the run was cut off: another may have begun."""


class SweepFailed(Exception):
    """Accounts were passed over, each because of a defect that is in the log."""


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a sweep, on whichever replica; one without an end is at it, or was cut off."""

    started_at: datetime
    finished_at: datetime | None
    succeeded_at: datetime | None
    counts: dict[str, int] | None
    error: str | None


def no_progress(_: int) -> None:
    """Do nothing with how far a run is: nobody is watching."""


class Runner:
    """Runs sweeps. `pool` is for them alone: each run keeps two connections of it, one for its lock."""

    def __init__(self, engine: Engine, pool: asyncpg.Pool, primary: Reading, *, simulated_clock: bool) -> None:
        self._engine = engine
        self._pool = pool
        self._primary = primary
        self._simulated_clock = simulated_clock

    async def run(
        self, sweep: Sweep, progress: Progress = no_progress, *, wait_seconds: float = WAIT_SECONDS_MAX
    ) -> SweepRun:
        """Run a sweep by hand, and return what it did; where it runs already, wait for that to end first.

        Raise `SweepsBusy` where that takes longer than `wait_seconds`, and whatever the sweep fails with.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            async with self._lock(sweep) as connection:
                if connection is not None:
                    return await self._carry_out(sweep, connection, progress)
            if time.monotonic() >= deadline:
                raise SweepsBusy(f"the sweep {sweep.name} is running")
            await asyncio.sleep(POLL_SECONDS)

    async def run_scheduled(self, sweep: Sweep) -> None:
        """Run a sweep whose time has come, unless another replica is at it or was shortly before.

        A failure is kept, logged, and nothing more: its next time comes.
        """
        try:
            async with self._lock(sweep) as connection:
                if connection is not None and await self._is_due(sweep, connection):
                    await self._carry_out(sweep, connection, no_progress)
                else:
                    metrics.SWEEP_RUNS.labels(sweep.name, "skipped").inc()
        except Exception as error:
            if isinstance(error, (Unavailable, DatabaseAway)) or is_away(error):
                log.warning("sweep_put_off", sweep=sweep.name, error=repr(error))
            else:
                log.exception("sweep_failed", sweep=sweep.name)

    async def last_runs(self) -> Mapping[str, LastRun]:
        """Return the last run of each sweep that ever ran, by its name."""
        rows = await self._pool.fetch(LAST)
        return {
            row["name"]: LastRun(
                started_at=row["started_at"].astimezone(UTC),
                finished_at=row["finished_at"] and row["finished_at"].astimezone(UTC),
                succeeded_at=row["succeeded_at"] and row["succeeded_at"].astimezone(UTC),
                counts=None if row["counts"] is None else msgspec.json.decode(row["counts"], type=dict[str, int]),
                error=row["error"],
            )
            for row in rows
        }

    @contextlib.asynccontextmanager
    async def _lock(self, sweep: Sweep) -> AsyncIterator[Connection | None]:
        """Take the sweep's lock and give a connection to work through, or None where another has the lock.

        What is done meanwhile is cut off, with `LockLost`, when the lock is lost.
        """
        number = zlib.crc32(sweep.name.encode()) - 2**31
        async with (
            self._pool.acquire(timeout=CONNECT_SECONDS_MAX) as keeper,
            keeper.transaction(isolation="read_committed"),  # It keeps no snapshot, so vacuum need not wait for it.
        ):
            await keeper.execute("set local idle_in_transaction_session_timeout = 0")
            if not await keeper.fetchval("select pg_try_advisory_xact_lock($1, $2)", LOCKS, number):
                yield None
                return
            async with _cut_off_with(keeper), self._pool.acquire(timeout=CONNECT_SECONDS_MAX) as connection:
                yield connection

    async def _is_due(self, sweep: Sweep, connection: Connection) -> bool:
        """Tell whether the last run is long enough ago: replicas are not in step, and one run in turn is enough.

        One that was cut off is made up for at once, and a clock that was set back holds nothing up.
        """
        row = await connection.fetchrow(f"{LAST} where name = $1", sweep.name)
        if row is None or row["finished_at"] is None:
            return True
        now = await connection.fetchval("select clock_timestamp()")
        return not timedelta() <= now - row["started_at"] < sweep.every * 0.9

    async def _carry_out(self, sweep: Sweep, connection: Connection, progress: Progress) -> SweepRun:
        context = Context(self._engine, connection, self._primary, self._simulated_clock, progress)
        context.counts.update(dict.fromkeys(sweep.counts, 0))
        started_at = await context.now()
        await connection.execute(BEGIN, sweep.name, started_at)
        begun = time.monotonic()
        try:
            await sweep.run(context)
            _check(context)
            finished_at = await context.now()
            await connection.execute(END, sweep.name, started_at, finished_at, _text(context), None)
        except Exception as error:
            metrics.SWEEP_RUNS.labels(sweep.name, "failed").inc()
            await self._keep_failure(sweep, started_at, context, error)
            raise
        finally:
            for item, count in context.counts.items():
                metrics.SWEEP_ITEMS.labels(sweep.name, item).inc(count)
        metrics.SWEEP_RUNS.labels(sweep.name, "done").inc()
        log.info("sweep_done", sweep=sweep.name, seconds=round(time.monotonic() - begun, 3), **context.counts)
        return SweepRun(
            name=sweep.name,
            started_at=started_at.astimezone(UTC),
            finished_at=finished_at.astimezone(UTC),
            counts=dict(context.counts),
        )

    async def _keep_failure(self, sweep: Sweep, started_at: datetime, context: Context, error: Exception) -> None:
        """Keep that a run failed, if the database is there. The text names no account: it may outlive one (R7)."""
        message = str(error) if isinstance(error, SweepFailed) else type(error).__name__
        sql = "select now from ledger.clock" if self._simulated_clock else "select clock_timestamp()"
        try:
            now = await self._pool.fetchval(sql)
            await self._pool.execute(END, sweep.name, started_at, now, _text(context), message)
        except Exception as lost:
            if not is_away(lost):
                raise
            log.warning("sweep_failure_not_kept", sweep=sweep.name, error=repr(lost))


@contextlib.asynccontextmanager
async def _cut_off_with(keeper: Connection) -> AsyncIterator[None]:
    """Cancel what is done inside, and raise `LockLost`, when a connection is lost."""
    task = asyncio.current_task()
    assert task is not None
    lost = False

    def cut_off(_: object) -> None:
        nonlocal lost
        lost = True
        task.cancel()

    keeper.add_termination_listener(cut_off)
    try:
        yield
    except asyncio.CancelledError:
        if not lost or task.uncancel():  # It was cancelled by somebody else, too.
            raise
        raise LockLost("the sweep's lock was lost") from None
    finally:
        if not lost:
            keeper.remove_termination_listener(cut_off)


def _check(context: Context) -> None:
    if context.failed:
        raise SweepFailed(f"{context.failed} accounts were passed over: see the log")


def _text(context: Context) -> str:
    return msgspec.json.encode(dict(context.counts)).decode()
