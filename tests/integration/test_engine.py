"""The batcher on a real database: backlogs, defects, lost connections, fairness, and an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import asyncpg
import pytest

from ledger.core.account import Account
from ledger.core.commands import (
    BringUp,
    BroughtUp,
    Command,
    Line,
    Outcome,
    PolicyChange,
    PutAccount,
    PutGrant,
    QuotaChange,
    Reserve,
    Reserved,
    Settle,
    Settled,
)
from ledger.core.decide import decide
from ledger.database import batch_pool
from ledger.embedded import ConnectionUrls
from ledger.engine import CommandFailed, DatabaseAway, Engine, QueueFull, batches
from pricing import catalog

TURN = (Line("agent_turn", 1),)
COMMIT = "_Transaction__commit"
"""asyncpg's own commit, which tests let fail."""


@pytest.fixture
async def pool(database: ConnectionUrls) -> AsyncIterator[asyncpg.Pool]:
    async with batch_pool(database.service, 2) as opened:
        await opened.execute("insert into ledger.clock (now) values (clock_timestamp())")
        yield opened


@pytest.fixture
async def engine(pool: asyncpg.Pool) -> AsyncIterator[Engine]:
    running = Engine(pool, catalog.load(), simulated_clock=True)
    await running.start()
    yield running
    await running.stop()


async def open_account(engine: Engine, account_id: str) -> None:
    quota = QuotaChange(max_requests=100_000)
    await engine.execute(
        PutAccount(account_id=account_id, change=PolicyChange(module_enabled=True, quotas={"live": quota}))
    )
    await engine.execute(PutGrant(account_id=account_id, grant_id="g", kind="purchase", credits=10**6))


def reserve(account_id: str, job_id: str, ttl_seconds: int = 900) -> Reserve:
    return Reserve(account_id=account_id, job_id=job_id, environment="live", lines=TURN, ttl_seconds=ttl_seconds)


def settle(account_id: str, job_id: str) -> Settle:
    return Settle(account_id=account_id, job_id=job_id, lines=TURN)


async def wait_for(engine: Engine, commands: list[Reserve] | list[Settle]) -> list[Outcome]:
    return await asyncio.gather(*(engine.submit(command) for command in commands))


async def advance(pool: asyncpg.Pool, seconds: int) -> None:
    await pool.execute("update ledger.clock set now = now + $1", timedelta(seconds=seconds))


async def test_a_backlog_is_entered_in_the_order_of_its_deadlines(engine: Engine, pool: asyncpg.Pool) -> None:
    """T1: 1,100 holds are due, more than a batch ends, and a command names the one that is due last."""
    await open_account(engine, "a")
    holds = 1_100
    await wait_for(engine, [reserve("a", f"j{n}", ttl_seconds=60 + n) for n in range(holds)])
    await advance(pool, 86_400)
    outcomes = await wait_for(engine, [settle("a", f"j{holds - 1}"), settle("a", "j0")])
    assert [getattr(outcome, "code", None) for outcome in outcomes] == ["job_not_completed"] * 2
    rows = await pool.fetch("select at, kind from ledger.entries order by sequence")
    instants = [row["at"] for row in rows]
    assert instants == sorted(instants)
    assert sum(row["kind"] == "expire" for row in rows) == holds
    assert await pool.fetchval("select count(*) from ledger.holds") == 0


async def test_a_command_that_fails_harms_no_neighbour(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design: one poisoned command of a batch is found by halving it, and nothing of it is written."""
    await open_account(engine, "a")

    def poisoned(account: object, command: object, *rest: object) -> Outcome:
        if getattr(command, "job_id", "") == "bad":
            raise ZeroDivisionError
        return decide(account, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(batches, "decide", poisoned)
    futures = [engine.submit(reserve("a", job)) for job in ("j1", "j2", "bad", "j3", "j4")]
    done = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(done.pop(2), CommandFailed)
    assert all(isinstance(outcome, Reserved) and outcome.created for outcome in done)


async def test_lost_connections_are_replaced(engine: Engine, pool: asyncpg.Pool, database: ConnectionUrls) -> None:
    await open_account(engine, "a")
    killer = await asyncpg.connect(database.service)
    for n in range(5):
        await killer.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and usename = current_user"
        )
        outcome = await engine.execute(reserve("a", f"j{n}"))
        assert isinstance(outcome, Reserved)
    await killer.close()


async def test_types_that_were_made_anew_are_learned_anew(
    engine: Engine, pool: asyncpg.Pool, database: ConnectionUrls
) -> None:
    """As by a backup that is restored in place: connections of before know types that are no longer there."""
    await open_account(engine, "a")
    assert isinstance(await engine.execute(reserve("a", "before")), Reserved)
    owner = await asyncpg.connect(database.owner)
    columns = await owner.fetchval(
        "select string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' order by attnum)"
        " from pg_attribute where attrelid = 'ledger.entry'::regclass"
    )
    await owner.execute(f"drop type ledger.entry; create type ledger.entry as ({columns})")
    await owner.close()
    outcomes = await asyncio.gather(*(engine.execute(reserve("a", f"after-{n}")) for n in range(10)))
    assert [type(outcome) for outcome in outcomes] == [Reserved] * 10
    assert await pool.fetchval("select count(*) from ledger.jobs") == 11


async def test_commands_of_an_account_keep_their_order(engine: Engine) -> None:
    await open_account(engine, "a")
    futures = [engine.submit(command) for n in range(200) for command in (reserve("a", f"j{n}"), settle("a", f"j{n}"))]
    outcomes = await asyncio.gather(*futures)
    assert [type(outcome) for outcome in outcomes] == [Reserved, Settled] * 200


async def test_a_busy_account_does_not_hold_up_a_quiet_one(engine: Engine) -> None:
    """Accounts take turns: a quiet account's one command does not wait for a thousand of another."""
    await open_account(engine, "busy")
    await open_account(engine, "quiet")
    busy = [engine.submit(reserve("busy", f"j{n}")) for n in range(2_000)]
    await engine.submit(reserve("quiet", "j"))
    waiting = sum(not future.done() for future in busy)
    assert waiting > 1_000
    await asyncio.gather(*busy)


async def test_stopping_finishes_what_was_accepted(pool: asyncpg.Pool) -> None:
    engine = Engine(pool, catalog.load(), simulated_clock=True)
    await engine.start()
    await open_account(engine, "a")
    futures = [engine.submit(reserve("a", f"j{n}")) for n in range(500)]
    await engine.stop()
    assert all(isinstance(future.result(), Reserved) for future in futures)
    with pytest.raises(QueueFull):
        engine.submit(reserve("a", "late"))


async def test_a_caller_that_goes_away_changes_nothing(engine: Engine) -> None:
    await open_account(engine, "a")
    future = engine.submit(reserve("a", "j"))
    future.cancel()
    outcome = await engine.execute(reserve("a", "j"))
    assert isinstance(outcome, Reserved)
    assert outcome.created is False


async def test_bringing_up_says_what_it_entered(engine: Engine, pool: asyncpg.Pool) -> None:
    await open_account(engine, "a")
    await engine.execute(reserve("a", "j", ttl_seconds=5))
    await advance(pool, 10)
    assert await engine.execute(BringUp(account_id="a")) == BroughtUp(holds_expired=1, credits_returned=11)
    assert await engine.execute(BringUp(account_id="a")) == BroughtUp()


async def test_a_commit_that_was_lost_on_the_wire_has_its_first_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J1: the transaction committed, its connection died before saying so: the journal is asked, nothing is redone."""
    await open_account(engine, "a")
    commit = getattr(asyncpg.transaction.Transaction, COMMIT)
    lost = [1]

    async def commit_and_lose(transaction: asyncpg.transaction.Transaction) -> None:
        await commit(transaction)
        if lost and lost.pop():
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(asyncpg.transaction.Transaction, COMMIT, commit_and_lose)
    outcomes = await asyncio.gather(engine.submit(reserve("a", "j")), engine.submit(settle("a", "j")))
    assert not lost
    assert isinstance(outcomes[0], Reserved)
    assert outcomes[0].created
    assert isinstance(outcomes[1], Settled)


async def test_a_connection_that_is_lost_after_the_commit_changes_no_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found lost as it is given back: what was committed is not done again, and told as it was decided."""
    await open_account(engine, "a")
    lost = [1]

    async def lose(*_: object, **__: object) -> None:
        if lost and lost.pop():
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr("ledger.database.BatchConnection.reset", lose)
    outcome = await engine.execute(reserve("a", "j"))
    assert not lost
    assert isinstance(outcome, Reserved)
    assert outcome.created
    assert isinstance(await engine.execute(settle("a", "j")), Settled)


async def test_a_commit_that_did_not_happen_is_done_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_account(engine, "a")
    commit = getattr(asyncpg.transaction.Transaction, COMMIT)
    lost = [1]

    async def lose(transaction: asyncpg.transaction.Transaction) -> None:
        if lost and lost.pop():
            await transaction._connection.close()  # type: ignore[attr-defined]
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        await commit(transaction)

    monkeypatch.setattr(asyncpg.transaction.Transaction, COMMIT, lose)
    outcomes = await asyncio.gather(engine.submit(reserve("a", "j")), engine.submit(settle("a", "j")))
    assert [type(outcome) for outcome in outcomes] == [Reserved, Settled]


async def test_no_connection_is_nobodys_fault(
    engine: Engine, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: a refused login is a database that is away, not a defect of each command."""
    await open_account(engine, "a")

    async def refuse(*_: object, **__: object) -> None:
        raise asyncpg.InvalidPasswordError("password authentication failed")

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Pool, "acquire", refuse)
        done = await asyncio.gather(*(engine.submit(reserve("a", f"j{n}")) for n in range(8)), return_exceptions=True)
    assert {type(outcome) for outcome in done} == {DatabaseAway}
    assert isinstance(await engine.execute(reserve("a", "j0")), Reserved)


async def test_a_statement_that_takes_too_long_fails_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_account(engine, "a")

    def slow(account: object, command: object, *rest: object) -> Outcome:
        if getattr(command, "job_id", "") == "slow":
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
        return decide(account, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(batches, "decide", slow)
    futures = [engine.submit(reserve("a", job)) for job in ("j1", "slow", "j2")]
    done = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome) for outcome in done] == [Reserved, DatabaseAway, Reserved]


async def test_a_batch_that_is_halved_keeps_the_order_of_an_account(
    engine: Engine, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows a command that waits for its account to be brought up waits behind it."""
    await open_account(engine, "a")
    await open_account(engine, "b")
    await wait_for(engine, [reserve("a", f"due{n}", ttl_seconds=60) for n in range(600)])
    await advance(pool, 3600)
    failures = [1]

    def fails_once(account: object, command: object, *rest: object) -> Outcome:
        if getattr(command, "job_id", "") == "other" and failures and failures.pop():
            raise ZeroDivisionError
        return decide(account, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(batches, "decide", fails_once)
    commands: list[Command] = [
        reserve("a", "x"),
        reserve("b", "other"),
        settle("a", "x"),
        reserve("a", "y"),
        settle("a", "y"),
    ]
    outcomes = await asyncio.gather(*(engine.submit(command) for command in commands))
    assert [type(outcome) for outcome in outcomes] == [Reserved, Reserved, Settled, Reserved, Settled]


async def test_a_flusher_survives_a_defect(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever: whatever escapes a batch is told to its callers, and the next batch is served."""
    await open_account(engine, "a")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_carry_out", None)
        with pytest.raises(CommandFailed):
            await engine.execute(reserve("a", "j"))
    assert isinstance(await engine.execute(reserve("a", "j")), Reserved)


async def test_stopping_does_not_wait_for_ever(pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pool, catalog.load(), simulated_clock=True)
    await engine.start()
    await open_account(engine, "a")

    async def hang(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(engine, "_carry_out", hang)
    waiting = [engine.submit(reserve("a", f"j{n}")) for n in range(3)]
    await asyncio.sleep(0)
    await engine.stop(seconds_max=0.1)
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in done} == {DatabaseAway}


async def test_the_hook_hears_of_what_was_committed_and_harms_nobody(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a commit whose connection was lost, and never of a batch that was refused by the database."""
    heard: list[tuple[str, int, list[str]]] = []

    def hear(accounts: Sequence[Account]) -> None:
        heard.extend((a.account_id, a.available, [event.type for event in a.changes.events]) for a in accounts)
        raise RuntimeError("the hook has a defect")

    engine = Engine(pool, catalog.load(), simulated_clock=True, on_commit=hear)
    await engine.start()
    await open_account(engine, "a")
    commit = getattr(asyncpg.transaction.Transaction, COMMIT)
    lost = [1]

    async def commit_and_lose(transaction: asyncpg.transaction.Transaction) -> None:
        await commit(transaction)
        if lost and lost.pop():
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.transaction.Transaction, COMMIT, commit_and_lose)
        heard.clear()
        assert isinstance(await engine.execute(reserve("a", "j")), Reserved)
    assert heard == [("a", 10**6 - 11, [])]
    await advance(pool, 86_400)
    heard.clear()
    await engine.execute(BringUp(account_id="a"))
    assert heard == [("a", 10**6, ["job.expired"])]
    heard.clear()
    with monkeypatch.context() as patch:
        patch.setattr("ledger.store.write", None)
        with pytest.raises(CommandFailed):
            await engine.execute(reserve("a", "k"))
    assert heard == []
    await engine.stop()
