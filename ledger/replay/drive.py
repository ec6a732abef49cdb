"""Drives a running service with a trace, and checks every answer against what the trace says it should be.

Sixty-four workers take the steps of `schedule` in the order in which they are due, each waiting for its
step's time (none, at speed 0) and then for its answer. A close waits for its job's reservation, so the
commands of one job stay in order however slow the service is.

The same trace may be replayed again: identifiers depend on file and row alone. A reservation then meets a job
that is closed, reads how it ended, and closes it once more, which must change nothing.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field

import aiohttp
import msgspec
from yarl import URL

from ledger.replay.bodies import job_path, release, reservation, settlement
from ledger.replay.client import Answer, Client, Failure, Patience, ReplayStoppedError
from ledger.replay.prices import PriceList
from ledger.replay.tally import Audit, Problem, Tally
from ledger.replay.trace import NS_PER_SECOND, Close, JobPlan, Step, Trace, schedule

__all__ = ["GRANT_CREDITS", "Settings", "replay"]

CONNECTIONS = 64
CEILING = 10_000
"""The most simultaneous requests, and calls, of each environment of an account of the replay."""

GRANT_ID = "replay"
GRANT_CREDITS = 5_000_000
AUDIT_SECONDS_MAX = 3_600.0

CLOSED = {Close.SETTLE: "settled", Close.RELEASE: "released", Close.EXPIRE: "expired"}
"""How a job of the trace ends."""

ENDED_CODES = frozenset({"result_not_replayable", "job_not_completed"})
"""What the reservation of a job that has ended may be refused with (J10), apart from its whole answer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Which service to drive, and how: at `speed` 0 as fast as it can, at 2 twice as fast as the trace."""

    url: URL
    admin_token: str = field(repr=False)
    gateway_token: str = field(repr=False)
    speed: float = 0.0
    patience: Patience = Patience()  # noqa: RUF009 -- frozen


class _Job(msgspec.Struct, frozen=True):
    status: str
    price_version: str
    created_at: str
    held_credits: int
    credits_charged: int | None = None


class _Settled(msgspec.Struct, frozen=True):
    credits_charged: int
    credits_returned: int | None = None
    credits_over_hold: int | None = None


class _Released(msgspec.Struct, frozen=True):
    credits_returned: int


class _Balance(msgspec.Struct, frozen=True):
    available: int
    held: int
    overdraft: int

    @property
    def worth(self) -> int:
        """What only a charge changes: a hold, and its way back, move credits between the parts."""
        return self.available + self.held - self.overdraft


class _AuditAnswer(msgspec.Struct, frozen=True):
    ok: bool
    discrepancies: list[msgspec.Raw]


@dataclass(slots=True)
class _Flight:
    """A job under way: `opened` when its reservation has an answer, `job` when that was a job's."""

    plan: JobPlan
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    job: _Job | None = None
    was_closed: bool = False


async def replay(trace: Trace, settings: Settings, advance: Callable[[], None]) -> Tally:
    """Replay `trace`, calling `advance` for each job that is done with, and return what was seen.

    Raises `ReplayStoppedError` when the service cannot be used at all (nothing is done then) or refuses to
    set the accounts up. That it went away later is told by `Tally.stopped`.
    """
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session:
        client = Client(
            session,
            settings.url,
            admin=settings.admin_token,
            gateway=settings.gateway_token,
            patience=settings.patience,
        )
        run = _Run(client, trace, settings.speed, advance)
        await run.prepare()
        await run.drive()
        await run.check()
        run.tally.retries = client.retries
        return run.tally


class _Run:
    """One replay: `prepare`, `drive`, `check`, in this order."""

    def __init__(self, client: Client, trace: Trace, speed: float, advance: Callable[[], None]) -> None:
        self.client = client
        self.trace = trace
        self.speed = speed
        self.advance = advance
        self.tally = Tally()
        self.prices: dict[str, PriceList] = {}
        self.flights: dict[int, _Flight] = {}
        self.before: dict[str, _Balance] = {}
        self.started = 0.0

    # The accounts.

    async def prepare(self) -> None:
        """Learn the prices, set the accounts up (again: no change), read their balances."""
        await self._first_prices()
        await _in_parallel(self._set_up(account) for account in self.trace.accounts())

    async def _first_prices(self) -> None:
        answer = await self.client.first("/v1/prices")
        if answer.status != 200:
            failure = answer.failure()
            raise ReplayStoppedError(f"the service does not tell its prices: {failure.code} {failure.message}")
        try:
            self._remember(answer.read(PriceList))
        except msgspec.DecodeError as error:
            raise ReplayStoppedError(f"this is not a Gateway Ledger: its prices are unreadable ({error})") from error

    def _remember(self, prices: PriceList) -> PriceList:
        self.prices[prices.version] = prices
        return prices

    async def _set_up(self, account: str) -> None:
        quota = {"max_requests": CEILING, "max_calls": CEILING}
        policy = {"module_enabled": True, "environments": {"test": quota, "live": quota}}
        grant = {"kind": "purchase", "credits": GRANT_CREDITS, "reference": "replay"}
        for path, body in (
            (f"/v1/accounts/{account}", policy),
            (f"/v1/accounts/{account}/grants/{GRANT_ID}", grant),
        ):
            answer = await self.client.admin("PUT", path, msgspec.json.encode(body))
            if answer.status not in (200, 201):
                failure = answer.failure()
                raise ReplayStoppedError(f"{account} cannot be set up: {failure.code} {failure.message}")
        self.before[account] = await self._balance(account)

    async def _balance(self, account: str) -> _Balance:
        answer = await self.client.gateway("GET", f"/v1/accounts/{account}/balance")
        try:
            return answer.read(_Balance)
        except msgspec.DecodeError as error:
            raise ReplayStoppedError(f"the balance of {account} cannot be read: {answer.failure()}") from error

    # The jobs.

    async def drive(self) -> None:
        """Send everything. A service that goes away for good ends it early, see `Tally.stopped`."""
        steps = schedule(self.trace.plans())
        self.started = time.perf_counter()
        try:
            await _in_parallel(self._work(steps) for _ in range(CONNECTIONS))
        except ReplayStoppedError as stopped:
            self.tally.stopped = str(stopped)
        self.tally.seconds = time.perf_counter() - self.started

    async def _work(self, steps: Iterator[Step]) -> None:
        for step in steps:
            flight = self._flight(step)
            await self._wait_until_due(step.at_ns)
            try:
                if step.closing:
                    await flight.opened.wait()
                    await self._close(flight)
                else:
                    await self._reserve(flight)
            except msgspec.DecodeError as error:
                self._unexpected(flight.plan, f"an answer that cannot be read: {error}")
            finally:
                flight.opened.set()
            if step.closing or step.plan.close is Close.EXPIRE:
                self.advance()

    def _flight(self, step: Step) -> _Flight:
        if step.closing:
            return self.flights.pop(step.plan.row.number)
        flight = _Flight(step.plan)
        if step.plan.close is not Close.EXPIRE:
            self.flights[step.plan.row.number] = flight
        return flight

    async def _wait_until_due(self, at_ns: int) -> None:
        if self.speed == 0:
            return
        due = self.started + at_ns / NS_PER_SECOND / self.speed
        late = time.perf_counter() - due
        if late < 0:
            await asyncio.sleep(-late)
        else:
            self.tally.late_seconds_max = max(self.tally.late_seconds_max, late)

    async def _send(self, command: str, plan: JobPlan, suffix: str, body: bytes) -> Answer:
        start = time.perf_counter()
        answer = await self.client.gateway("PUT" if not suffix else "POST", job_path(plan) + suffix, body)
        self.tally.answered(command, time.perf_counter() - start)
        return answer

    async def _send_times(self, command: str, times: int, plan: JobPlan, suffix: str, body: bytes) -> Answer:
        """The first answer. A second one has to be the same, and `200` where the first was a success."""
        answer = await self._send(command, plan, suffix, body)
        for _ in range(times - 1):
            again = await self._send(f"{command} again", plan, suffix, body)
            if not _same(answer, again):
                self.tally.problem(
                    Problem.DUPLICATE,
                    f"{plan.job_id}: {command} answered {_brief(answer)}, then {_brief(again)}",
                )
        return answer

    async def _reserve(self, flight: _Flight) -> None:
        plan = flight.plan
        totals = self.tally.operations[plan.operation]
        totals.jobs += 1
        body = reservation(plan, self.trace.stem, self.speed)
        answer = await self._send_times("reserve", plan.reserve_times, plan, "", body)
        if answer.status in (200, 201):
            job = answer.read(_Job)
        elif answer.status == 409 and answer.failure().code in ENDED_CODES:
            job = await self._read_job(plan)
        else:
            self._refused(plan, "reserve", answer.failure())
            return
        flight.job = job
        if job.status != "reserved":
            flight.was_closed = True
            self._check_ended(plan, job)
        elif plan.close is Close.EXPIRE and answer.status == 200 and answer.attempts == 1:
            totals.already_done += 1
        else:
            totals.reserved += job.held_credits
            totals.left_open += job.held_credits

    async def _read_job(self, plan: JobPlan) -> _Job:
        start = time.perf_counter()
        answer = await self.client.gateway("GET", job_path(plan))
        self.tally.answered("read", time.perf_counter() - start)
        return answer.read(_Job)

    def _check_ended(self, plan: JobPlan, job: _Job) -> None:
        """A job that an earlier run ended has to have ended as the trace says."""
        self.tally.operations[plan.operation].already_done += 1
        self.tally.earlier_credits += job.credits_charged or 0
        if job.status == CLOSED[plan.close]:
            return
        if job.status == "expired":
            self.tally.problem(Problem.LOST, f"{plan.job_id} had expired before it was closed")
        else:
            self._unexpected(plan, f"it was {job.status} before, not {CLOSED[plan.close]}")

    async def _close(self, flight: _Flight) -> None:
        """Close a job that is open, or that has ended as it should: then nothing may change."""
        job = flight.job
        if job is None or (flight.was_closed and job.status != CLOSED[flight.plan.close]):
            return
        if flight.plan.close is Close.RELEASE:
            await self._release(flight, job)
        else:
            await self._settle(flight, job)

    async def _settle(self, flight: _Flight, job: _Job) -> None:
        plan = flight.plan
        answer = await self._send_times("settle", plan.settle_times, plan, "/settle", settlement(plan, self.trace.stem))
        if answer.status != 200:
            self._refused(plan, "settle", answer.failure())
            return
        settled = answer.read(_Settled)
        await self._check_charge(plan, job, settled.credits_charged)
        if flight.was_closed:
            return
        totals = self.tally.operations[plan.operation]
        totals.charged += settled.credits_charged
        totals.returned += settled.credits_returned or 0
        totals.over_hold += settled.credits_over_hold or 0
        totals.left_open -= job.held_credits
        self.tally.charged_by_account[plan.account_id] += settled.credits_charged

    async def _check_charge(self, plan: JobPlan, job: _Job, charged: int) -> None:
        """A job pays the prices in force when it was reserved (P9)."""
        prices = self.prices.get(job.price_version) or await self._prices_of(job)
        if prices is None:
            self._unexpected(plan, f"its price version {job.price_version} cannot be read")
            return
        try:
            expected = prices.cost(plan.settled)
        except KeyError as error:
            self._unexpected(plan, f"price version {prices.version} has no price for {error}")
            return
        if charged != expected:
            self.tally.problem(Problem.WRONG_CHARGE, f"{plan.job_id} was charged {charged:,} credits, not {expected:,}")

    async def _prices_of(self, job: _Job) -> PriceList | None:
        query = URL.build(query={"at": job.created_at}).raw_query_string
        answer = await self.client.gateway("GET", f"/v1/prices?{query}")
        if answer.status != 200:
            return None
        prices = self._remember(answer.read(PriceList))
        return prices if prices.version == job.price_version else None

    async def _release(self, flight: _Flight, job: _Job) -> None:
        plan = flight.plan
        answer = await self._send("release", plan, "/release", release(plan, self.trace.stem))
        if answer.status != 200:
            self._refused(plan, "release", answer.failure())
            return
        if flight.was_closed:
            return
        returned = answer.read(_Released).credits_returned
        if returned != job.held_credits:
            self._unexpected(plan, f"{returned:,} credits came back of {job.held_credits:,} held")
        totals = self.tally.operations[plan.operation]
        totals.returned += returned
        totals.left_open -= job.held_credits

    def _refused(self, plan: JobPlan, command: str, failure: Failure) -> None:
        self.tally.refusals[failure.code] += 1
        kind = Problem.LOST if failure.code == "job_not_completed" else Problem.REFUSED
        self.tally.problem(kind, f"{plan.job_id}: {command} got {failure.code} {failure.message}".rstrip())

    def _unexpected(self, plan: JobPlan, text: str) -> None:
        self.tally.problem(Problem.UNEXPECTED, f"{plan.job_id}: {text}")

    # The end.

    async def check(self) -> None:
        """Compare the balances with the charges, and ask the service to audit itself."""
        if self.tally.stopped is not None:
            return
        try:
            for account in self.before:
                self._check_balance(account, await self._balance(account))
            self.tally.audit = await self._audit()
        except ReplayStoppedError as stopped:
            self.tally.stopped = str(stopped)

    def _check_balance(self, account: str, now: _Balance) -> None:
        self.tally.balances_checked += 1
        expected = self.before[account].worth - self.tally.charged_by_account[account]
        if now.worth != expected:
            self.tally.problem(
                Problem.BALANCE,
                f"{account} has {now.worth:,} credits, held ones included, and should have {expected:,}",
            )

    async def _audit(self) -> Audit:
        answer = await self.client.admin("POST", "/v1/audit", b'{"account_id":null}', AUDIT_SECONDS_MAX)
        if answer.status != 200:
            failure = answer.failure()
            return Audit(False, f"refused: {failure.code} {failure.message}".rstrip())
        try:
            audit = answer.read(_AuditAnswer)
        except msgspec.DecodeError as error:
            return Audit(False, f"its answer cannot be read: {error}")
        if audit.ok and not audit.discrepancies:
            return Audit(True, "clean")
        first = ", ".join(bytes(each).decode("utf-8", "replace") for each in audit.discrepancies[:3])
        return Audit(False, f"{len(audit.discrepancies):,} discrepancies: {first}")


def _same(first: Answer, again: Answer) -> bool:
    """Whether the second answer repeats the first; a refusal repeats its code, under another request id."""
    if first.status >= 400:
        return again.status == first.status and again.failure().code == first.failure().code
    return again.status == 200 and msgspec.json.decode(again.body) == msgspec.json.decode(first.body)


def _brief(answer: Answer) -> str:
    return f"{answer.status} {answer.body[:300].decode('utf-8', 'replace')}"


async def _in_parallel(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Do all of it at once. The first `ReplayStoppedError` ends the rest, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except ExceptionGroup as errors:
        stopped, others = errors.split(ReplayStoppedError)
        if stopped is None or others is not None:
            raise
        raise stopped.exceptions[0] from None
