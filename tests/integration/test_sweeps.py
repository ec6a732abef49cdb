"""The sweeps on a real database: each does its work, once, in pages, whatever interrupts it (contract S)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import asyncpg
import msgspec
import pytest

from jobs import work
from jobs.runner import LastRun, Runner
from jobs.scheduler import _first_run
from jobs.sweep import Context, Sweep
from jobs.sweeps import (
    SWEEPS,
    expire_holds,
)
from ledger.api.gauges import Gauges
from ledger.api.services import Services, SweepsBusy
from ledger.audit import audit
from ledger.core import commands
from ledger.core.commands import BringUp, BroughtUp, Line, PutAccount, PutGrant, Reserve
from ledger.core.periods import period_end
from ledger.database import health_pool, operator_pool
from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from ledger.engine import CommandFailed
from ledger.queries.closing import closing_statements
from ledger.queries.events import events
from ledger.queries.jobs import job as read_job
from ledger.queries.paging import PageRequest
from ledger.queries.statements import Statement, statement
from tests.support.history import BOTH, Customer, set_clock
from tests.support.scraping import scrape_here
from tests.support.sweeping import (
    END,
    KEPT,
    LEAVING,
    OWED,
    carry_out,
    dump,
    fetch,
    services_on,
    small_pages,
    sweep,
    sweep_all,
    write_year,
)

YEAR = "template_year"
CHANGING = [name for name in SWEEPS if name != "audit"]
EVERYBODY = len(KEPT) + len(LEAVING) + len(OWED)


class Interrupted(Exception):
    """Something happens in the middle of a run."""


@pytest.fixture(scope="session")
def year_template(postgres: EmbeddedPostgres, migrated_template: str) -> str:
    """The name of a database in which something is due for every sweep."""

    async def make() -> None:
        urls = await postgres.create_database(YEAR, migrated_template)
        await write_year(urls.service)

    asyncio.run(make())
    return YEAR


@pytest.fixture
def year(postgres: EmbeddedPostgres, year_template: str) -> Iterator[ConnectionUrls]:
    """A database of one's own with that year."""
    name = f"test_{uuid.uuid4().hex}"
    yield asyncio.run(postgres.create_database(name, year_template))
    asyncio.run(_drop(postgres, name))


async def _drop(postgres: EmbeddedPostgres, name: str) -> None:
    connection = await asyncpg.connect(postgres.url("postgres", "postgres"))
    try:
        await connection.execute(f'drop database "{name}" with (force)')
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def undisturbed(postgres: EmbeddedPostgres, year_template: str) -> dict[str, dict[str, list[str]]]:
    """All tables after one undisturbed run of each sweep, each on a year of its own."""

    async def run(name: str) -> dict[str, list[str]]:
        urls = await postgres.create_database(f"undisturbed_{name}", year_template)
        async with services_on(urls.service) as services:
            await sweep(services, name)
        rows = await dump(urls.owner)
        await _drop(postgres, f"undisturbed_{name}")
        return rows

    async def run_all() -> dict[str, dict[str, list[str]]]:
        return {name: await run(name) for name in CHANGING}

    return asyncio.run(run_all())


@pytest.fixture
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two accounts, batches of three rows: there is always a next one."""
    for module, name, size in small_pages():
        monkeypatch.setattr(module, name, size)


# -- what each does ------------------------------------------------------------------------------------------------


JOBS_LEFT = 16
"""Of an account that leaves: four times two jobs and one lost, the dear one, two that are open … and so on."""

DOES = {
    "expire_holds": {"accounts": 5, "holds_expired": 5, "credits_returned": 55},
    "grant_welcome": {"welcomes_granted": 3, "credits_granted": 9_000},
    "expire_grants": {"accounts": 5, "grants_expired": 5},
    "purge_results": {"results_deleted": 35},
    "purge_usage_records": {"records_deleted": 20},
    "close_period": {"accounts": EVERYBODY, "months_closed": 13 * EVERYBODY, "months_waiting": 0},
    "delete_accounts": {"accounts_deleted": 2, "holds_ended": 4, "months_closed": 26},
}


@pytest.mark.usefixtures("_small_pages")
@pytest.mark.parametrize("name", CHANGING)
async def test_a_sweep_does_its_work_and_nothing_twice(
    year: ConnectionUrls, undisturbed: dict[str, dict[str, list[str]]], name: str
) -> None:
    async with services_on(year.service) as services:
        first = await sweep(services, name)
        assert {item: first[item] for item in DOES[name]} == DOES[name]
        assert tuple(first) == SWEEPS[name].counts
        assert not any((await sweep(services, name)).values())
        assert (await audit(services.pool)).ok
    assert await dump(year.owner) == undisturbed[name]


@pytest.mark.usefixtures("_small_pages")
@pytest.mark.parametrize("name", CHANGING)
async def test_killed_in_the_middle_and_run_again_it_ends_as_if_undisturbed(
    year: ConnectionUrls, undisturbed: dict[str, dict[str, list[str]]], name: str
) -> None:
    """A process is killed after its first page, another after its second: what they did stays, the rest is done."""
    for pages in (1, 2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.sweeping", year.service, name, str(pages), stderr=subprocess.DEVNULL
        )
        assert await process.wait() in ((-signal.SIGKILL,) if pages == 1 else (-signal.SIGKILL, 0))
    async with services_on(year.service) as services:
        await sweep(services, name)
        assert (await audit(services.pool)).ok
    assert await dump(year.owner) == undisturbed[name]


@pytest.mark.usefixtures("_small_pages")
@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("how", ["it fails", "it is cancelled"])
async def test_interrupted_anywhere_and_run_again_it_ends_as_if_undisturbed(
    year: ConnectionUrls, undisturbed: dict[str, dict[str, list[str]]], name: str, how: str
) -> None:
    calls = count()

    def interrupt(_: int) -> None:
        """After each page, then after each but the first of a run: every run gets further than the one before."""
        if next(calls) % 3 != 1:
            raise Interrupted if how == "it fails" else asyncio.CancelledError

    async with services_on(year.service) as services:
        for _ in range(200):
            try:
                await sweep(services, name, interrupt)
            except (Interrupted, asyncio.CancelledError):
                continue
            break
        else:
            pytest.fail("it never came to its end")
        await sweep(services, name)
        assert (await audit(services.pool)).ok
    assert await dump(year.owner) == undisturbed[name]


async def test_all_of_them_leave_books_that_add_up(year: ConnectionUrls) -> None:
    async with services_on(year.service) as services:
        await sweep_all(services)
        assert await sweep(services, "audit") | {"entries": 0, "postings": 0, "jobs": 0} == {
            "accounts": EVERYBODY,
            "entries": 0,
            "postings": 0,
            "jobs": 0,
            "discrepancies": 0,
        }


async def test_a_discrepancy_is_counted(year: ConnectionUrls) -> None:
    async with services_on(year.service) as services:
        await services.pool.execute("update ledger.balances set available = available + 1 where account = 1")
        assert (await sweep(services, "audit"))["discrepancies"] >= 1


async def test_an_account_with_more_due_holds_than_a_batch_ends(year: ConnectionUrls) -> None:
    async with services_on(year.service) as services:
        quota = {"live": commands.QuotaChange(max_requests=2_000)}
        change = commands.PolicyChange(quotas=quota)  # type: ignore[arg-type] # the keys are environments
        await carry_out(services, commands.PatchAccount(account_id="keeps-1", change=change))
        reserves = [
            Reserve(
                account_id="keeps-1",
                job_id=f"many-{n}",
                environment="live",
                lines=(Line("sentiment_analysis", 1),),
                ttl_seconds=5,
            )
            for n in range(1_100)
        ]
        await asyncio.gather(*(carry_out(services, reserve) for reserve in reserves))
        await set_clock(services.pool, END + timedelta(seconds=5))
        assert (await sweep(services, "expire_holds"))["holds_expired"] >= 1_100


# -- retention -----------------------------------------------------------------------------------------------------


async def test_results_are_really_gone_and_the_charge_stays(year: ConnectionUrls) -> None:
    """R1: 24 hours from the close; what is younger stays."""
    async with services_on(year.service) as services:
        await sweep(services, "purge_results")
        closed = [row[0] for row in await fetch(services, "select closed_at from ledger.job_results")]
        assert closed
        assert min(closed) > END - timedelta(hours=24)
        old = await read_job(services.primary, "keeps-1", "keeps-1-autumn-1")
        assert old is not None
        assert (old.result_state, old.credits_charged, old.settled_lines) == ("expired", 40, None)
    assert "keeps-1-autumn-1-result" not in str(await dump(year.owner))


async def test_usage_records_are_kept_400_days(year: ConnectionUrls) -> None:
    """R3: the instant at which the 400 days are over is past them."""
    async with services_on(year.service) as services:
        first = await services.pool.fetchval("select min(closed_at) from ledger.usage_records")
        await services.pool.execute("update ledger.clock set now = $1", first + timedelta(days=500))
        await sweep(services, "purge_usage_records")
        assert await services.pool.fetchval("select min(closed_at) from ledger.usage_records") > first + timedelta(100)


# -- months --------------------------------------------------------------------------------------------------------


async def test_a_closed_statement_is_kept_and_equals_what_was_shown_before(year: ConnectionUrls) -> None:
    async with services_on(year.service) as services:
        asked = [(name, month) for name in (*KEPT, *OWED) for month in ("2026-09", "2026-10", "2027-08", "2027-09")]
        before = {key: await statement(services.primary, *key) for key in asked}
        await sweep(services, "close_period")
        for key, shown in before.items():
            assert shown is not None
            assert await statement(services.primary, *key) == msgspec.structs.replace(shown, status="closed")
        await services.pool.execute("update ledger.periods set granted = granted + 1")
        kept = await statement(services.primary, "keeps-1", "2026-09")
        assert kept is not None
        assert kept.granted == before["keeps-1", "2026-09"].granted  # type: ignore[union-attr] # it was shown
        assert kept.overage.credits > 0
        assert kept.overage.usd != "0.00"


async def test_statements_of_many_accounts_are_those_of_each(filled: ConnectionUrls) -> None:
    """Overdrafts that were covered since, refunds of the month before, holds over midnight, a grant that ended."""
    async with services_on(filled.service) as services:
        rows = await fetch(services, "select account, account_id from ledger.accounts where account_id is not null")
        now = await services.pool.fetchval("select now from ledger.clock")
        assert period_end("2026-11") < now
        for row in rows:
            await carry_out(services, BringUp(account_id=row["account_id"]))
        many = await closing_statements(services.primary, [row["account"] for row in rows], "2026-11")
        assert many
        for row in rows:
            one = await statement(services.primary, row["account_id"], "2026-11")
            assert isinstance(one, Statement)
            assert many[row["account"]] == msgspec.structs.replace(one, status="closed")


async def test_an_overdraft_at_the_end_of_a_month_that_was_covered_since(database: ConnectionUrls) -> None:
    async with services_on(database.service) as services:
        await set_clock(services.pool, datetime(2026, 11, 30, 12, tzinfo=UTC))
        deep = Customer(services.engine, "deep")
        await deep.opens()
        await deep.reserves("call", ("tts_synthesis", 3_000))
        await deep.settles("call", ("tts_synthesis", 3_700))
        await set_clock(services.pool, datetime(2026, 12, 1, tzinfo=UTC))  # at midnight: in the new month
        await deep.gets("inv", "purchase", 500)
        await set_clock(services.pool, datetime(2026, 12, 2, tzinfo=UTC))
        await deep.gets("inv-2", "purchase", 1_000)
        shown = await statement(services.primary, "deep", "2026-11")
        await sweep(services, "close_period")
        closed = await statement(services.primary, "deep", "2026-11")
        assert shown is not None
        assert closed == msgspec.structs.replace(shown, status="closed")
        assert (shown.overdraft, shown.closing_balance) == (700, -700)


async def test_a_month_waits_for_its_open_holds_and_those_after_it_for_it(database: ConnectionUrls) -> None:
    async with services_on(database.service) as services:
        await set_clock(services.pool, datetime(2026, 11, 30, 23, tzinfo=UTC))
        waiting = Customer(services.engine, "waiting")
        await waiting.opens()
        await waiting.reserves("late", ("agent_turn", 1), ttl_seconds=86_400)
        await set_clock(services.pool, datetime(2026, 12, 1, 1, tzinfo=UTC))
        assert await sweep(services, "close_period") == {
            "accounts": 1,
            "months_closed": 0,
            "months_waiting": 1,
            "overage_credits": 0,
        }
        await waiting.settles("late", ("agent_turn", 1))
        assert (await sweep(services, "close_period"))["months_closed"] == 1
        closed = await statement(services.primary, "waiting", "2026-11")
        assert closed is not None
        assert (closed.status, closed.charged) == ("closed", 11)
        await waiting.is_refunded("late", "rf")  # belongs to the open month
        assert await statement(services.primary, "waiting", "2026-11") == closed
        december = await statement(services.primary, "waiting", "2026-12")
        assert december is not None
        assert (december.refunded, december.opening_balance) == (11, closed.closing_balance)
        told = await events(services.primary, "waiting", PageRequest(500))
        assert [event.type for event in told.data].count("period.closed") == 1


async def test_two_thousand_accounts_change_over_to_the_next_month(database: ConnectionUrls) -> None:
    async with services_on(database.service) as services:
        await set_clock(services.pool, datetime(2026, 11, 15, tzinfo=UTC))
        await open_many(services, 2_000)
        await set_clock(services.pool, datetime(2026, 12, 1, tzinfo=UTC))
        assert (await sweep(services, "expire_grants"))["grants_expired"] == 2_000
        assert (await sweep(services, "close_period"))["months_closed"] == 2_000
        kept = await fetch(services, "select distinct statement::text from ledger.statements")
        assert len(kept) == 1
        assert msgspec.json.decode(kept[0][0])["expired"] == 1_000
        counts = "select count(*), count(distinct account) from ledger.events where type = 'period.closed'"
        assert [tuple(row) for row in await fetch(services, counts)] == [(2_000, 2_000)]
        assert (await audit(services.pool)).ok


async def open_many(services: Services, number: int) -> None:
    """Open accounts, each with a plan of the month."""
    change = commands.PolicyChange(module_enabled=True, quotas=BOTH)
    for first in range(0, number, 1_000):
        names = [f"many-{n}" for n in range(first, min(number, first + 1_000))]
        await asyncio.gather(*(carry_out(services, PutAccount(account_id=name, change=change)) for name in names))
        plans = [PutGrant(account_id=name, grant_id="plan", kind="plan", credits=1_000) for name in names]
        await asyncio.gather(*(carry_out(services, plan) for plan in plans))


# -- deletion ------------------------------------------------------------------------------------------------------


async def test_nothing_that_names_a_deleted_account_is_left_anywhere(year: ConnectionUrls) -> None:
    """R7: no name of the account, its jobs, grants, keys, requests, metadata or results; the books stay."""
    async with services_on(year.service) as services:
        books = "select count(*) from ledger.entries"
        before = await services.pool.fetchval(books)
        assert "zebra" in str(await dump(year.owner))
        await sweep(services, "delete_accounts")
        everything = await dump(year.owner, without=())
        assert "zebra" not in str(everything)
        assert await services.pool.fetchval(books) > before
        assert (await audit(services.pool)).ok
        stands = await fetch(services, "select deletion_status from ledger.accounts where account_id is null")
        assert [row[0] for row in stands] == ["executed", "executed"]


async def test_the_id_may_be_opened_again_with_a_life_of_its_own(year: ConnectionUrls) -> None:
    async with services_on(year.service) as services:
        await sweep(services, "delete_accounts")
        again = Customer(services.engine, LEAVING[0])
        await again.opens()
        assert await statement(services.primary, LEAVING[0], "2027-10") is not None
        welcomed = "select welcome_at from ledger.accounts where account_id = $1"
        assert await services.pool.fetchval(welcomed, LEAVING[0]) == END
        await again.reserves("zebra-1-first-1", ("agent_turn", 1))  # a job id that the old life had used
        await again.settles("zebra-1-first-1", ("agent_turn", 1))
        await sweep_all(services)
        assert (await audit(services.pool)).ok
        told = await events(services.primary, LEAVING[0], PageRequest(500))
        assert not told.data


async def test_a_deletion_that_is_cancelled_or_not_due_is_left_alone(year: ConnectionUrls) -> None:
    async with services_on(year.service) as services:
        await carry_out(services, commands.CancelDeletion(account_id=LEAVING[0]))
        await carry_out(services, commands.RequestDeletion(account_id="keeps-1", confirmation_code="del_later"))
        assert (await sweep(services, "delete_accounts"))["accounts_deleted"] == 1
        left = await fetch(services, "select account_id from ledger.accounts where account_id is not null")
        assert {LEAVING[0], "keeps-1"} <= {row[0] for row in left}


async def test_what_is_to_be_invoiced_is_told_before_the_name_goes(year: ConnectionUrls) -> None:
    async with services_on(year.service) as services:
        number = await services.pool.fetchval("select account from ledger.accounts where account_id = 'zebra-1'")
        await sweep(services, "delete_accounts")
        sql = "select data::jsonb ->> 'period' from ledger.events where account = $1 and type = 'period.closed'"
        told = [row[0] for row in await fetch(services, sql, number)]
        assert sorted(told) == [f"2026-{month:02}" for month in range(9, 13)] + [f"2027-{m:02}" for m in range(1, 11)]


# -- one at a time, and failures -----------------------------------------------------------------------------------


@pytest.fixture
async def runners(database: ConnectionUrls) -> AsyncIterator[tuple[Runner, Runner]]:
    """The runners of two replicas, on a real clock."""
    async with contextlib.AsyncExitStack() as stack:
        services = await stack.enter_async_context(services_on(database.service))
        pools = [await stack.enter_async_context(operator_pool(database.service, 3)) for _ in range(2)]
        one, other = (Runner(services.engine, pool, services.primary, simulated_clock=False) for pool in pools)
        yield one, other


class Slow:
    """A sweep that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun = 0
        self.running = asyncio.Event()
        self.end = asyncio.Event()
        self.sweep = Sweep("expire_holds", timedelta(seconds=30), ("runs",), self._run)

    async def _run(self, context: Context) -> None:
        self.begun += 1
        self.running.set()
        await asyncio.wait_for(self.end.wait(), 10)
        await context.now()
        context.counts["runs"] += 1


async def test_a_sweep_runs_on_one_replica_at_a_time(runners: tuple[Runner, Runner]) -> None:
    one, other = runners
    slow = Slow()
    running = asyncio.create_task(one.run(slow.sweep))
    await slow.running.wait()
    await other.run_scheduled(slow.sweep)  # skipped
    await one.run_scheduled(slow.sweep)
    with pytest.raises(SweepsBusy):
        await other.run(slow.sweep, wait_seconds=0.3)
    waiting = asyncio.create_task(other.run(slow.sweep))
    await asyncio.sleep(0.1)
    assert slow.begun == 1
    slow.end.set()
    assert (await running).counts == {"runs": 1}
    assert (await waiting).counts == {"runs": 1}
    assert slow.begun == 2


async def test_replicas_that_are_not_in_step_run_it_once_in_turn(runners: tuple[Runner, Runner]) -> None:
    slow = Slow()
    slow.end.set()
    for runner in (*runners, *runners):
        await runner.run_scheduled(slow.sweep)
    assert slow.begun == 1
    await runners[0].run(slow.sweep)  # by hand, whenever it is asked for
    assert slow.begun == 2


async def test_a_failure_is_kept_and_the_next_run_tries_again(runners: tuple[Runner, Runner]) -> None:
    runner, _ = runners
    fails = True

    async def run(context: Context) -> None:
        context.counts["done"] += 1
        if fails:
            raise Interrupted("names nobody: zebra")

    failing = Sweep("expire_holds", timedelta(), ("done",), run)
    await runner.run_scheduled(failing)
    kept = (await runner.last_runs())["expire_holds"]
    assert (kept.error, kept.counts, kept.succeeded_at) == ("Interrupted", {"done": 1}, None)
    assert kept.finished_at is not None
    fails = False
    await runner.run_scheduled(failing)
    kept = (await runner.last_runs())["expire_holds"]
    assert kept.error is None
    assert kept.succeeded_at == kept.finished_at


async def discrepancies_shown(database: ConnectionUrls) -> float | None:
    """Return what a service that was just started shows of audits."""
    async with health_pool(database.service, 10) as pool:
        gauges = Gauges(pool, simulated_clock=True, sweeps=tuple(SWEEPS), endpoints=[], waiting=lambda: 0, pools={})
        await gauges.refresh()
        await gauges.stop()
    seen = scrape_here()
    return seen.value("ledger_audit_discrepancies") if seen.has("ledger_audit_discrepancies") else None


async def test_what_an_audit_found_is_known_until_another_comes_to_its_end(
    runners: tuple[Runner, Runner], database: ConnectionUrls
) -> None:
    """Neither one that is at it, nor one that fails, nor one that was cut off, nor a restart makes it forgotten."""
    runner, _ = runners
    found, ended = 2, asyncio.Event()

    async def run(context: Context) -> None:
        context.counts["discrepancies"] = found
        await context.now()
        if not ended.is_set():
            raise Interrupted("in between")

    auditing = Sweep("audit", timedelta(), ("discrepancies",), run)
    await runner.run_scheduled(auditing)
    assert await discrepancies_shown(database) is None  # None came to its end yet.
    ended.set()
    await runner.run_scheduled(auditing)
    assert await discrepancies_shown(database) == 2
    found = 0
    ended.clear()
    await runner.run_scheduled(auditing)
    assert await discrepancies_shown(database) == 2
    slow = Slow()
    at_it = asyncio.create_task(runner.run(Sweep("audit", timedelta(), (), slow.sweep.run)))
    await slow.running.wait()
    assert await discrepancies_shown(database) == 2
    at_it.cancel()
    await asyncio.wait([at_it])
    assert await discrepancies_shown(database) == 2
    ended.set()
    await runner.run_scheduled(auditing)
    assert await discrepancies_shown(database) == 0


async def test_what_a_replica_of_an_older_version_found_is_kept_too(
    runners: tuple[Runner, Runner], database: ConnectionUrls
) -> None:
    """It knows nothing of `succeeded_counts`: they are what a newer one left there before."""
    runner, _ = runners

    async def run(context: Context) -> None:
        raise Interrupted("in between")

    connection = await asyncpg.connect(database.service)
    await connection.execute(
        "insert into ledger.sweeps (name, started_at, finished_at, succeeded_at, counts, succeeded_counts)"
        """ values ('audit', now(), now(), now(), '{"discrepancies": 5}', '{"discrepancies": 0}')"""
    )
    await connection.close()
    assert await discrepancies_shown(database) == 5
    await runner.run_scheduled(Sweep("audit", timedelta(), ("discrepancies",), run))
    assert await discrepancies_shown(database) == 5


async def test_a_run_that_loses_its_connection_loses_its_lock_and_ends(
    runners: tuple[Runner, Runner], postgres: EmbeddedPostgres
) -> None:
    one, other = runners
    slow = Slow()
    running = asyncio.create_task(one.run(slow.sweep))
    await slow.running.wait()
    administrator = await asyncpg.connect(postgres.url("postgres", "postgres"))
    await administrator.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")
    await administrator.close()
    slow.end.set()
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        await running
    assert (await other.run(slow.sweep)).counts == {"runs": 1}


async def test_an_account_that_fails_does_not_keep_the_others_waiting(
    year: ConnectionUrls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect with one account is counted; its turn comes again with the next run."""
    real = work.bring_up

    async def poisoned(engine: object, account_id: str) -> BroughtUp:
        if account_id == "keeps-2":
            raise CommandFailed("a defect")
        return await real(engine, account_id)  # type: ignore[arg-type] # the engine

    async with services_on(year.service) as services:
        monkeypatch.setattr(expire_holds, "bring_up", poisoned)
        with pytest.raises(Exception, match="1 accounts were passed over"):
            await sweep(services, "expire_holds")
        shown = {view.name: view for view in await services.sweeps.show()}["expire_holds"]
        assert shown.error == "1 accounts were passed over: see the log"
        assert shown.counts == {"accounts": 4, "holds_expired": 4, "credits_returned": 44}
        monkeypatch.setattr(expire_holds, "bring_up", real)
        assert (await sweep(services, "expire_holds"))["holds_expired"] == 1


def test_when_a_sweep_runs_first() -> None:
    """A restart neither repeats a sweep nor puts it off; what was missed is made up for at once, by one run."""
    now = datetime(2026, 12, 1, 12, tzinfo=UTC)
    daily = SWEEPS["audit"]

    def last(started: datetime, *, ended: bool = True) -> LastRun:
        return LastRun(
            started_at=started, finished_at=started if ended else None, succeeded_at=None, counts=None, error=None
        )

    hour = timedelta(hours=1)
    assert _first_run(daily, None, now) == now
    assert _first_run(daily, last(now - hour), now) == now + 23 * hour
    assert _first_run(daily, last(now - 200 * hour), now) == now
    assert _first_run(daily, last(now - hour, ended=False), now) == now
    assert _first_run(daily, last(now + 500 * hour), now) == now + 24 * hour  # the clock was set back
