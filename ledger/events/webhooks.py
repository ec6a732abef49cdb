"""Sends signed deliveries for as long as the service runs: one worker for each endpoint, which no other waits for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

import asyncpg
import structlog

from ledger import failpoints, metrics
from ledger.core.account import Account
from ledger.database import AGAIN, is_away
from ledger.events import ladder
from ledger.events.deliveries import LEASE, Attempt, Claimed, Deliveries
from ledger.events.endpoints import Endpoint
from ledger.events.envelopes import TooLarge, body_of
from ledger.events.sending import ATTEMPT_SECONDS_MAX, Sender
from ledger.events.signing import signature

CONCURRENT_MAX: Final = 16
"""How many deliveries to one endpoint, each of another account, are on their way from one replica."""

POLL_SECONDS: Final = 1.0
"""How soon what another replica committed, or what has become due, is seen."""

PAUSE_SECONDS: Final = 1.0
"""How long a worker waits after a failure of its own or of the database."""

STOP_SECONDS_MAX: Final = 2.0
"""How long a stop waits for answers that are on their way, and then for the database."""

log = structlog.get_logger(__name__)


class Webhooks:
    """The deliveries of a service. `start` it once the database is there, and `stop` it before that is closed."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        endpoints: Sequence[Endpoint],
        *,
        simulated_clock: bool,
        attempt_seconds_max: float = ATTEMPT_SECONDS_MAX,
    ) -> None:
        self._deliveries = Deliveries(pool, simulated_clock=simulated_clock)
        self._endpoints = endpoints
        self._attempt_seconds_max = attempt_seconds_max
        self._workers: list[_Worker] = []

    async def start(self) -> None:
        """Register every endpoint, so that none misses what happens from now on, and begin to send."""
        for endpoint in self._endpoints:
            await self._deliveries.register(endpoint)
        for endpoint in self._endpoints:
            sender = Sender(endpoint, seconds_max=self._attempt_seconds_max)
            self._workers.append(_Worker(self._deliveries, endpoint, sender))

    async def stop(self) -> None:
        """Send nothing more. What is cut off is sent again by whoever comes next, with the same id."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    def committed(self, accounts: Sequence[Account]) -> None:
        """Wake the workers where a batch that was committed raised events: the engine's hook."""
        if any(account.changes.events for account in accounts):
            for worker in self._workers:
                worker.wake()


class _Worker:
    """Turns the events of one endpoint into deliveries and sends those that are due."""

    def __init__(self, deliveries: Deliveries, endpoint: Endpoint, sender: Sender) -> None:
        self._deliveries = deliveries
        self._endpoint = endpoint
        self._sender = sender
        self._awake = asyncio.Event()
        self._stopping = False
        self._sending: dict[asyncio.Task[None], Claimed] = {}
        self._task = asyncio.create_task(self._work_for_ever(), name=f"webhook-{endpoint.name}")

    def wake(self) -> None:
        """Look at once whether there is something to send."""
        self._awake.set()

    async def stop(self) -> None:
        """Wait a little for answers that are on their way, and give back what is not answered."""
        self._stopping = True
        self.wake()
        await asyncio.wait([self._task], timeout=STOP_SECONDS_MAX)
        self._task.cancel()
        if self._sending:
            await asyncio.wait(self._sending, timeout=STOP_SECONDS_MAX)
        unsent = dict(self._sending)
        for task in unsent:
            task.cancel()
        await asyncio.gather(*unsent, return_exceptions=True)
        await self._sender.close()
        if unsent:
            with contextlib.suppress(Exception):  # Their leases end by themselves.
                async with asyncio.timeout(STOP_SECONDS_MAX):
                    await self._deliveries.give_back(list(unsent.values()))

    async def _work_for_ever(self) -> None:
        while not self._stopping:
            self._awake.clear()
            try:
                is_there_more = await self._work()
            except Exception as error:
                if is_away(error) or isinstance(error, AGAIN):
                    log.warning("deliveries_put_off", endpoint=self._endpoint.name, error=type(error).__name__)
                else:
                    log.exception("deliveries_failed", endpoint=self._endpoint.name)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if not is_there_more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._awake.wait()

    async def _work(self) -> bool:
        """Fan a page of events out, begin to send what is due, and tell whether there may be more events."""
        is_there_more = await self._deliveries.fan_out(self._endpoint)
        free = CONCURRENT_MAX - len(self._sending)
        for claimed in await self._deliveries.claim(self._endpoint, free) if free else []:
            task = asyncio.create_task(self._deliver(claimed))
            self._sending[task] = claimed
            task.add_done_callback(self._sent)
        return is_there_more

    def _sent(self, task: asyncio.Task[None]) -> None:
        """Make room for the next, which may be due now."""
        del self._sending[task]
        self.wake()

    async def _deliver(self, claimed: Claimed) -> None:
        """Send a delivery and record it. Where that fails, its lease ends and it is sent again, with the same id."""
        until = time.monotonic() + LEASE.total_seconds()
        try:
            result = await self._send(claimed)
            failpoints.reached("deliver")
            while not await self._is_recorded(claimed, result):
                if time.monotonic() >= until:
                    log.warning("delivery_not_recorded", endpoint=self._endpoint.name, delivery=claimed.delivery)
                    return
                await asyncio.sleep(PAUSE_SECONDS)
        except Exception:
            log.exception("delivery_failed", endpoint=self._endpoint.name, delivery=claimed.delivery)

    async def _send(self, claimed: Claimed) -> Attempt | str:
        """Send a delivery, and return how the attempt went; or, where there is nothing to send, why."""
        if claimed.event is None:
            return "event_deleted"
        try:
            body = body_of(claimed.event, claimed.id)
        except TooLarge:
            return "too_large"
        return await self._sender.send(body, signature(body, self._endpoint.secrets, claimed.now))

    async def _is_recorded(self, claimed: Claimed, result: Attempt | str) -> bool:
        """Record how an attempt went; False where the database is away, so that it may be tried again."""
        status: ladder.Status = "undeliverable"
        again_in = None
        if isinstance(result, Attempt):
            status, again_in = ladder.after(claimed.attempts + 1, result.status_code, ladder.draw())
        try:
            is_ours = await self._deliveries.record(claimed, status, again_in, result)
        except Exception as error:
            if is_away(error) or isinstance(error, AGAIN):
                return False
            raise
        outcome = "failed" if status == "pending" else status
        metrics.DELIVERY_ATTEMPTS.labels(self._endpoint.name, outcome if is_ours else "lost").inc()
        return True
