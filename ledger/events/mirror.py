"""What Redis shows of the ledger: events in streams and live balances, kept up by loops that nobody waits for.

Redis is a cache. The ledger neither asks it nor waits for it, and what Redis misses while it is away is made up for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis

from ledger import metrics
from ledger.core.account import Account
from ledger.events.balances import Balances
from ledger.events.link import Health, Loop
from ledger.events.streams import Streams
from ledger.queries import Reading

STOP_SECONDS_MAX: Final = 1.5
"""How long a stop waits for what was committed last to be published."""


class Mirror:
    """The ledger in a Redis. `start` it before the engine and `stop` it after that, so that it tells of all it did.

    `tends`: whether it also sees to what others did, by walks through all accounts and after deletions. A process that
    is there for a moment tells of its own commits alone.
    """

    def __init__(self, redis: Redis, reading: Reading, *, prefix: str, stream_length: int, tends: bool = True) -> None:
        self._redis = redis
        self._tends = tends
        self._streams = Streams(redis, reading, prefix=prefix, length=stream_length)
        self._balances = Balances(redis, reading, prefix=prefix)
        self._loops: dict[str, Loop] = {}

    async def start(self) -> None:
        """Begin to publish, now or as soon as Redis is there."""
        works = {"streams": self._streams.publish, "balances": self._balances.publish}
        if self._tends:
            works |= {"walk": self._balances.walk_if_due, "deleted": self._streams.forget_deleted}
        health = Health(works)
        self._loops = {name: Loop(name, work, health) for name, work in works.items()}

    async def stop(self) -> None:
        """Publish what waits, if Redis answers, and nothing more."""
        seconds = {"streams": STOP_SECONDS_MAX, "balances": STOP_SECONDS_MAX}
        await asyncio.gather(*(loop.stop(seconds.get(name, 0)) for name, loop in self._loops.items()))
        await self._redis.aclose()
        metrics.REDIS_UP.forget()
        metrics.REDIS_SUCCESS.forget()

    def committed(self, accounts: Sequence[Account]) -> None:
        """Take over what a batch committed: the engine's hook, which costs a few microseconds for each account."""
        self._balances.committed(accounts)
        self._loops["balances"].wake()
        if any(account.changes.events for account in accounts):
            self._loops["streams"].wake()
