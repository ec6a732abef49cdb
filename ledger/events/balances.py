"""Live balances in Redis: a hash for each account, and a message for each change.

The engine's hook hands over what was committed; a loop publishes it, and whatever nobody published is made up for by
walks through all accounts. An older state never overwrites a newer one, whoever comes in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from ledger import metrics
from ledger.core.account import Account
from ledger.events.figures import EPOCH, Figures, Gone, State, figures_of, microseconds, with_hold
from ledger.queries import Reading
from ledger.queries.live import first_ends, page_of_accounts

PAGE: Final = 500
"""How many balances are published at a time."""

SCRIPT_PAGE: Final = 100
"""How many of them Redis takes at a time: it serves nobody else meanwhile, for a millisecond or two."""

GATHER_SECONDS: Final = 0.1
"""How long, after publishing, further changes are gathered: of one account, only the last is published."""

WAITING_MAX: Final = 50_000
"""How many accounts may wait to be published, while Redis is away; past that, a walk makes up for them."""

KEPT_SECONDS: Final = 24 * 3600
"""How long a balance is kept that nobody publishes again: walks publish each of them far more often."""

TOMBSTONE_SECONDS: Final = 600
"""How long it is kept that an account was deleted, so that nobody who is late brings it back."""

WALK_PAGE: Final = 100
"""How many accounts a walk reads at a time: reading them takes the event loop some milliseconds."""

WALK_SECONDS: Final = 3600
"""How often all accounts are walked through."""

TURN_SECONDS: Final = 30
"""How long a walk may take for a page before another replica may walk too."""

GIVE_BACK_SECONDS_MAX: Final = 0.5

MARGIN: Final = timedelta(seconds=60)
"""How much older than it is a walk's reading counts as.

A change of policy has no number. One whose transaction had read the clock, but not committed, when a walk read the
account must win over that reading. No transaction lasts this long.
"""

PUBLISH: Final = """
local function newer(stored, given)
  for i = 1, 3 do
    local old, new = tonumber(stored[i] or -1), tonumber(given[i])
    if old ~= new then return new > old end
  end
  return true
end

local function differs(key, names, stored, given)
  for i, name in ipairs(names) do
    if name ~= 'order' and name ~= 'at' and stored[i] ~= given[i] then return true end
  end
  return redis.call('HLEN', key) ~= #names
end

local answers = {}
for n, state in ipairs(cjson.decode(ARGV[2])) do
  local key, seconds, message, names, values = KEYS[n], state[1], state[2], state[3], state[4]
  local stored = redis.call('HMGET', key, unpack(names))
  answers[n] = 0
  if newer(stored, values) then
    local news = differs(key, names, stored, values)
    local fields = {}
    for i, name in ipairs(names) do
      fields[2 * i - 1], fields[2 * i] = name, values[i]
    end
    redis.call('DEL', key)
    redis.call('HSET', key, unpack(fields))
    redis.call('EXPIRE', key, seconds)
    if news then redis.call('PUBLISH', ARGV[1], message) end
    answers[n] = news and 2 or 1
  end
end
return answers
"""
"""Writes states unless a newer one is there, and tells of those that differ.

KEYS: a hash for each state. ARGV: the channel, and the states in JSON, all of it text: seconds to keep it, message,
names and values of the fields. The first three are `life`, `sequence` and `order`, by which states are compared, in
this order of weight.
"""


class Balances:
    """Publishes the balances of a ledger. Any number of these may work at once, on any number of replicas."""

    def __init__(self, redis: Redis, reading: Reading, *, prefix: str, waiting_max: int = WAITING_MAX) -> None:
        self._redis = redis
        self._reading = reading
        self._prefix = prefix
        self._waiting_max = waiting_max
        self._write = redis.register_script(PUBLISH)
        self._waiting: dict[str, State] = {}
        self._is_walk_due = True
        metrics.REDIS_PUBLISHED.labels("balance")

    @property
    def channel(self) -> str:
        """The channel that messages are published on."""
        return f"{self._prefix}balances"

    def key(self, account_id: str) -> str:
        """Return the name of an account's hash."""
        return f"{self._prefix}balance:{account_id}"

    # -- what this replica commits --------------------------------------------------------------------------------

    def committed(self, accounts: Sequence[Account]) -> None:
        """Take over what a batch committed: called in the engine's hook."""
        for account in accounts:
            state = _state_of(account)
            if state is not None:
                self._waiting[account.account_id] = state
        if len(self._waiting) > self._waiting_max:
            self._waiting.clear()
            self._is_walk_due = True
        metrics.REDIS_WAITING.set(len(self._waiting))

    async def publish(self) -> bool:
        """Publish what waits, but not without end what comes meanwhile; return whether there was anything.

        What fails waits on, unless something newer does.
        """
        pages = math.ceil(len(self._waiting) / PAGE)
        for _ in range(pages):
            page = self._take()
            try:
                await self._publish_page(page)
            except BaseException:
                for state in page:
                    self._waiting.setdefault(state.account_id, state)
                raise
            finally:
                metrics.REDIS_WAITING.set(len(self._waiting))
            await asyncio.sleep(GATHER_SECONDS)
        return pages > 0

    def _take(self) -> list[State]:
        names = [name for name, _ in zip(self._waiting, range(PAGE), strict=False)]
        return [self._waiting.pop(name) for name in names]

    async def _publish_page(self, page: list[State]) -> None:
        living = [state.life for state in page if isinstance(state, Figures)]
        ends = await first_ends(self._reading, living, EPOCH) if living else {}
        states = [with_hold(s, ends.get(s.life)) if isinstance(s, Figures) else s for s in page]
        await self.write(states)

    async def write(self, states: Sequence[State], margin: timedelta = timedelta()) -> list[int]:
        """Write states; each comes to 0 (a newer one is there), 1 (it is no news) or 2 (it is, and was told)."""
        answers: list[int] = []
        for first in range(0, len(states), SCRIPT_PAGE):
            page = states[first : first + SCRIPT_PAGE]
            packed = msgspec.json.encode([_packed(state, margin) for state in page])
            answers += await self._write(keys=[self.key(s.account_id) for s in page], args=[self.channel, packed])
        metrics.REDIS_PUBLISHED.labels("balance").inc(sum(answer > 0 for answer in answers))
        return answers

    # -- what nobody published ------------------------------------------------------------------------------------

    async def walk_if_due(self) -> bool:
        """Publish every account where that is due: at the start, hourly, and when Redis is not the one it was.

        A key with the identity of the Redis that was walked through says so to all replicas, and is gone after an hour
        or with all else. One replica walks at a time.
        """
        walked, turn = f"{self._prefix}walked", f"{self._prefix}walking"
        run_id = str((await self._redis.info("server"))["run_id"])
        was = await self._redis.get(walked)
        if not self._is_walk_due and was == run_id:
            return True
        if not await self._redis.set(turn, "1", nx=True, ex=TURN_SECONDS):
            return True
        # A walk that makes up for what was lost cannot tell changes of policy of the last minute from older states.
        again = 2 * int(MARGIN.total_seconds()) if self._is_walk_due or was is not None else WALK_SECONDS
        self._is_walk_due = False  # What happens from now on may ask for another.
        try:
            if await self._walk(turn):
                await self._redis.set(walked, run_id, ex=again)
        except BaseException:
            self._is_walk_due = True
            raise
        finally:
            await self._give_back(turn)
        return True

    async def _walk(self, turn: str) -> bool:
        """Publish every account; False where the turn was lost meanwhile, maybe with all else that was in Redis."""
        last = 0
        while True:
            begun = time.perf_counter()
            accounts, ends = await page_of_accounts(self._reading, last, WALK_PAGE)
            await self.write([_as_read(account, ends.get(account.number)) for account in accounts], MARGIN)
            if not await self._redis.expire(turn, TURN_SECONDS):
                self._is_walk_due = True
                return False
            if not accounts:
                return True
            last = accounts[-1].number
            await asyncio.sleep(time.perf_counter() - begun)  # Half of the time is left to others.

    async def _give_back(self, turn: str) -> None:
        """Let another walk at once, if Redis answers; else the turn ends by itself."""
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(GIVE_BACK_SECONDS_MAX):
                await self._redis.delete(turn)


def _state_of(account: Account) -> State | None:
    """Return what is to be published of an account after its batch; None where nothing of it changed."""
    if account.changes.anonymised:
        return Gone(account_id=account.account_id, life=account.number, sequence=account.sequence, at=account.at)
    if account.changes.entries or account.changes.policy or account.is_new:
        return figures_of(account)
    return None


def _as_read(account: Account, first_hold_ends_at: datetime | None) -> Figures:
    """Return the figures of an account that was brought up to now in memory.

    What time has decided and nobody entered has no number yet: `sequence` is that of the last entry there is, so that
    whoever enters it has a higher one.
    """
    entered = account.sequence - len(account.changes.entries)
    return msgspec.structs.replace(with_hold(figures_of(account), first_hold_ends_at), sequence=entered)


def _packed(state: State, margin: timedelta) -> tuple[int, str, list[str], list[str]]:
    """Return what the script takes of a state: the fields of the hash begin with those by which states are compared."""
    shown = msgspec.to_builtins(state)
    fields = {"life": state.life, "sequence": state.sequence, "order": microseconds(state.at - margin), **shown}
    del fields["account_id"]
    kept = KEPT_SECONDS if isinstance(state, Figures) else TOMBSTONE_SECONDS
    return (
        kept,
        msgspec.json.encode(state).decode(),
        list(fields),
        ["" if v is None else str(v) for v in fields.values()],
    )
