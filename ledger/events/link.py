"""The connection to Redis: how it is made, how work on it is kept going, and who is told when it is away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError

from ledger import metrics
from ledger.database import is_away
from ledger.queries import DatabaseAway
from ledger.settings import SettingsError

ANSWER_SECONDS_MAX: Final = 2.0
"""How long connecting, and each answer, may take."""

RETRIES: Final = 2
PAUSE_SECONDS: Final = 1.0
"""How long work rests that has failed, in Redis or in the database."""

LOG_SECONDS: Final = 60.0
"""How often a failure that lasts is logged."""

log = structlog.get_logger(__name__)


def connect(url: str) -> Redis:
    """Return a client of Redis, which connects when it is first used. Raise `SettingsError` for an unusable URL.

    Options of redis-py can be given in the URL, such as `?socket_timeout=5` or `?ssl_ca_certs=…`.
    """
    try:
        pool: Any = ConnectionPool.from_url(
            url,
            decode_responses=True,
            client_name="gateway-ledger",
            driver_info=None,  # Neither this nor the newer protocol is of use here, and each takes commands of its own.
            protocol=2,
            socket_connect_timeout=ANSWER_SECONDS_MAX,
            socket_timeout=ANSWER_SECONDS_MAX,
            health_check_interval=0,  # It would connect within connecting, again and again, to a Redis that hangs.
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
        )
        pool.make_connection()  # Options that there are not are refused only here.
    except ValueError:  # Its text quotes parts of the URL, which can be parts of a password.
        raise SettingsError("LEDGER_REDIS_URL: not a URL (encode the special characters of a password)") from None
    except (RedisError, TypeError) as error:
        raise SettingsError(f"LEDGER_REDIS_URL: {error}") from error
    return Redis.from_pool(pool)


class Health:
    """How each work in Redis fares, as the log and the metrics tell it: a change at once, what lasts now and then.

    Of each on its own: a Redis that is full answers who only reads, and refuses who writes.
    """

    def __init__(self, works: Iterable[str]) -> None:
        self._up: dict[tuple[str, ...], float] = {}
        self._succeeded_at: dict[tuple[str, ...], float] = {(work,): 0 for work in works}
        self._logged_at = -LOG_SECONDS
        metrics.REDIS_SUCCESS.show(dict(self._succeeded_at))

    def answered(self, work: str) -> None:
        """Note that Redis carried out what it was asked."""
        if self._up.get((work,)) == 0:
            log.info("redis_back", work=work)
        self._up[work,] = 1
        metrics.REDIS_UP.show(dict(self._up))

    def succeeded(self, work: str, begun_at: float) -> None:
        """Note that work came to its end, whether or not Redis was asked: nothing of before it began is left to do."""
        self._succeeded_at[work,] = begun_at
        metrics.REDIS_SUCCESS.show(dict(self._succeeded_at))

    def failed(self, work: str, error: Exception) -> None:
        """Note that work failed, and is tried again: Redis is away or refuses, the database is, or it is a defect."""
        redis = isinstance(error, RedisError | OSError)
        changed = redis and self._up.get((work,)) != 0
        if redis:
            self._up[work,] = 0
            metrics.REDIS_UP.show(dict(self._up))
            metrics.REDIS_FAILURES.inc()
        if not changed and time.monotonic() - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = time.monotonic()
        if redis:
            log.warning("redis_away", work=work, error=repr(error))
        elif isinstance(error, DatabaseAway) or is_away(error):
            log.warning("redis_put_off", work=work, error=repr(error))
        else:
            log.error("redis_failed", work=work, exc_info=error)


class Loop:
    """Does its work when woken, and every second anyway, for as long as it is not stopped; what fails is tried again.

    `work` returns whether Redis was asked for anything.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[bool]], health: Health) -> None:
        self._name = name
        self._work = work
        self._health = health
        self._awake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._work_for_ever(), name=f"redis-{name}")

    def wake(self) -> None:
        """Let it work at once."""
        self._awake.set()

    async def stop(self, seconds_max: float) -> None:
        """Let it work a last time, and cut it off where that takes too long."""
        self._stopping.set()
        self.wake()
        await asyncio.wait([self._task], timeout=seconds_max)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _work_for_ever(self) -> None:
        while True:
            is_last = self._stopping.is_set()
            self._awake.clear()
            begun_at = time.time()
            try:
                if await self._work():
                    self._health.answered(self._name)
                self._health.succeeded(self._name, begun_at)
                rest = self._awake
            except Exception as error:  # noqa: BLE001 - whatever it is, it is logged and tried again
                self._health.failed(self._name, error)
                rest = self._stopping
            if is_last:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await rest.wait()
