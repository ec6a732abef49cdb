"""Events into Redis Streams: one stream for each environment, in order, with nothing left out.

An event's id in its stream is `<position>-0`, its position in the outbox. Positions are given under a lock that is held
until the commit, so whoever sees one sees all before it, and no cursor is kept anywhere: the stream itself knows where
it is. Any number of replicas may publish at once.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import Redis

from ledger import failpoints, metrics
from ledger.core.commands import ENVIRONMENTS, Environment
from ledger.queries import Reading
from ledger.queries.events import events_behind, position_but, still_named

PAGE: Final = 500
"""How many events are read, and added, at a time."""

CHECK_SECONDS: Final = 3600
"""How often one replica looks for events of accounts that were deleted."""

FIELD: Final = "event"

ADD: Final = """
local last = 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = tonumber(string.match(info[i + 1], '^%d+')) end
  end
end
local seen, after, added = tonumber(ARGV[1]), tonumber(ARGV[2]), 0
if last < after and last ~= seen then return {last, 0} end
for i = 5, #ARGV, 2 do
  local position = tonumber(ARGV[i])
  if position > last then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], ARGV[i] .. '-0', ARGV[4], ARGV[i + 1])
    last = position
    added = added + 1
  end
end
return {last, added}
"""
"""Adds events that the stream lacks, and returns where it then is and how many those were.

ARGV: where the publisher saw the stream, the position behind which its page has every event, the stream's length, the
name of the field, and the page's positions and events. Nothing is added to a stream that is behind the page, for there
would be a gap: Redis lost its newest events meanwhile. It is allowed where the stream is still where the publisher saw
it when it chose to leave out what is too old to be kept.
"""

log = structlog.get_logger(__name__)


class _Named(msgspec.Struct, frozen=True):
    account_id: str | None


_read_name: Final = msgspec.json.Decoder(_Named).decode


class Streams:
    """Publishes the events of a ledger. Any number of these may work at once, on any number of replicas."""

    def __init__(self, redis: Redis, reading: Reading, *, prefix: str, length: int) -> None:
        self._redis = redis
        self._reading = reading
        self._prefix = prefix
        self._length = length
        self._add = redis.register_script(ADD)
        self._known: dict[Environment, int] = {}
        """Where each stream was last: one that is found behind that has lost events, or is new to us."""
        metrics.REDIS_PUBLISHED.labels("event")

    def key(self, environment: Environment) -> str:
        """Return the name of an environment's stream."""
        return f"{self._prefix}events:{environment}"

    async def publish(self) -> bool:
        """Add what the streams lack, until nothing is left."""
        for environment in ENVIRONMENTS:
            await self._fill(environment)
        return True

    async def _fill(self, environment: Environment) -> None:
        seen, _ = await self._ask(environment, 0, 0)
        after = await self._behind(environment, seen)
        while page := await events_behind(self._reading, environment, after, PAGE):
            given = [text for position, event in page for text in (str(position), msgspec.json.encode(event))]
            seen, added = await self._ask(environment, seen, after, *given)
            failpoints.reached("publish")
            metrics.REDIS_PUBLISHED.labels("event").inc(added)
            after = await self._behind(environment, seen)
        self._known[environment] = seen

    async def _ask(self, environment: Environment, seen: int, after: int, *given: str | bytes) -> tuple[int, int]:
        last, added = await self._add(keys=[self.key(environment)], args=[seen, after, self._length, FIELD, *given])
        return int(last), int(added)

    async def _behind(self, environment: Environment, seen: int) -> int:
        """Return the position behind which to go on: where the stream is, or where what is still kept begins."""
        known = self._known.get(environment)
        self._known[environment] = seen
        if known is not None and seen >= known:
            return seen
        newest = await position_but(self._reading, environment, 0)
        if seen > newest:
            log.error("stream_ahead", stream=self.key(environment), stream_position=seen, ledger_position=newest)
        return max(seen, await position_but(self._reading, environment, self._length))

    async def forget_deleted(self) -> bool:
        """Take events out that name an account whose name a deletion took (R7); one replica does, now and then."""
        turn = f"{self._prefix}events:checked"
        if not await self._redis.set(turn, "1", nx=True, ex=CHECK_SECONDS):
            return True
        try:
            for environment in ENVIRONMENTS:
                await self._forget_deleted(self.key(environment))
        except BaseException:
            await self._redis.delete(turn)
            raise
        return True

    async def _forget_deleted(self, key: str) -> None:
        start = "-"
        while page := await self._page(key, start):
            named = {int(id.partition("-")[0]): id for id, fields in page if _read_name(fields[FIELD]).account_id}
            gone = named.keys() - await still_named(self._reading, list(named))
            if gone:
                await self._redis.xdel(key, *(named[position] for position in sorted(gone)))
            start = f"({page[-1][0]}"

    async def _page(self, key: str, start: str) -> list[tuple[str, dict[str, str]]]:
        page: Any = await self._redis.xrange(key, start, "+", count=PAGE)
        return list(page)
