"""The state machine: the same commands to the model and to a system, and every answer compared.

`LedgerMachine` is abstract. A test gives it a `System` (the pure core in memory, or a real server over HTTP)
by overriding `make_system`, and runs the machine's `TestCase`.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from . import strategies as worlds
from .comparing import answer_differences, shown
from .model import Model
from .model_answers import Expected
from .model_books import Job, end_of_period, instant_text, period_of
from .model_prices import PRICE_VERSION, Json

Answer = tuple[int, Json]


@dataclass(frozen=True)
class World:
    """A fresh start: the present instant, and the names of two accounts that do not exist yet."""

    now: datetime
    account_ids: tuple[str, str]


class System(Protocol):
    """What is tested. Commands take the bodies of the HTTP interface and return `(status, body)`.

    The body of a refusal is `{"error": {"code": …, "details": {…}}}`, with `details.retry_after` where the
    header is sent; whoever talks HTTP checks in passing that the header says the same.
    """

    def begin(self) -> World: ...

    def advance(self, to: datetime) -> None: ...

    def close(self) -> None: ...

    def put_account(self, account_id: str, body: Json) -> Answer: ...

    def patch_account(self, account_id: str, body: Json) -> Answer: ...

    def get_account(self, account_id: str) -> Answer: ...

    def put_cycle(self, account_id: str, month: str, status: str) -> Answer: ...

    def put_grant(self, account_id: str, grant_id: str, body: Json) -> Answer: ...

    def reserve(self, account_id: str, job_id: str, body: Json) -> Answer: ...

    def settle(self, account_id: str, job_id: str, body: Json) -> Answer: ...

    def release(self, account_id: str, job_id: str, body: Json) -> Answer: ...

    def refund(self, account_id: str, job_id: str, body: Json) -> Answer: ...

    def get_job(self, account_id: str, job_id: str, environment: str | None = None) -> Answer: ...

    def balance(self, account_id: str, at: datetime | None = None) -> Answer: ...

    def quote(self, body: Json) -> Answer: ...

    def usage(self, account_id: str, period: str) -> Answer: ...

    def statement(self, account_id: str, period: str) -> Answer: ...


class LedgerMachine(RuleBasedStateMachine):
    """Two accounts, a handful of jobs, keys and grants, and a clock that jumps to where it matters."""

    price_version = PRICE_VERSION
    transcript_length = 40

    def make_system(self) -> System:
        """The system under test, for one example."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.transcript: list[str] = []
        self.touched: set[tuple[str, str]] = set()
        self.moments: list[datetime] = []
        self.system = self.make_system()
        self.world = self.system.begin()
        self.model = Model(self.world.now, self.price_version)

    def teardown(self) -> None:
        self.system.close()

    # Asking both.

    def ask(self, name: str, expected: Expected, answer: Answer, *what: object) -> Expected:
        """Compare one answer with what the model expected, and fail with a text that can be read."""
        status, body = answer
        asked = f"{instant_text(self.model.now)} {name} {' '.join(shown(part) for part in what)}"
        outcome = f"{status} {((body or {}).get('error') or {}).get('code', '')}".rstrip()
        self.transcript.append(f"{asked} -> {outcome}")
        if found := answer_differences(expected, status, body):
            before = "\n  ".join(self.transcript[-self.transcript_length :])
            lines = "\n  ".join(found)
            raise AssertionError(
                f"{name} was not answered as the model expects\n\nwhat was done:\n  {before}\n\n"
                f"differences:\n  {lines}\n\nexpected: {expected.status} {shown(expected.body)}\n"
                f"actual:   {status} {shown(body)}"
            )
        if not name.startswith("get"):
            event(f"{name}: {outcome}")
        return expected

    def command(self, name: str, *what: object) -> Expected:
        """Give the same command to the model and to the system."""
        expected: Expected = getattr(self.model, name)(*what)
        ask: Callable[..., Answer] = getattr(self.system, name)
        answer = ask(*what)
        return self.ask(name, expected, answer, *what)

    def account(self, index: int) -> str:
        return self.world.account_ids[index]

    def jobs(self, *, still_open: bool | None = None) -> list[Job]:
        """The jobs of all accounts, or those that are open or closed; the order is that of reservation."""
        jobs = [job for account in self.model.accounts.values() for job in account.jobs.values()]
        return [job for job in jobs if still_open in (None, job.open)]

    def draw_job(self, data: st.DataObject, jobs: list[Job]) -> Job:
        """Draw one of some jobs; what a report shows of it is its name."""
        names = [(self.owner(job), job.job_id) for job in jobs]
        account_id, job_id = data.draw(st.sampled_from(names), label="job")
        return self.model.accounts[account_id].jobs[job_id]

    def owner(self, job: Job) -> str:
        return str(job.reservation["account_id"])

    def job_command(self, name: str, account_id: str, job_id: str, body: Json) -> Expected:
        self.touched.add((account_id, job_id))
        return self.command(name, account_id, job_id, body)

    def move_clock(self, to: datetime) -> None:
        self.system.advance(to)
        self.model.advance(to)
        self.touched |= {(self.owner(job), job.job_id) for job in self.jobs()}

    # Beginnings.

    @initialize(
        first=worlds.working_accounts(),
        second=st.one_of(*[worlds.working_accounts()] * 4, st.none()),
        first_credits=st.sampled_from([0, 100, 1500, 4000, 20000]),
        before_the_end=st.sampled_from([None, timedelta(minutes=10), timedelta(hours=20), timedelta(days=4)]),
    )
    def begin(self, first: Json, second: Json | None, first_credits: int, before_the_end: timedelta | None) -> None:
        """Open one account or both, at some distance from the end of a month."""
        if before_the_end is not None:
            near = end_of_period(period_of(self.model.now)) - before_the_end
            if near > self.model.now:
                self.move_clock(near)
        for index, body in enumerate((first, second)):
            if body is not None:
                self.command("put_account", self.account(index), body)
                if first_credits:
                    grant = {
                        "kind": "purchase",
                        "credits": first_credits,
                        "expires_at": None,
                        "reference": "first",
                    }
                    self.command("put_grant", self.account(index), "first", grant)
        self.moments.append(self.model.now)

    # Time.

    @rule(jump=worlds.jumps, seconds=st.integers(1, 90), days=st.integers(2, 20))
    def pass_time(self, jump: str, seconds: int, days: int) -> None:
        """Jump: a little, a lot, or to exactly where something falls due."""
        now, deadline = self.model.now, self.model.deadlines()[0]
        months_days = calendar.monthrange(now.year, now.month)[1]
        to = {
            "seconds": now + timedelta(seconds=seconds),
            "next deadline": deadline,
            "just before it": deadline - timedelta(microseconds=1),
            "midnight of the 1st": end_of_period(period_of(now)),
            "an hour": now + timedelta(hours=1),
            "a day": now + timedelta(days=1),
            "days": now + timedelta(days=days),
            "a month": now + timedelta(days=months_days),
        }[jump]
        self.moments.append(now)
        if to > now:
            self.transcript.append(f"{instant_text(now)} the clock moves to {instant_text(to)}")
            self.move_clock(to)

    # Accounts.

    @rule(account=worlds.accounts, change=worlds.account_changes)
    def change_account(self, account: int, change: tuple[str, Json]) -> None:
        command, body = change
        self.command(command, self.account(account), body)

    @rule(account=worlds.accounts, cut=worlds.cuts, body=worlds.reservations(), back=st.integers(0, 5))
    def cut_off(self, account: int, cut: Json, body: Json, back: int) -> None:
        """Cut an account off: nothing new begins, what is done is still answered. Mostly undo it."""
        account_id = self.account(account)
        if self.command("patch_account", account_id, cut).status != 200:
            return
        self.job_command("reserve", account_id, "job-cut-off", body)
        for job in list(self.model.accounts[account_id].jobs.values())[-1:]:
            self.job_command("reserve", account_id, job.job_id, job.request)
        if back:
            self.command("patch_account", account_id, worlds.restored)

    @rule(account=worlds.accounts, months=worlds.months_of_cycles, status=worlds.cycle_statuses)
    def note_cycles(self, account: int, months: list[str], status: str) -> None:
        """Note how one cycle was paid, or several in a row: up the ladder, or down."""
        for month in months:
            self.command("put_cycle", self.account(account), month, status)

    @rule(account=worlds.accounts, grant_id=worlds.grant_ids, grant=worlds.grants())
    def grant(self, account: int, grant_id: str, grant: tuple[Json, worlds.Ending]) -> None:
        body, ending = grant
        expires_at = self.instant_of_ending(ending)
        expires = None if expires_at is None else instant_text(expires_at)
        self.command("put_grant", self.account(account), grant_id, {**body, "expires_at": expires})

    @rule(data=st.data())
    def grant_again(self, data: st.DataObject) -> None:
        """Repeat a grant: word for word, or with another figure."""
        names = [
            (account_id, grant.grant_id)
            for account_id, account in self.model.accounts.items()
            for grant in account.grants.values()
            if grant.request
        ]
        if not names:
            return
        account_id, grant_id = data.draw(st.sampled_from(names), label="grant")
        grant = self.model.accounts[account_id].grants[grant_id]
        expires_at = grant.request["expires_at"]
        body = {**grant.request, "expires_at": None if expires_at is None else instant_text(expires_at)}
        if data.draw(st.booleans(), label="with other credits"):
            body["credits"] += 1 if body["credits"] > 0 else -1
        self.command("put_grant", account_id, grant.grant_id, body)

    def instant_of_ending(self, ending: worlds.Ending) -> datetime | None:
        now = self.model.now
        return {
            "never": None,
            "in an hour": now + timedelta(hours=1),
            "with the month": end_of_period(period_of(now)),
            "with the next deadline": self.model.deadlines()[0],
            "in three days": now + timedelta(days=3),
            "an hour ago": now - timedelta(hours=1),
        }[ending.name]

    # Jobs.

    @rule(account=worlds.accounts, body=worlds.reservations())
    def reserve_new(self, account: int, body: Json) -> None:
        """Reserve under a name that is free, while there is one."""
        if (job_id := self.free_job_id(account)) is not None:
            self.job_command("reserve", self.account(account), job_id, body)

    @rule(account=worlds.accounts, body=worlds.reservations(), data=st.data())
    def work_again(self, account: int, body: Json, data: st.DataObject) -> None:
        """The same as `work`: two rules are chosen twice as often as one."""
        self.work_once(account, body, data)

    @rule(account=worlds.accounts, body=worlds.reservations(), data=st.data())
    def work(self, account: int, body: Json, data: st.DataObject) -> None:
        self.work_once(account, body, data)

    def work_once(self, account: int, body: Json, data: st.DataObject) -> None:
        """Reserve and settle at once, so that there are soon charges to refund and overdrafts to pay."""
        if (job_id := self.free_job_id(account)) is not None:
            reserved = self.job_command("reserve", self.account(account), job_id, body)
            if reserved.status == 201:
                settlement = data.draw(worlds.settlements(body["lines"]), label="settlement")
                self.job_command("settle", self.account(account), job_id, settlement)

    @rule(account=worlds.accounts, body=worlds.reservations(), times=st.integers(2, 4))
    def reserve_several(self, account: int, body: Json, times: int) -> None:
        """Reserve the same work a few times, until something runs out: slots, a quota, funds."""
        body = {name: value for name, value in body.items() if name != "idempotency_key"}
        for _ in range(times):
            if (job_id := self.free_job_id(account)) is not None:
                self.job_command("reserve", self.account(account), job_id, body)

    def free_job_id(self, account: int) -> str | None:
        known = self.model.accounts.get(self.account(account))
        return next((name for name in worlds.JOB_IDS if known is None or name not in known.jobs), None)

    @precondition(lambda self: self.jobs())
    @rule(
        data=st.data(),
        new_ttl=st.sampled_from([None, 60]),
        other=st.sampled_from(["nothing", "nothing", "job_id", "job_id", "environment", "lines"]),
    )
    def reserve_again(self, data: st.DataObject, new_ttl: int | None, other: str) -> None:
        """Repeat a reservation, perhaps under another job id, perhaps with something else in it."""
        job = self.draw_job(data, self.jobs())
        body = dict(job.request)
        if new_ttl is not None:
            body |= {"ttl_seconds": new_ttl, "metadata": {"again": True}}
        if other == "environment":
            body["environment"] = "test" if body["environment"] == "live" else "live"
        elif other == "lines":
            body["lines"] = [*body["lines"], {"operation": "sentiment_analysis", "quantity": 1}]
        job_id = job.job_id if other != "job_id" else data.draw(worlds.job_ids, label="as")
        self.job_command("reserve", self.owner(job), job_id, body)

    @precondition(lambda self: self.jobs(still_open=True))
    @rule(data=st.data())
    def settle_open(self, data: st.DataObject) -> None:
        job = self.draw_job(data, self.jobs(still_open=True))
        body = data.draw(worlds.settlements(job.request["lines"]), label="body")
        self.job_command("settle", self.owner(job), job.job_id, body)

    @precondition(lambda self: self.jobs(still_open=False))
    @rule(data=st.data())
    def settle_closed(self, data: st.DataObject) -> None:
        """Settle what is closed: again with the same lines, or late, or with others."""
        job = self.draw_job(data, self.jobs(still_open=False))
        body = data.draw(worlds.settlements(job.request["lines"]), label="body")
        if job.status == "settled" and data.draw(st.booleans(), label="same lines"):
            rows = job.settlement["lines"]
            body["lines"] = [{"operation": row["operation"], "quantity": row["measured_quantity"]} for row in rows]
        self.job_command("settle", self.owner(job), job.job_id, body)

    @precondition(lambda self: self.jobs())
    @rule(data=st.data(), body=worlds.releases, closed=st.sampled_from([False, False, True]))
    def release(self, data: st.DataObject, body: Json, closed: bool) -> None:
        """Release what is open, or what is closed already."""
        job = self.draw_job(data, self.jobs(still_open=not closed) or self.jobs())
        self.job_command("release", self.owner(job), job.job_id, body)

    @precondition(lambda self: self.jobs(still_open=False))
    @rule(
        data=st.data(),
        refund_id=worlds.refund_ids,
        part=worlds.refunded_parts,
        own_name=st.sampled_from([True, True, True, False]),
    )
    def refund(self, data: st.DataObject, refund_id: str, part: int | None, own_name: bool) -> None:
        """Refund; mostly what was charged, under a name of the job's own so that the names do not run out."""
        charged = [job for job in self.jobs(still_open=False) if job.charge]
        jobs = data.draw(st.sampled_from([charged, charged, charged, self.jobs()]), label="among") or self.jobs()
        job = data.draw(st.sampled_from(jobs), label="job")
        if own_name:
            refund_id = f"{refund_id}-{job.job_id}"
        body = {"refund_id": refund_id, "credits": part, "reason": "…"}
        self.job_command("refund", self.owner(job), job.job_id, body)

    # Ways into the corners: what single steps would need much luck for.

    @rule(
        account=worlds.accounts,
        body=worlds.reservations(),
        amount=st.sampled_from([5, 40, 620, 1500]),
        of_month=st.booleans(),
        then=st.sampled_from(["settle", "settle", "release", "expire", "nothing"]),
        part=worlds.refunded_parts,
        data=st.data(),
    )
    def hold_past_an_end(
        self,
        account: int,
        body: Json,
        amount: int,
        of_month: bool,
        then: str,
        part: int | None,
        data: st.DataObject,
    ) -> None:
        """Hold credits of a grant past its end, perhaps also past that of the month; close; refund (F2, J14)."""
        account_id, job_id = self.account(account), self.free_job_id(account)
        if job_id is None:
            return
        ends = end_of_period(period_of(self.model.now)) if of_month else self.model.now + timedelta(minutes=5)
        self.move_clock(max(self.model.now, ends - timedelta(minutes=5)))
        plan = {"kind": "plan", "credits": amount, "expires_at": instant_text(ends)}
        self.command("put_grant", account_id, f"plan-{job_id}", plan)
        reserved = self.job_command("reserve", account_id, job_id, {**body, "ttl_seconds": 900})
        if then == "nothing" or reserved.status != 201:
            return
        self.move_clock(ends)
        if then == "expire":
            self.move_clock(self.model.accounts[account_id].jobs[job_id].expires_at)
        elif then == "release":
            self.job_command("release", account_id, job_id, {})
        else:
            settlement = data.draw(worlds.settlements(body["lines"]), label="settlement")
            self.job_command("settle", account_id, job_id, settlement)
            refund = {"refund_id": f"rf-{job_id}", "credits": part}
            self.job_command("refund", account_id, job_id, refund)

    @rule(
        account=worlds.accounts,
        drained=st.booleans(),
        jobs=st.lists(st.tuples(st.sampled_from([1, 7, 60]), st.sampled_from([0, 3, 60, 500])), min_size=2, max_size=3),
        held_on=st.sampled_from([0, 0, 40]),
    )
    def overdraw(self, account: int, drained: bool, jobs: list[tuple[int, int]], held_on: int) -> None:
        """Settle several jobs above their holds, with little or nothing else there (J12)."""
        account_id, opened = self.account(account), []
        for reserved, over in [*jobs, (held_on, 0)]:
            job_id = self.free_job_id(account)
            if job_id is not None and reserved:
                speech = {"operation": "tts_synthesis", "quantity": reserved}
                body = {"environment": "live", "lines": [speech]}
                if self.job_command("reserve", account_id, job_id, body).status == 201 and reserved != held_on:
                    opened.append((job_id, reserved + over))
        known = self.model.accounts.get(account_id)
        if drained and known is not None and (left := known.available(self.model.now)):
            name = f"drain-{len(known.grants)}"
            self.command("put_grant", account_id, name, {"kind": "adjustment", "credits": -left})
        for job_id, measured in opened:
            settlement = {"lines": [{"operation": "tts_synthesis", "quantity": measured}]}
            self.job_command("settle", account_id, job_id, settlement)

    # Reading.

    @rule(
        account=worlds.accounts,
        job_id=worlds.job_ids,
        environment=st.sampled_from(["live", "test"]),
        quote=worlds.quotes,
    )
    def read(self, account: int, job_id: str, environment: str, quote: Json) -> None:
        """A quote, and a job asked for in one environment only (J11)."""
        self.command("quote", quote)
        self.command("get_job", self.account(account), job_id, environment)

    @rule(account=worlds.accounts)
    def name_a_job_that_is_not_there(self, account: int) -> None:
        """A job of nobody, and one of the other account: neither exists for the asker (J11)."""
        theirs = self.model.accounts.get(self.account(1 - account))
        for job_id in ["job-of-nobody", *(list(theirs.jobs)[:1] if theirs else [])]:
            ours = self.model.accounts.get(self.account(account))
            if ours is None or job_id not in ours.jobs:
                settlement = {"lines": [{"operation": "agent_turn", "quantity": 1}]}
                self.job_command("settle", self.account(account), job_id, settlement)
                self.job_command("release", self.account(account), job_id, {})
                self.job_command("refund", self.account(account), job_id, {"refund_id": "rf", "credits": None})

    @rule(account=worlds.accounts, months_ago=st.integers(0, 2), data=st.data())
    def read_the_past(self, account: int, months_ago: int, data: st.DataObject) -> None:
        """The usage and the statement of a month, and the balance as it was: never before the account was."""
        known = self.model.accounts.get(self.account(account))
        period = period_of(self.model.now)
        for _ in range(months_ago):
            before = datetime.fromisoformat(f"{period}-01") - timedelta(days=1)
            if known is not None and period_of(before) >= period_of(known.created_at):
                period = period_of(before)
        self.command("usage", self.account(account), period)
        self.command("statement", self.account(account), period)
        if known is not None:
            moments = [*self.moments, *(since for since, *_ in known.history)]
            at = data.draw(st.sampled_from([at for at in moments if at >= known.created_at]), label="at")
            soon = self.model.now + timedelta(seconds=1)
            at = data.draw(st.sampled_from([at, at, at, soon]), label="or")
            self.command("balance", self.account(account), at)

    # After each step.

    @invariant()
    def model_is_sound(self) -> None:
        """The model first: a model that contradicts itself judges nobody."""
        self.model.check_invariants()

    @invariant()
    def figures_agree(self) -> None:
        """The accounts, their balances, and the jobs that the last step could have changed."""
        for account_id in self.model.accounts:
            self.look("get_account", account_id)
            self.look("balance", account_id)
        for account_id, job_id in sorted(self.touched):
            self.look("get_job", account_id, job_id)
        self.touched.clear()

    def look(self, name: str, *what: str) -> None:
        """Compare a read without a line in the transcript, unless it is the one that fails."""
        self.command(name, *what)
        self.transcript.pop()

    def teardown_reports(self) -> None:
        """Compare every month of every account; a test that wants to may call it at the end."""
        for account_id, account in self.model.accounts.items():
            for period in sorted({*account.flows, *(job.period for job in account.jobs.values())}):
                self.command("usage", account_id, period)
                self.command("statement", account_id, period)
