"""Upgrades of a database that is in use: from every version there was, with data, under traffic, and not at any price.

The traffic writes arrays, a column each, as versions before 0005 did: that runs on every version of the tables. Its
other statements are today's: a migration that changes what the hot path touches needs a look at released ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from ledger.audit import audit
from ledger.core.commands import Line, PolicyChange, PutAccount, PutGrant, QuotaChange, Refused, Reserve, Settle
from ledger.database import batch_pool, sqlalchemy_url
from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from ledger.engine import Engine
from pricing.catalog import load
from tests.support.history import write_history
from tests.support.released import ReleasedConnection
from tests.support.sweeping import dump

ROOT = Path(__file__).parents[2]
CONFIG = Config()
CONFIG.set_main_option("script_location", str(ROOT / "migrations"))
SCRIPT = ScriptDirectory.from_config(CONFIG)
REVISIONS: Final = [script.revision for script in SCRIPT.walk_revisions()][::-1]
"""Every version of the tables, the oldest first."""

TURN = (Line("agent_turn", 1),)
ACCOUNTS = 8
CALLERS = 16

# What every statement that changes the schema runs under, told by the database itself.
WATCH = """
create table public.watched (tag text, lock_timeout text, statement_timeout text);
create function public.watch() returns event_trigger language plpgsql security definer as $$ begin
    insert into public.watched
    values (tg_tag, current_setting('lock_timeout'), current_setting('statement_timeout'));
end $$;
create event trigger watching on ddl_command_start execute function public.watch();
"""


def _step(connection: Connection, to: str) -> None:
    CONFIG.attributes["connection"] = connection
    here = connection.exec_driver_sql("select to_regclass('alembic_version')").scalar()
    version = here and connection.exec_driver_sql("select version_num from alembic_version").scalar()
    connection.rollback()
    if version is None or (to != "base" and version < to):
        command.upgrade(CONFIG, to)
    else:
        command.downgrade(CONFIG, to)


async def _move(urls: ConnectionUrls, to: str) -> None:
    """Bring a database to a version, upwards or downwards."""
    engine = create_async_engine(sqlalchemy_url(urls.owner), poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_step, to)
    finally:
        await engine.dispose()


async def _migrate(urls: ConnectionUrls) -> tuple[int | None, str]:
    """Run `gateway-ledger migrate` as an operator does, and return its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("gateway-ledger"),
        "migrate",
        env={"LEDGER_OWNER_DATABASE_URL": urls.owner},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _version(urls: ConnectionUrls) -> str:
    async with _connected(urls.owner) as connection:
        return str(await connection.fetchval("select version_num from alembic_version"))


async def _assert_clean(urls: ConnectionUrls) -> None:
    async with _connected(urls.service) as connection:
        assert (await audit(connection)).discrepancies == []


@pytest.fixture(autouse=True)
def _released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines write as those of the released versions did."""
    monkeypatch.setattr("ledger.database.BatchConnection", ReleasedConnection)


@pytest.fixture
def empty(postgres: EmbeddedPostgres) -> Iterator[ConnectionUrls]:
    """A database without tables."""
    name = f"test_{uuid.uuid4().hex}"
    yield asyncio.run(postgres.create_database(name))

    async def drop() -> None:
        async with _connected(postgres.url("postgres", "postgres")) as connection:
            await connection.execute(f'drop database "{name}" with (force)')

    asyncio.run(drop())


def _superuser(postgres: EmbeddedPostgres, urls: ConnectionUrls) -> str:
    return postgres.url("postgres", urls.owner.split("/")[3].split("?")[0])


@pytest.mark.parametrize("revision", REVISIONS[:-1])
async def test_every_version_with_data_comes_to_the_newest(empty: ConnectionUrls, revision: str) -> None:
    await _move(empty, revision)
    await write_history(empty.service)
    before = await dump(empty.service)
    assert all(before[table] for table in ("entries", "postings", "jobs", "grants", "events", "periods"))
    assert await _migrate(empty) == (0, "The database is up to date.\n")
    assert await _version(empty) == REVISIONS[-1]
    after = await dump(empty.owner)
    assert {table: after[table] for table in before} == before
    await _assert_clean(empty)


async def test_under_traffic_every_command_is_answered_and_the_books_add_up(empty: ConnectionUrls) -> None:
    await _move(empty, "0001")
    async with batch_pool(empty.service, 2) as pool:
        engine = Engine(pool, load())
        await engine.start()
        traffic = _Traffic(engine)
        await traffic.open_accounts()
        callers = [asyncio.create_task(traffic.goes_on(n)) for n in range(CALLERS)]
        await traffic.advances(200)
        assert await _migrate(empty) == (0, "The database is up to date.\n")
        await traffic.advances(200)
        traffic.stopped = True
        await asyncio.gather(*callers)
        await engine.stop()
    await _assert_clean(empty)
    async with _connected(empty.service) as connection:
        assert await connection.fetchval("select count(*) from ledger.jobs where status = 'settled'") == traffic.pairs


class _Traffic:
    """Reservations and settlements, one after the other by each of many callers; a refusal or a failure ends it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = itertools.count()
        self.pairs = 0
        self.settled = asyncio.Event()
        self.stopped = False

    async def open_accounts(self) -> None:
        change = PolicyChange(module_enabled=True, quotas={"live": QuotaChange(max_requests=1_000)})
        for n in range(ACCOUNTS):
            await self._engine.execute(PutAccount(account_id=f"a{n}", change=change))
            grant = PutGrant(account_id=f"a{n}", grant_id="opening", kind="purchase", credits=10_000_000)
            await self._engine.execute(grant)

    async def goes_on(self, caller: int) -> None:
        while not self.stopped:
            account, job = f"a{caller % ACCOUNTS}", f"j{next(self._numbers)}"
            for each in (
                Reserve(account_id=account, job_id=job, environment="live", lines=TURN),
                Settle(account_id=account, job_id=job, lines=TURN),
            ):
                outcome = await self._engine.execute(each)
                assert not isinstance(outcome, Refused), outcome
            self.pairs += 1
            self.settled.set()

    async def advances(self, pairs: int) -> None:
        """Wait until so many more jobs were settled."""
        until = self.pairs + pairs
        async with asyncio.timeout(60):
            while self.pairs < until:
                self.settled.clear()
                await self.settled.wait()


async def test_a_migration_gives_up_rather_than_wait_and_leaves_nothing_half_done(empty: ConnectionUrls) -> None:
    await _move(empty, "0001")
    await write_history(empty.service)
    before = await _everything(empty)
    async with _connected(empty.owner) as holder:
        async with holder.transaction():
            await holder.execute("lock table ledger.events in row exclusive mode")  # as a batch does
            code, said = await _migrate(empty)
        assert code == 1
        assert "lock timeout" in said
        assert await _version(empty) == "0001"
        assert await _everything(empty) == before
    assert (await _migrate(empty))[0] == 0


async def _everything(urls: ConnectionUrls) -> list[tuple[object, ...]]:
    """Return what there is in the database: tables, indexes, views, functions and triggers."""
    async with _connected(urls.owner) as connection:
        rows = await connection.fetch(
            "select relkind::text, oid::regclass::text from pg_class where relnamespace::regnamespace::text in"
            " ('ledger', 'reporting', 'public')"
            " union all select 'function', oid::regprocedure::text from pg_proc where pronamespace ="
            " 'ledger'::regnamespace"
            " union all select 'trigger', tgname::text from pg_trigger order by 1, 2"
        )
    return [tuple(row) for row in rows]


async def test_every_migration_runs_under_time_outs(empty: ConnectionUrls, postgres: EmbeddedPostgres) -> None:
    async with _connected(_superuser(postgres, empty)) as superuser:
        await superuser.execute(WATCH)
        assert (await _migrate(empty))[0] == 0
        watched = await superuser.fetch("select tag, lock_timeout, statement_timeout from public.watched")
        await superuser.execute("drop event trigger watching")
    assert len(watched) > 50
    assert {(row["lock_timeout"], row["statement_timeout"]) for row in watched} == {("5s", "10min")}


@pytest.mark.parametrize("revision", REVISIONS[::-1])
async def test_a_downgrade_loses_nothing_or_refuses(empty: ConnectionUrls, revision: str) -> None:
    """Down from each version by one step: tables with data are never dropped."""
    await _move(empty, revision)
    await write_history(empty.service)
    before = await dump(empty.owner)
    below = REVISIONS[REVISIONS.index(revision) - 1] if revision != REVISIONS[0] else "base"
    try:
        await _move(empty, below)
    except NotImplementedError:
        assert await _version(empty) == revision
    else:
        assert await _version(empty) == below
    assert await dump(empty.owner) == before
    assert await _migrate(empty) == (0, "The database is up to date.\n")
    await _assert_clean(empty)
