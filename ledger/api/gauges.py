"""The gauges of `/metrics`: read from the database when somebody looks, by one at a time, and kept for a moment.

They are absent, rather than stale, while the database is away: then `ledger_database_up` is 0 and the answer comes all
the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import asyncpg
import structlog

from ledger import metrics
from ledger.database import PoolUse, is_away
from ledger.queries.state import State, SweepState, read_state

FRESH_SECONDS: Final = 5
"""How long figures are kept: for as long as nobody's scrape is due twice."""

SHARE: Final = 20
"""Reading may take 1/20 of the time at most: what takes long is kept longer."""

WAIT_SECONDS_MAX: Final = 2
"""How long an answer waits for figures."""

STALE_SECONDS: Final = 60
"""Figures of before this are shown no longer, while newer ones are still being read."""

log = structlog.get_logger(__name__)


class Gauges:
    """Keeps the gauges fresh.

    `pool` is for this alone; `sweeps` are those that there are, and `endpoints` those that events go to; `waiting`
    tells how many commands wait; `pools` tell of all pools there are, by name.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        simulated_clock: bool,
        sweeps: Sequence[str],
        endpoints: Sequence[str],
        waiting: Callable[[], int],
        pools: Mapping[str, Callable[[], PoolUse]],
    ) -> None:
        self._pool = pool
        self._simulated_clock = simulated_clock
        self._sweeps = sweeps
        self._endpoints = endpoints
        self._waiting = waiting
        self._pools = pools
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")
        self._took = 0.0
        self._ended: dict[str, SweepState] = {}
        """The last run of each sweep that was seen to have ended: while one runs, it says nothing yet."""

    async def refresh(self) -> None:
        """Bring every gauge up to date, as far as that can be done in two seconds. It never fails."""
        metrics.QUEUE_COMMANDS.set(self._waiting())
        self._show_pools()
        if self._reading is None and self._age() >= max(FRESH_SECONDS, SHARE * self._took):
            self._reading = asyncio.create_task(self._read(), name="gauges")
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=WAIT_SECONDS_MAX)
        if self._reading is not None and self._age() > STALE_SECONDS:
            _forget()
        elif self._age() < float("inf"):
            metrics.STATE_AGE.show({(): self._age()})

    async def stop(self) -> None:
        """Read nothing more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _age(self) -> float:
        return time.monotonic() - self._read_at

    async def _read(self) -> None:
        begun = time.monotonic()
        try:
            async with self._pool.acquire(timeout=WAIT_SECONDS_MAX) as connection:
                state = await read_state(connection, self._endpoints, simulated_clock=self._simulated_clock)
        except Exception as error:
            if not is_away(error):
                log.exception("gauges_not_read")
            self._read_at = float("-inf")
            _forget()
        else:
            self._read_at, self._took = time.monotonic(), time.monotonic() - begun
            self._show(state)
        finally:
            self._reading = None

    def _show_pools(self) -> None:
        for name, use_of in self._pools.items():
            use = use_of()
            metrics.CONNECTIONS.labels(name, "used").set(use.used)
            metrics.CONNECTIONS.labels(name, "idle").set(use.idle)
            metrics.CONNECTIONS_LIMIT.labels(name).set(use.limit)

    def _show(self, state: State) -> None:
        metrics.DATABASE_UP.set(1)
        metrics.STATE_SECONDS.show({(): self._took})
        _show_money(state)
        self._show_sweeps(state)

    def _show_sweeps(self, state: State) -> None:
        self._ended.update({name: sweep for name, sweep in state.sweeps.items() if sweep.finished_at is not None})
        succeeded = {name: sweep.succeeded_at for name, sweep in state.sweeps.items() if sweep.succeeded_at is not None}
        metrics.SWEEP_SUCCESS.show(
            {(name,): succeeded[name].timestamp() if name in succeeded else 0.0 for name in self._sweeps}
        )
        metrics.SWEEP_SECONDS.show(
            {
                (name,): (sweep.finished_at - sweep.started_at).total_seconds()
                for name, sweep in self._ended.items()
                if sweep.finished_at is not None
            }
        )
        metrics.SWEEP_FAILED.show({(name,): float(sweep.failed) for name, sweep in self._ended.items()})
        metrics.SWEEP_COUNTS.show(
            {(name, item): count for name, sweep in self._ended.items() for item, count in sweep.counts.items()}
        )
        audit = state.sweeps.get("audit")
        if audit is not None and "discrepancies" in audit.succeeded_counts:
            metrics.AUDIT_DISCREPANCIES.show({(): audit.succeeded_counts["discrepancies"]})


def _show_money(state: State) -> None:
    due = [holds.due for holds in state.holds.values() if holds.due is not None]
    overage = state.overage
    metrics.OPEN_HOLDS.show({where: holds.open for where, holds in state.holds.items()})
    metrics.OLDEST_HOLD.show({where: state.since(holds.oldest) for where, holds in state.holds.items()})
    metrics.HOLD_OVERDUE.show({(): state.since(min(due, default=None))})
    metrics.OVERDRAFT_CREDITS.show({(): state.overdraft_credits})
    metrics.OVERDRAFT_ACCOUNTS.show({(): state.overdraft_accounts})
    metrics.NEGATIVE_AVAILABLE.show({(): state.negative_accounts})
    metrics.OVERAGE_MONTH_CREDITS.show({("used",): overage.used, ("held",): overage.held})
    metrics.OVERAGE_MONTH_USD.show({("used",): overage.used_usd / 1e6, ("held",): overage.held_usd / 1e6})
    metrics.UNCLOSED_ACCOUNTS.show({(): state.unclosed_accounts})
    metrics.UNCLOSED_SECONDS.show({(): state.since(state.unclosed_since)})
    metrics.OUTBOX_EVENTS.show({(name,): backlog.events for name, backlog in state.outbox.items()})
    metrics.OUTBOX_AGE.show({(name,): state.since(backlog.oldest) for name, backlog in state.outbox.items()})


def _forget() -> None:
    metrics.DATABASE_UP.set(0)
    for gauge in metrics.READ:
        gauge.forget()
