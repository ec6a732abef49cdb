"""What is counted of batches, and the gauges: each committed fact once, and figures that are read one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from ledger import metrics
from ledger.api import gauges as gauges_module
from ledger.api.gauges import Gauges
from ledger.core.commands import (
    Command,
    Line,
    Outcome,
    PolicyChange,
    PutAccount,
    PutGrant,
    QuotaChange,
    Refund,
    Refused,
    Reserve,
    Settle,
)
from ledger.core.decide import decide
from ledger.database import PoolUse, batch_pool, health_pool
from ledger.embedded import ConnectionUrls
from ledger.engine import CommandFailed, DatabaseAway, Engine, batches
from ledger.queries import state as state_module
from ledger.queries.state import State, read_state
from pricing import catalog
from tests.support.scraping import Scrape, scrape_here

TURN = (Line("agent_turn", 1),)
COMMIT = "_Transaction__commit"
"""asyncpg's own commit, which tests let fail."""


@pytest.fixture
async def pool(database: ConnectionUrls) -> AsyncIterator[asyncpg.Pool]:
    async with batch_pool(database.service, 2) as opened:
        await opened.execute("insert into ledger.clock (now) values ('2026-11-10 12:00Z')")
        yield opened


@pytest.fixture
async def engine(pool: asyncpg.Pool) -> AsyncIterator[Engine]:
    running = Engine(pool, catalog.load(), simulated_clock=True)
    await running.start()
    quota = QuotaChange(max_requests=1_000)
    change = PolicyChange(module_enabled=True, quotas={"live": quota})
    await running.execute(PutAccount(account_id="a", change=change))
    await running.execute(PutGrant(account_id="a", grant_id="g", kind="purchase", credits=10**6))
    yield running
    await running.stop()


@pytest.fixture
def before(engine: Engine) -> Scrape:
    """What this process has counted before the test."""
    assert engine.waiting == 0
    return scrape_here()


def gained(before: Scrape, name: str, **labels: str) -> float:
    """Return how much a counter has gained; a series that was not there yet was at 0."""
    was = before.value(name, **labels) if before.has(name, **labels) else 0
    return scrape_here().value(name, **labels) - was


def reserve(job_id: str, operation: str = "agent_turn") -> Reserve:
    return Reserve(account_id="a", job_id=job_id, environment="live", lines=(Line(operation, 1),))


def settle(job_id: str) -> Settle:
    return Settle(account_id="a", job_id=job_id, lines=TURN)


def assert_one_job_counted(before: Scrape) -> None:
    assert gained(before, "ledger_reservations_total", outcome="reserved") == 1
    assert gained(before, "ledger_settlements_total") == 1
    assert gained(before, "ledger_credits_held_total") == 11
    assert gained(before, "ledger_credits_charged_total") == 11
    assert gained(before, "ledger_commands_total", command="settle", outcome="done") == 1


async def both(engine: Engine) -> list[Outcome]:
    return list(await asyncio.gather(engine.submit(reserve("j")), engine.submit(settle("j"))))


async def test_a_batch_that_is_run_again_counts_once(
    engine: Engine, before: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock, then a connection that is lost before the commit, then a batch that is committed."""
    commit = getattr(asyncpg.transaction.Transaction, COMMIT)
    failures: list[Exception] = [
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.DeadlockDetectedError("deadlock detected"),
    ]

    async def fail(transaction: asyncpg.transaction.Transaction) -> None:
        if failures:
            await transaction._connection.close()  # type: ignore[attr-defined]
            raise failures.pop()
        await commit(transaction)

    monkeypatch.setattr(asyncpg.transaction.Transaction, COMMIT, fail)
    await both(engine)
    assert_one_job_counted(before)
    assert gained(before, "ledger_batch_retries_total", reason="deadlock") == 1
    assert gained(before, "ledger_batch_retries_total", reason="commit_lost") == 1
    assert gained(before, "ledger_batch_failures_total") == 0


async def test_a_commit_that_was_lost_on_the_wire_counts_once(
    engine: Engine, before: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = getattr(asyncpg.transaction.Transaction, COMMIT)
    lost = [1]

    async def commit_and_lose(transaction: asyncpg.transaction.Transaction) -> None:
        await commit(transaction)
        if lost and lost.pop():
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(asyncpg.transaction.Transaction, COMMIT, commit_and_lose)
    await both(engine)
    assert not lost
    assert_one_job_counted(before)


async def test_a_batch_that_is_halved_counts_once(
    engine: Engine, before: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(account: object, command: object, *rest: object) -> Outcome:
        if getattr(command, "job_id", "") == "bad":
            raise ZeroDivisionError
        return decide(account, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(batches, "decide", poisoned)
    commands: list[Command] = [reserve("j"), reserve("bad"), settle("j")]
    done = await asyncio.gather(*(engine.submit(command) for command in commands), return_exceptions=True)
    assert isinstance(done[1], CommandFailed)
    assert_one_job_counted(before)
    assert gained(before, "ledger_batch_failures_total", reason="defect") >= 1


async def test_a_batch_that_is_given_up_counts_nothing(
    engine: Engine, before: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise asyncpg.InvalidPasswordError("password authentication failed")

    monkeypatch.setattr(asyncpg.Pool, "acquire", refuse)
    with pytest.raises(DatabaseAway):
        await engine.execute(reserve("j"))
    assert gained(before, "ledger_reservations_total") == 0
    assert gained(before, "ledger_batch_failures_total", reason="away") == 1
    assert gained(before, "ledger_batch_retries_total", reason="no_connection") == 3


async def test_a_repetition_counts_no_credits(engine: Engine, before: Scrape) -> None:
    """J1: a job is charged once, whatever is repeated, within a batch and after it."""
    for _ in range(3):
        await both(engine)
    await engine.execute(reserve("j", "image_analysis"))
    assert gained(before, "ledger_credits_charged_total") == 11
    assert gained(before, "ledger_settlements_total") == 1
    assert gained(before, "ledger_reservations_total", outcome="refused", operation="image_analysis") == 1


async def test_a_refusal_is_counted_for_the_job_it_is_about(engine: Engine) -> None:
    await both(engine)
    await engine.execute(Refund(account_id="a", job_id="none", refund_id="r"))
    before = scrape_here()
    outcome = await engine.execute(Refund(account_id="a", job_id="j", refund_id="r", credits=12))
    assert isinstance(outcome, Refused)
    refused = {"command": "refund", "code": "validation_error", "operation": "agent_turn"}
    assert scrape_here().value("ledger_refusals_total", **refused) >= 1
    await engine.execute(Refund(account_id="a", job_id="none", refund_id="r"))
    assert gained(before, "ledger_refusals_total", command="refund", code="resource_not_found", operation="none") == 1


async def test_a_defect_in_counting_is_no_defect_of_a_batch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed is answered, whatever comes of counting it."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ledger.engine.measuring.Measures.committed", broken)
    outcomes = await both(engine)
    assert not any(isinstance(outcome, Refused) for outcome in outcomes)


async def test_every_step_of_a_batch_is_timed(engine: Engine, before: Scrape) -> None:
    await both(engine)
    for step in ("connect", "lock", "prefetch", "decide", "write", "commit"):
        assert gained(before, "ledger_batch_step_seconds_count", step=step) >= 1
    steps = gained(before, "ledger_batch_step_seconds_sum")
    assert steps == pytest.approx(gained(before, "ledger_batch_seconds_sum"))
    assert gained(before, "ledger_queue_wait_seconds_count") == 2


# -- gauges --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def gauges(database: ConnectionUrls) -> AsyncIterator[Gauges]:
    async with health_pool(database.service, 10) as pool:
        made = Gauges(
            pool,
            simulated_clock=True,
            sweeps=["expire_holds"],
            endpoints=[],
            waiting=lambda: 3,
            pools={"some": lambda: PoolUse(1, 2, 4)},
        )
        yield made
        await made.stop()


async def test_the_state_is_that_of_the_books(engine: Engine, pool: asyncpg.Pool) -> None:
    await asyncio.gather(*(engine.submit(reserve(f"j{n}")) for n in range(20)))
    await pool.execute("update ledger.clock set now = now + interval '1000 s'")
    state = await read(pool)
    assert state.holds["live", "request"].open == 20
    assert state.holds["test", "call"].open == 0
    assert state.since(state.holds["live", "request"].oldest) == 1_000
    assert state.since(state.holds["live", "request"].due) == 100
    assert (state.unclosed_accounts, state.unclosed_since) == (0, None)


async def read(pool: asyncpg.Pool) -> State:
    async with pool.acquire() as connection:
        return await read_state(connection, ["crm"], simulated_clock=True)


async def test_months_that_ended_and_are_not_closed(engine: Engine, pool: asyncpg.Pool) -> None:
    await engine.execute(PutAccount(account_id="b", change=PolicyChange()))
    await pool.execute("update ledger.clock set now = '2027-01-03 00:00Z'")
    state = await read(pool)
    assert state.unclosed_accounts == 2
    assert state.since(state.unclosed_since) == timedelta(days=33).total_seconds()
    await pool.execute("update ledger.accounts set closed_through = '2026-11'")
    assert (await read(pool)).since((await read(pool)).unclosed_since) == timedelta(days=2).total_seconds()
    await pool.execute("update ledger.accounts set closed_through = '2026-12'")
    assert (await read(pool)).unclosed_accounts == 0


async def test_a_balance_below_nothing_is_seen_where_its_constraint_is_gone(
    engine: Engine, pool: asyncpg.Pool, database: ConnectionUrls
) -> None:
    assert (await read(pool)).negative_accounts == 0
    owner = await asyncpg.connect(database.owner)
    await owner.execute("alter table ledger.balances drop constraint balances_available_check")
    assert (await read(pool)).negative_accounts == 0
    await owner.execute("update ledger.balances set available = -1")
    await owner.close()
    assert (await read(pool)).negative_accounts == 1


async def test_an_endpoints_backlog_is_what_it_was_not_given(engine: Engine, pool: asyncpg.Pool) -> None:
    await pool.execute("insert into ledger.endpoints values ('crm', 'live', '{job.expired}', 0)")
    await asyncio.gather(*(engine.submit(reserve(f"j{n}")) for n in range(4)))
    await pool.execute("update ledger.clock set now = now + interval '1000 s'")
    await engine.execute(reserve("later"))
    backlog = (await read(pool)).outbox["crm"]
    assert backlog.events == 4
    assert (await read(pool)).since(backlog.oldest) == 100
    await pool.execute("update ledger.endpoints set position = (select max(position) from ledger.events)")
    assert (await read(pool)).outbox["crm"].events == 0


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (state_module.OVERAGE.replace("$1", "'2026-11'"), "periods_overage_idx"),
        (state_module.OVERDRAFT, "jobs_overdraft_idx"),
        (state_module.UNCLOSED.replace("$1", "now()").replace("$2", "'2026-10'"), "accounts_unclosed_idx"),
    ],
)
async def test_no_history_is_read(pool: asyncpg.Pool, statement: str, index: str) -> None:
    """Each figure is found along an index that has only what it is about."""
    async with pool.acquire() as connection:
        await connection.execute("set enable_seqscan = off; set enable_bitmapscan = on")
        plan = "\n".join(row[0] for row in await connection.fetch(f"explain {statement}"))
    assert index in plan, plan


async def test_many_who_look_at_once_are_one_reader(
    engine: Engine, gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    async def counted(connection: state_module.Connection, *_: object, **__: object) -> State:
        nonlocal reads
        reads += 1
        return await read_state(connection, [], simulated_clock=True)

    monkeypatch.setattr(gauges_module, "read_state", counted)
    await asyncio.gather(*(gauges.refresh() for _ in range(50)))
    await gauges.refresh()
    assert reads == 1
    seen = scrape_here()
    assert seen.value("ledger_queue_commands") == 3
    assert seen.value("ledger_database_connections", pool="some", state="idle") == 2
    assert seen.value("ledger_sweep_last_success_timestamp_seconds", sweep="expire_holds") == 0


async def test_figures_that_cannot_be_read_are_absent(
    engine: Engine, gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges_module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(gauges_module, "SHARE", 0)
    await gauges.refresh()
    assert scrape_here().has("ledger_open_holds")

    async def fail(*_: object, **__: object) -> State:
        raise ConnectionRefusedError

    with monkeypatch.context() as patch:
        patch.setattr(gauges_module, "read_state", fail)
        await gauges.refresh()
    seen = scrape_here()
    assert seen.value("ledger_database_up") == 0
    assert not any(seen.has(gauge.name) for gauge in metrics.READ)
    await gauges.refresh()
    assert scrape_here().value("ledger_database_up") == 1


async def test_nobody_waits_for_figures_that_take_long(
    engine: Engine, gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before is shown meanwhile, and no longer than for a minute."""
    monkeypatch.setattr(gauges_module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(gauges_module, "SHARE", 0)
    monkeypatch.setattr(gauges_module, "WAIT_SECONDS_MAX", 0.05)
    await gauges.refresh()
    await asyncio.sleep(0)
    while not scrape_here().has("ledger_open_holds"):
        await gauges.refresh()

    async def hang(*_: object, **__: object) -> State:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(gauges_module, "read_state", hang)
    await gauges.refresh()
    assert scrape_here().has("ledger_open_holds")
    monkeypatch.setattr(gauges_module, "STALE_SECONDS", 0)
    await gauges.refresh()
    assert not scrape_here().has("ledger_open_holds")
    assert scrape_here().value("ledger_database_up") == 0
