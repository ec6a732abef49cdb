"""A steady load of stories, each of which is told to its end: every command is repeated until it is answered.

What a story does is made from the seed, the round and its number. Commands of one job follow one another; those of
different jobs, also of one account, run side by side, and their order is only known to the journal.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import aiohttp

from ledger.tokens import Role
from tests.torture.stage import Replica, Stage

Json = dict[str, Any]
Kind = Literal["account", "grant", "reserve", "settle", "release", "refund"]

ATTEMPT_SECONDS_MAX: Final = 2.5
"""How long a caller waits before it asks again, elsewhere."""
RETRY_PAUSE_SECONDS: Final = (0.02, 0.2)
THINK_SECONDS_MAX: Final = 0.12
ANSWERED_SECONDS_MAX: Final = 120.0
"""How long a command may go without an answer, whatever happens: far more than any fault lasts."""
PATHS: Final = {
    "account": "",
    "grant": "/grants/{name}",
    "reserve": "/jobs/{name}",
    "settle": "/jobs/{name}/settle",
    "release": "/jobs/{name}/release",
    "refund": "/jobs/{name}/refunds",
}
SWEEPS: Final = ("expire_holds", "expire_grants", "grant_welcome")


@dataclass
class Command:
    """Something that was asked until it was answered; `name` is of the job or the grant."""

    kind: Kind
    account_id: str
    name: str
    body: Json
    attempts: int = 0
    status: int = 0
    answer: Json = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)
    """Answers that must never be given: a 5xx that is no 503, a 503 that does not say when to come back."""

    @property
    def path(self) -> str:
        return f"/v1/accounts/{self.account_id}{PATHS[self.kind].format(name=self.name)}"

    @property
    def method(self) -> str:
        return "PUT" if self.kind in ("account", "grant", "reserve") else "POST"

    @property
    def done(self) -> bool:
        """Whether it was carried out."""
        return self.status in (200, 201)

    @property
    def code(self) -> str:
        """Why it was refused."""
        return str(self.answer["error"]["code"]) if "error" in self.answer else ""


@dataclass(frozen=True)
class Cast:
    """An account, what it begins with, and the share of stories that is about it."""

    name: str
    weight: int
    credits: int
    policy: Json
    grants: tuple[int, int] | None = None
    """How many credits come in from time to time, at least and at most."""
    grants_end: bool = False
    """Whether those end within seconds."""


_WIDE: Final = {"max_requests": 100_000, "max_calls": 100_000}

CAST: Final = (
    Cast("hot", 50, 10**9, {"environments": {"live": _WIDE, "test": _WIDE}}),
    Cast("tight", 20, 500, {"environments": {"live": _WIDE, "test": _WIDE}}, grants=(50, 700)),
    Cast(
        "overage",
        15,
        500,
        {
            "payment_method_verified": True,
            "overage": {"enabled": True, "cap_usd": "1.50", "credit_price_usd": "0.001"},
            "environments": {"live": _WIDE, "test": _WIDE},
        },
        grants=(50, 300),
    ),
    Cast(
        "narrow",
        8,
        10**7,
        {"environments": {"live": {"max_requests": 2, "max_calls": 1, "period_credits": 40_000}, "test": {}}},
    ),
    Cast("ending", 10, 300, {"environments": {"live": _WIDE, "test": _WIDE}}, grants=(300, 2_000), grants_end=True),
)
"""The accounts: a hot one that nothing may ever refuse, and others that are short of something."""


class Load:
    """The callers, and everything they asked for."""

    def __init__(self, stage: Stage, session: aiohttp.ClientSession, seed: str, prefix: str, callers: int) -> None:
        self._stage = stage
        self._session = session
        self._seed = seed
        self._callers = callers
        self.accounts = {cast.name: f"{prefix}-{cast.name}" for cast in CAST}
        self.commands: list[Command] = []
        self.unanswered: Counter[str] = Counter()
        """Why a command had to be repeated."""
        self._over = False
        self._stories = itertools.count()
        self._stories_max = math.inf

    async def open_accounts(self) -> None:
        """Open the accounts and give them what they begin with."""
        rng = self._random("opening")
        for cast in CAST:
            account_id = self.accounts[cast.name]
            await self._ask(rng, Command("account", account_id, "", {"module_enabled": True, **cast.policy}))
            await self._ask(rng, Command("grant", account_id, "opening", _grant(cast.credits)))

    async def run(self) -> None:
        """Let the callers tell stories until `finish`, and then those that were begun to their end."""
        async with asyncio.TaskGroup() as callers:
            for _ in range(self._callers):
                callers.create_task(self._call())
            for cast in CAST:
                if cast.grants is not None:
                    callers.create_task(self._grant_now_and_then(cast))
            callers.create_task(self._sweep_now_and_then())

    def finish(self) -> None:
        """Begin no further story."""
        self._over = True

    def finish_after(self, stories: int) -> None:
        """Finish by itself when so many stories were begun."""
        self._stories_max = stories

    # -- callers ------------------------------------------------------------------------------------------------------

    def _random(self, what: object) -> random.Random:
        return random.Random(f"{self._seed} {what}")  # noqa: S311 - stories that can be told again, no secret

    async def _call(self) -> None:
        while not self._over:
            number = next(self._stories)
            if number >= self._stories_max:
                self.finish()
            rng = self._random(number)
            for step in _story(rng, self._account(rng), f"j{number}"):
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    continue
                await self._ask(rng, step)
                if not step.done:
                    break
                await asyncio.sleep(rng.uniform(0, THINK_SECONDS_MAX))

    def _account(self, rng: random.Random) -> str:
        cast = rng.choices(CAST, [each.weight for each in CAST])[0]
        return self.accounts[cast.name]

    async def _grant_now_and_then(self, cast: Cast) -> None:
        rng = self._random(f"grants of {cast.name}")
        assert cast.grants is not None
        number = 0
        while not self._over:
            number += 1
            end = None
            if cast.grants_end:
                end = datetime.now(UTC) + timedelta(seconds=rng.uniform(1, 6))
            body = _grant(rng.randint(*cast.grants), end)
            await self._ask(rng, Command("grant", self.accounts[cast.name], f"g{number}", body))
            await asyncio.sleep(rng.uniform(0.1, 1.0))

    async def _sweep_now_and_then(self) -> None:
        """Sweeps run beside everything else, on all services at once; what they answer is nobody's business."""
        rng = self._random("sweeps")
        while not self._over:
            name = rng.choice(SWEEPS)
            await asyncio.gather(*(self._sweep(replica, name) for replica in self._stage.replicas))
            await asyncio.sleep(rng.uniform(0.2, 1.5))

    async def _sweep(self, service: Replica, name: str) -> None:
        try:
            async with self._session.post(f"{service.url}/v1/sweeps/{name}", headers=service.headers()) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, rng: random.Random, command: Command) -> None:
        """Repeat a command, on whichever service, until it is answered."""
        self.commands.append(command)
        deadline = time.monotonic() + ANSWERED_SECONDS_MAX
        while not await self.attempt(command, rng.randrange(len(self._stage.replicas))):
            if time.monotonic() > deadline:
                command.defects.append(f"never answered: {dict(self.unanswered)}")
                return
            await asyncio.sleep(rng.uniform(*RETRY_PAUSE_SECONDS))

    async def attempt(self, command: Command, replica: int) -> bool:
        """Ask once, and tell whether there was an answer that counts."""
        command.attempts += 1
        service = self._stage.replicas[replica]
        role = Role.ADMIN if command.kind in ("account", "grant") else Role.GATEWAY
        try:
            async with self._session.request(
                command.method, service.url + command.path, json=command.body, headers=service.headers(role)
            ) as response:
                answer = await response.json()
                status, retry_after = response.status, response.headers.get("Retry-After")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.unanswered[type(error).__name__] += 1
            return False
        if status >= 500:
            self.unanswered[str(status)] += 1
            if status != 503 or retry_after is None:
                command.defects.append(f"{status}: {answer}")
            return False
        command.status, command.answer = status, answer
        return True


# -- stories ----------------------------------------------------------------------------------------------------------


def _grant(credits: int, end: datetime | None = None) -> Json:
    expires_at = None if end is None else end.isoformat().replace("+00:00", "Z")
    return {"kind": "purchase", "credits": credits, "expires_at": expires_at, "reference": None}


def _line(operation: str, quantity: float | None) -> Json:
    return {"operation": operation, "quantity": quantity}


def _reserve(rng: random.Random, account_id: str, job_id: str, lines: Sequence[Json], **more: object) -> Command:
    body = {"environment": rng.choices(["live", "test"], [4, 1])[0], "lines": list(lines), **more}
    if rng.random() < 0.3:
        body["idempotency_key"] = f"key-{job_id}"
    if rng.random() < 0.2:
        body["metadata"] = {"story": job_id}
    return Command("reserve", account_id, job_id, body)


def _settle(rng: random.Random, account_id: str, job_id: str, lines: Sequence[Json]) -> Command:
    body: Json = {"lines": list(lines)}
    if rng.random() < 0.2:
        body["result"] = {"text": "x" * rng.choice([1, 100, 20_000])}
    return Command("settle", account_id, job_id, body)


def _story(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    """Yield the commands of one job, and the seconds that pass between them."""
    tell = rng.choices([_turn, _overrun, _call, _released, _abandoned, _late, _refunded], [30, 15, 15, 10, 8, 7, 15])[0]
    yield from tell(rng, account_id, job_id)


def _turn(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    lines = [_line("agent_turn", 1)]
    if rng.random() < 0.4:
        lines.append(_line("image_analysis", rng.randint(1, 3)))
    yield _reserve(rng, account_id, job_id, lines)
    yield _settle(rng, account_id, job_id, lines)


def _overrun(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    """More is consumed than was held: overage, and overdraft where there is nothing else (J12)."""
    held = rng.randint(10, 300)
    yield _reserve(rng, account_id, job_id, [_line("tts_synthesis", held)])
    lines = [_line("tts_synthesis", held + rng.randint(1, 400)), _line("audio_transcription", 10.2)]
    yield _settle(rng, account_id, job_id, lines)


def _call(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    """A call, for less than was asked where that is all there is (J8)."""
    asked = rng.choice([60, 150, 600])
    lines = [_line("voice_call_minute", asked)]
    reserve = _reserve(rng, account_id, job_id, lines, transferable=rng.random() < 0.5, allow_partial=True)
    yield reserve
    spoken = [_line("voice_call_minute", rng.choice([0, 30, 61, asked]))]
    if reserve.body["transferable"]:
        spoken.append(_line("voice_transfer_minute", rng.choice([0, 30, None])))
    yield _settle(rng, account_id, job_id, spoken)


def _released(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    yield _reserve(rng, account_id, job_id, [_line("document_analysis", 1)])
    yield Command(
        "release", account_id, job_id, {"error_code": "upstream_unavailable", "originated": rng.random() < 0.5}
    )


def _abandoned(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    """Nobody closes it: its hold goes back by itself (J5)."""
    yield _reserve(rng, account_id, job_id, [_line("video_analysis", 1)], ttl_seconds=rng.randint(1, 4))


def _late(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    """It is closed about when it expires: either before, or not at all (J6)."""
    yield _reserve(rng, account_id, job_id, [_line("sentiment_analysis", 1)], ttl_seconds=1)
    yield rng.uniform(0.7, 1.2)
    yield _settle(rng, account_id, job_id, [_line("sentiment_analysis", 1)])


def _refunded(rng: random.Random, account_id: str, job_id: str) -> Iterator[Command | float]:
    yield from _turn(rng, account_id, job_id)
    first = rng.randint(1, 10)
    yield Command("refund", account_id, job_id, {"refund_id": f"{job_id}-1", "credits": first})
    if rng.random() < 0.5:
        yield Command("refund", account_id, job_id, {"refund_id": f"{job_id}-2", "credits": None})
