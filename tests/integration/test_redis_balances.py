"""Live balances in Redis: they equal what the interface shows, the newest wins, and what was missed is made up for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.core.commands import CancelDeletion, DeleteAccount, PatchAccount, PolicyChange, PutCycle, RequestDeletion
from ledger.core.overage import MICRO_USD
from ledger.database import read_engine
from ledger.embedded import ConnectionUrls
from ledger.events import balances as balances_module
from ledger.events.balances import Balances
from ledger.events.figures import EPOCH, Figures, Gone, State
from ledger.events.link import connect
from ledger.queries import Reading
from ledger.queries.balance import balance
from ledger.queries.live import page_of_accounts
from tests.support.history import START, Customer, write_history
from tests.support.mirror import PREFIX, ledger_telling, mirror_of, mirrored, until
from tests.support.reading import Ledger, shown
from tests.support.redis import RedisServer, running_redis


def stored(server: RedisServer, account_id: str) -> dict[str, str]:
    with server.client() as client:
        found: Any = client.hgetall(f"{PREFIX}balance:{account_id}")
        return dict(found)


async def expected(ledger: Ledger, account_id: str) -> dict[str, str]:
    """Return what the hash is to have of the figures that `GET …/balance` shows."""
    view = await shown(balance(ledger.reading, account_id))
    overage = view["overage"]
    headroom = max(0, overage["cap_credits"] - overage["used"] - overage["held"]) if overage["usable"] else 0
    sequence = await ledger.pool.fetchval(
        "select sequence from ledger.accounts a join ledger.balances b using (account) where account_id = $1",
        account_id,
    )
    figures = {name: view[name] for name in ("available", "held", "overdraft")}
    return {n: str(v) for n, v in {**figures, "overage_headroom": headroom, "sequence": sequence}.items()}


async def until_it_shows(server: RedisServer, ledger: Ledger, account_id: str) -> None:
    wanted = await expected(ledger, account_id)
    await until(lambda: stored(server, account_id).items() >= wanted.items(), f"{account_id}: {wanted}")


@contextlib.asynccontextmanager
async def balances_in(server: RedisServer, database: ConnectionUrls, **given: int) -> AsyncIterator[Balances]:
    """Give the parts of a mirror that publish balances, to be called one by one."""
    reads, client = read_engine(database.service, 2), connect(server.url)
    try:
        yield Balances(client, Reading(reads, simulated_clock=True), prefix=PREFIX, **given)
    finally:
        await client.aclose()
        await reads.dispose()


# -- the newest wins -----------------------------------------------------------------------------------------------


def figures(life: int, sequence: int, second: int, available: int = 0) -> Figures:
    return Figures(
        account_id="a",
        life=life,
        sequence=sequence,
        at=EPOCH + timedelta(seconds=second),
        available=available,
        held=0,
        overdraft=0,
        overage_headroom=0,
        changes_at=None,
    )


def rank(state: State) -> tuple[int, int, datetime]:
    return (state.life, state.sequence, state.at)


SMALL = st.integers(0, 3)
STATES = st.lists(
    st.builds(figures, SMALL, SMALL, SMALL)
    | st.builds(
        lambda f: Gone(account_id="a", life=f.life, sequence=f.sequence, at=f.at), st.builds(figures, *[SMALL] * 3)
    ),
    min_size=1,
    max_size=12,
    unique_by=rank,
)


@pytest.fixture(scope="module")
def shared_redis() -> Any:
    with running_redis() as server:
        yield server


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states=STATES, pages=st.integers(1, 4))
def test_the_newest_state_wins_in_whatever_order_they_come(
    shared_redis: RedisServer, states: list[State], pages: int
) -> None:
    with shared_redis.client() as client:
        client.flushall()

    async def write() -> list[int]:
        publishers = [connect(shared_redis.url) for _ in range(pages)]
        writers = [Balances(each, None, prefix=PREFIX) for each in publishers]  # type: ignore[arg-type] # it reads none
        try:
            answers = await asyncio.gather(*(w.write(states[n::pages]) for n, w in enumerate(writers)))
            return [answer for page in answers for answer in page]
        finally:
            for each in publishers:
                await each.aclose()

    answers = asyncio.run(write())
    newest = max(states, key=rank)
    there = stored(shared_redis, "a")
    assert (int(there["life"]), int(there["sequence"])) == (newest.life, newest.sequence)
    assert ("deleted" in there) == isinstance(newest, Gone)
    assert there["at"] == newest.at.isoformat().replace("+00:00", "Z")
    assert answers.count(2) >= 1
    with shared_redis.client() as client:
        kept: Any = client.ttl(f"{PREFIX}balance:a")
        assert (kept <= 600) == isinstance(newest, Gone)


async def test_only_news_is_told(redis_server: RedisServer, database: ConnectionUrls) -> None:
    async with balances_in(redis_server, database) as balances:
        with redis_server.client() as client, client.pubsub(ignore_subscribe_messages=True) as heard:
            heard.subscribe(balances.channel)
            assert await balances.write([figures(1, 5, 10, available=7)]) == [2]
            assert await balances.write([figures(1, 5, 11, available=7)]) == [1]  # later, and the same
            assert await balances.write([figures(1, 5, 10, available=9)]) == [0]  # older
            assert await balances.write([figures(1, 5, 12, available=9)]) == [2]
            assert await balances.write([Gone(account_id="a", life=1, sequence=5, at=EPOCH.replace(year=2000))]) == [2]
            messages = [json.loads(message["data"]) for message in await until(lambda: messages_of(heard, 3))]
    assert [message.get("available") for message in messages] == [7, 9, None]
    assert messages[0] == {
        "account_id": "a",
        "life": 1,
        "sequence": 5,
        "at": "1970-01-01T00:00:10Z",
        "available": 7,
        "held": 0,
        "overdraft": 0,
        "overage_headroom": 0,
        "changes_at": None,
    }
    assert messages[2]["deleted"] is True


def messages_of(heard: redis.client.PubSub, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count and (message := heard.get_message(timeout=1)):
        found.append(message)
    return found


# -- it equals the balance -----------------------------------------------------------------------------------------


async def test_a_history_with_everything_in_it(database: ConnectionUrls, redis_server: RedisServer) -> None:
    """Nobody told of it as it happened: a walk publishes it all, with what time has decided since."""
    await write_history(database.service)
    # The clock is set before the walk begins, which sees what time has decided by then.
    async with ledger_telling_now(database) as ledger, mirror_of(database, redis_server.url, simulated_clock=True):
        for name in ("plain", "deep", "over", "mixed"):
            await until_it_shows(redis_server, ledger, name)
        assert int(stored(redis_server, "over")["overage_headroom"]) > 0


def ledger_telling_now(database: ConnectionUrls) -> contextlib.AbstractAsyncContextManager[Ledger]:
    return ledger_telling(database, datetime.fromisoformat("2026-12-05T00:00:00Z"))


async def test_a_random_workload_on_two_replicas(database: ConnectionUrls, redis_server: RedisServer) -> None:
    chance = random.Random(20261130)  # noqa: S311 - of a test
    async with mirrored(database, redis_server.url) as one, mirrored(database, redis_server.url) as other:
        names = [f"c{n}" for n in range(8)]
        for name in names:
            customer = await one.customer(name, 3_000)
            await customer.changes(
                payment_method_verified=True, overage_enabled=chance.random() < 0.7, credit_price_usd=1_000
            )

        async def work(name: str) -> None:
            for n in range(25):
                customer = Customer(chance.choice((one, other)).engine, name)
                await customer.reserves(f"j{n}", ("tts_synthesis", chance.randrange(1, 100)))
                if chance.random() < 0.7:
                    await customer.settles(f"j{n}", ("tts_synthesis", chance.randrange(1, 250)))
                elif chance.random() < 0.5:
                    await customer.releases(f"j{n}")
                if chance.random() < 0.2:
                    await customer.changes(cap_usd=chance.randrange(20) * MICRO_USD)

        async with asyncio.TaskGroup() as group:
            for name in names[:2]:
                group.create_task(work(name))
            for name in names[2:]:
                group.create_task(work(name))
        for name in names:
            await until_it_shows(redis_server, one, name)


async def test_a_change_of_policy_moves_the_headroom_without_an_entry(
    database: ConnectionUrls, redis_server: RedisServer
) -> None:
    async with mirrored(database, redis_server.url) as ledger:
        a = await ledger.customer("a", 100)
        await until_it_shows(redis_server, ledger, "a")
        before = stored(redis_server, "a")
        assert before["overage_headroom"] == "0"
        await a.changes(overage_enabled=True, payment_method_verified=True, credit_price_usd=1_000)
        await until_it_shows(redis_server, ledger, "a")
        assert stored(redis_server, "a")["overage_headroom"] == "20000"
        for month in ("2026-08", "2026-09", "2026-10"):
            await a.does(PutCycle(account_id="a", month=month, status="paid_on_time"))
        await until_it_shows(redis_server, ledger, "a")
        assert stored(redis_server, "a")["overage_headroom"] == "100000"
        await a.changes(cap_usd=1 * MICRO_USD)
        await until_it_shows(redis_server, ledger, "a")


async def test_how_long_a_balance_may_be_trusted(database: ConnectionUrls, redis_server: RedisServer) -> None:
    """The first of: a grant ends, a hold ends, the month ends in which there is overage."""
    async with mirrored(database, redis_server.url, START) as ledger:
        a = await ledger.customer("a", 10)
        await until(lambda: stored(redis_server, "a").get("available") == "10")
        assert stored(redis_server, "a")["changes_at"] == ""
        await a.changes(overage_enabled=True, payment_method_verified=True, credit_price_usd=1_000)
        await a.gets("later", "purchase", 10, START + timedelta(days=60))
        await until(lambda: stored(redis_server, "a")["changes_at"] == "2027-01-02T10:00:00Z")
        await a.reserves("spent", ("tts_synthesis", 5_000))
        await a.settles("spent", ("tts_synthesis", 5_000))
        await until(lambda: stored(redis_server, "a")["changes_at"] == "2026-12-01T00:00:00Z")
        await a.gets("soon", "purchase", 10, START + timedelta(days=3))
        await until(lambda: stored(redis_server, "a")["changes_at"] == "2026-11-06T10:00:00Z")
        await a.reserves("long", ("agent_turn", 1), ttl_seconds=7_200)
        await a.reserves("short", ("agent_turn", 1), ttl_seconds=3_600)
        await until(lambda: stored(redis_server, "a")["changes_at"] == "2026-11-03T11:00:00Z")
        await a.releases("short")
        await until(lambda: stored(redis_server, "a")["changes_at"] == "2026-11-03T12:00:00Z")
        await until_it_shows(redis_server, ledger, "a")


# -- accounts that go ----------------------------------------------------------------------------------------------


async def test_a_deletion_and_an_account_of_the_same_name(database: ConnectionUrls, redis_server: RedisServer) -> None:
    async with mirrored(database, redis_server.url, START) as ledger:
        a = await ledger.customer("a", 100)
        await a.reserves("j", ("agent_turn", 1))
        await until_it_shows(redis_server, ledger, "a")
        old = stored(redis_server, "a")
        await a.does(RequestDeletion(account_id="a", confirmation_code="code"))
        await a.does(CancelDeletion(account_id="a"))
        await a.does(RequestDeletion(account_id="a", confirmation_code="code"))
        await ledger.at(START + timedelta(days=31))
        await a.does(DeleteAccount(account_id="a"))
        gone = await until(lambda: "deleted" in (found := stored(redis_server, "a")) and found)
        assert set(gone) == {"life", "sequence", "order", "at", "deleted"}
        async with balances_in(redis_server, database) as late:
            assert await late.write([figures(int(old["life"]), int(old["sequence"]), 0, 89)]) == [0]
        assert "available" not in stored(redis_server, "a")
        await ledger.customer("a", 7)
        await until_it_shows(redis_server, ledger, "a")
        new = stored(redis_server, "a")
        assert int(new["life"]) > int(old["life"])
        assert int(new["sequence"]) < int(old["sequence"])


# -- what nobody published -----------------------------------------------------------------------------------------


async def test_redis_is_away_and_the_ledger_goes_on(database: ConnectionUrls) -> None:
    with running_redis("--appendonly", "yes") as server:
        async with mirrored(database, server.url) as ledger:
            a = await ledger.customer("a", 1_000)
            await until_it_shows(server, ledger, "a")
            server.kill()
            b = await ledger.customer("b", 500)
            for n in range(20):
                for customer in (a, b):
                    await customer.reserves(f"j{n}", ("agent_turn", 1))
                    await customer.settles(f"j{n}", ("agent_turn", 1))
            server.start()
            await until_it_shows(server, ledger, "a")
            await until_it_shows(server, ledger, "b")


async def test_redis_comes_back_without_anything(database: ConnectionUrls, redis_server: RedisServer) -> None:
    async with mirrored(database, redis_server.url) as ledger:
        for n in range(250):
            await ledger.customer(f"c{n}", 1 + n)
        await until(lambda: stored(redis_server, "c249").get("available") == "250")
        redis_server.kill()
        redis_server.start()
        await until(lambda: keys(redis_server) == 250)
        with redis_server.client() as client:
            client.flushall()
        await until(lambda: keys(redis_server) == 250)
        for n in (0, 100, 249):
            await until_it_shows(redis_server, ledger, f"c{n}")


def keys(server: RedisServer) -> int:
    with server.client() as client:
        found: Any = client.keys(f"{PREFIX}balance:*")
        return len(found)


async def test_a_replica_that_died_before_it_published(database: ConnectionUrls, redis_server: RedisServer) -> None:
    """What was committed and never told is published by the next that starts: entries, and grants that ended since."""
    async with mirrored(database, redis_server.url, START) as ledger:
        a = await ledger.customer("a", 100)
        await until_it_shows(redis_server, ledger, "a")
    async with ledger_telling(database, START + timedelta(hours=1)) as ledger:
        a = Customer(ledger.engine, "a")
        await a.gets("hour", "adjustment", 50, START + timedelta(hours=2))
        await a.reserves("j", ("agent_turn", 1))
        assert stored(redis_server, "a")["available"] == "100"
        await ledger.at(START + timedelta(hours=3))
        async with mirror_of(database, redis_server.url, simulated_clock=True):
            await until_it_shows(redis_server, ledger, "a")
        assert stored(redis_server, "a")["available"] == "100"  # The hold came back to a grant that had ended.
        await a.is_brought_up()
        assert (await expected(ledger, "a"))["sequence"] > stored(redis_server, "a")["sequence"]


async def test_a_policy_that_a_dead_replica_changed_is_found_by_the_second_walk(
    database: ConnectionUrls, redis_server: RedisServer
) -> None:
    """A walk's reading counts as a minute old, so that it never undoes a change it could not see yet."""
    async with balances_in(redis_server, database) as balances, ledger_telling(database, START) as ledger:
        a = await ledger.customer("a", 100)
        await balances.walk_if_due()
        with redis_server.client() as client:
            again: Any = client.ttl(f"{PREFIX}walked")
            assert 60 < again <= 120
        async with mirrored(database, redis_server.url, START + timedelta(seconds=30)):
            pass
        await ledger.at(START + timedelta(seconds=40))
        change = PolicyChange(overage_enabled=True, payment_method_verified=True, credit_price_usd=1_000)
        await a.does(PatchAccount(account_id="a", change=change))
        with redis_server.client() as client:
            client.delete(f"{PREFIX}walked")
        await ledger.at(START + timedelta(seconds=160))
        await balances.walk_if_due()
        await until_it_shows(redis_server, ledger, "a")
        with redis_server.client() as client:
            hour: Any = client.ttl(f"{PREFIX}walked")
            assert hour > 3_000


async def test_a_walk_does_not_undo_what_it_could_not_see(database: ConnectionUrls, redis_server: RedisServer) -> None:
    """A policy is changed and told while a walk has read the account and not published it yet."""
    async with balances_in(redis_server, database) as walking, ledger_telling(database, START) as ledger:
        await ledger.customer("a", 100)
        read = await page_of_accounts(ledger.reading, 0, 10)
        old = [balances_module._as_read(account, None) for account in read[0]]
        async with mirrored(database, redis_server.url, START + timedelta(seconds=-1)) as telling:
            a = Customer(telling.engine, "a")
            await a.changes(overage_enabled=True, payment_method_verified=True, credit_price_usd=1_000)
            await until(lambda: stored(redis_server, "a").get("overage_headroom") == "20000")
        assert await walking.write(old, balances_module.MARGIN) == [0]
        assert stored(redis_server, "a")["overage_headroom"] == "20000"


async def test_too_many_wait_and_a_walk_makes_up_for_them(database: ConnectionUrls, redis_server: RedisServer) -> None:
    async with balances_in(redis_server, database, waiting_max=5) as balances:
        await balances.walk_if_due()
        async with ledger_telling(database, START, balances.committed) as ledger:
            for n in range(8):
                await ledger.customer(f"c{n}", 10 + n)
            await balances.publish()
            assert keys(redis_server) < 8
            await balances.walk_if_due()
            for n in range(8):
                await until_it_shows(redis_server, ledger, f"c{n}")


async def test_one_walks_at_a_time(database: ConnectionUrls, redis_server: RedisServer) -> None:
    async with balances_in(redis_server, database) as one, ledger_telling(database, START) as ledger:
        await ledger.customer("a", 10)
        with redis_server.client() as client:
            client.set(f"{PREFIX}walking", "1")
            await one.walk_if_due()
            assert keys(redis_server) == 0
            client.delete(f"{PREFIX}walking")
            await one.walk_if_due()
            assert keys(redis_server) == 1
            client.delete(f"{PREFIX}balance:a")
            await one.walk_if_due()
            assert keys(redis_server) == 0  # It was walked through, and is the same Redis.
