"""Events in Redis Streams: each once, in order, without a gap, whoever publishes and whatever Redis loses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from ledger.core.commands import DeleteAccount, Environment, RequestDeletion
from ledger.database import read_engine
from ledger.embedded import ConnectionUrls
from ledger.events import streams as streams_module
from ledger.events.link import connect
from ledger.events.streams import Streams
from ledger.queries import PageRequest, Reading
from ledger.queries.events import events, events_behind
from ledger.store.statements import LOCK_EVENTS
from tests.support.history import START
from tests.support.mirror import PREFIX, ledger_telling, mirror_of, mirrored, until
from tests.support.reading import shown
from tests.support.redis import RedisServer, running_redis

LIVE, TEST = f"{PREFIX}events:live", f"{PREFIX}events:test"

Positions = list[int]


@contextlib.asynccontextmanager
async def publisher(database: ConnectionUrls, url: str, length: int = 100_000) -> AsyncIterator[Streams]:
    reads, client = read_engine(database.service, 2), connect(url)
    try:
        yield Streams(client, Reading(reads), prefix=PREFIX, length=length)
    finally:
        await client.aclose()
        await reads.dispose()


class Writer:
    """Writes events as batches do: under the lock, many transactions at a time, some of which come to nothing."""

    def __init__(self, pool: asyncpg.Pool, account: int) -> None:
        self._pool = pool
        self._account = account
        self._count = 0

    async def write(self, count: int, environment: Environment = "live", *, fails: bool = False) -> None:
        self._count += 1
        once = f"once-{self._count}-"
        async with self._pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(LOCK_EVENTS)
            await connection.execute(
                "insert into ledger.events (account, id, once, type, environment, created, data)"
                " select $1, 'evt_' || $2 || n, $2 || n, 'job.expired', $3, now(), json_build_object('n', n)"
                " from generate_series(1, $4::int) n",
                *(self._account, once, environment, count),
            )
            await (transaction.rollback() if fails else transaction.commit())


@contextlib.asynccontextmanager
async def writing(database: ConnectionUrls) -> AsyncIterator[Writer]:
    async with ledger_telling(database, None) as ledger:
        await ledger.customer("a")
        number = await ledger.pool.fetchval("select account from ledger.accounts")
        yield Writer(ledger.pool, number)


async def positions(database: ConnectionUrls, environment: Environment = "live") -> Positions:
    connection = await asyncpg.connect(database.owner)
    try:
        rows = await connection.fetch(
            "select position from ledger.events where environment = $1 order by position", environment
        )
    finally:
        await connection.close()
    return [row["position"] for row in rows]


def stream(server: RedisServer, key: str = LIVE) -> Any:
    with server.client() as client:
        return client.xrange(key)


def ids(server: RedisServer, key: str = LIVE) -> Positions:
    return [int(id.removesuffix("-0")) for id, _ in stream(server, key)]


async def test_the_streams_have_what_the_interface_shows(database: ConnectionUrls, redis_server: RedisServer) -> None:
    async with mirrored(database, redis_server.url, START) as ledger:
        a, b = await ledger.customer("a", 1_000), await ledger.customer("b", 1_000)
        for n in range(5):
            await a.reserves(f"a{n}", ("agent_turn", 1), ttl_seconds=60 + n)
            await b.reserves(f"b{n}", ("agent_turn", 1), ttl_seconds=60 + n, environment="test")
        await ledger.at(START + timedelta(hours=1))
        await a.is_brought_up()
        await b.is_brought_up()
        await until(lambda: len(ids(redis_server)) == len(ids(redis_server, TEST)) == 5)
        everything = (await shown(events(ledger.reading, None, PageRequest(500))))["data"]
        for environment, key in (("live", LIVE), ("test", TEST)):
            told = [json.loads(fields["event"]) for _, fields in stream(redis_server, key)]
            assert told == [event for event in everything if event["environment"] == environment]
        assert ids(redis_server) == await positions(database)


async def test_many_publishers_and_writers_at_once(database: ConnectionUrls, redis_server: RedisServer) -> None:
    """Every event is there once and in order, whoever of four was first with which page."""
    async with writing(database) as writer, contextlib.AsyncExitStack() as stack:
        publishers = [await stack.enter_async_context(publisher(database, redis_server.url)) for _ in range(4)]
        done = asyncio.Event()

        async def publish(one: Streams) -> None:
            while not done.is_set():
                await one.publish()
            await one.publish()

        async def write(seed: int) -> None:
            chance = random.Random(seed)  # noqa: S311 - of a test
            for _ in range(30):
                environment: Environment = chance.choice(("live", "test"))
                await writer.write(chance.randrange(1, 60), environment, fails=chance.random() < 0.2)

        tasks = [asyncio.create_task(publish(one)) for one in publishers]
        await asyncio.gather(*(write(seed) for seed in range(4)))
        done.set()
        await asyncio.gather(*tasks)
        assert ids(redis_server) == await positions(database)
        assert ids(redis_server, TEST) == await positions(database, "test")


def lose_the_tail(server: RedisServer, left: int) -> None:
    """Put a stream back to what it was earlier, as a Redis that starts again from an older copy does."""
    with server.client() as client, client.pipeline() as pipeline:
        kept: Any = client.xrange(LIVE)
        pipeline.delete(LIVE)
        for id, fields in kept[:left]:
            pipeline.xadd(LIVE, fields, id=id)
        pipeline.execute()


@pytest.mark.parametrize("left", [0, 3])
async def test_a_page_that_was_read_before_the_tail_was_lost_leaves_no_gap(
    database: ConnectionUrls, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    async with writing(database) as writer, publisher(database, redis_server.url) as one:
        await writer.write(10)
        await one.publish()
        await writer.write(10)
        losses = [left]

        async def read_and_lose(*given: Any) -> Any:
            page = await events_behind(*given)
            if page and losses:
                lose_the_tail(redis_server, losses.pop())
            return page

        monkeypatch.setattr(streams_module, "events_behind", read_and_lose)
        await one.publish()
        assert not losses
        assert ids(redis_server) == await positions(database)


async def test_losses_at_any_moment_between_two_publishers(
    database: ConnectionUrls, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is without a gap after every single step, not only in the end."""
    monkeypatch.setattr(streams_module, "PAGE", 7)
    chance = random.Random(4711)  # noqa: S311 - of a test
    async with (
        writing(database) as writer,
        publisher(database, redis_server.url) as one,
        publisher(database, redis_server.url) as other,
    ):
        for _ in range(40):
            await writer.write(chance.randrange(1, 20))
            tasks = [asyncio.create_task(each.publish()) for each in (one, other)]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(chance.random() / 100)
                lose_the_tail(redis_server, chance.randrange(len(ids(redis_server)) + 1))
                there = ids(redis_server)
                assert there == (await positions(database))[: len(there)]
            await asyncio.gather(*tasks)
            there = ids(redis_server)
            assert there == (await positions(database))[: len(there)]
        await one.publish()
        assert ids(redis_server) == await positions(database)


async def test_an_empty_stream_is_given_the_newest_events(database: ConnectionUrls, redis_server: RedisServer) -> None:
    async with writing(database) as writer, publisher(database, redis_server.url, length=300) as one:
        await writer.write(2_000)
        await one.publish()
        assert ids(redis_server) == (await positions(database))[-300:]
        await writer.write(2_000)
        await one.publish()
        there = ids(redis_server)
        assert 300 <= len(there) < 1_000  # Redis trims whole nodes of a hundred.
        assert there == (await positions(database))[-len(there) :]


async def test_publishers_that_begin_with_an_empty_stream_at_once(
    database: ConnectionUrls, redis_server: RedisServer
) -> None:
    """Each leaves out what is too old by its own reckoning, and still there is no gap."""
    async with writing(database) as writer, contextlib.AsyncExitStack() as stack:
        await writer.write(3_000)
        for _ in range(5):
            publishers = [await stack.enter_async_context(publisher(database, redis_server.url, 500)) for _ in "abc"]
            with redis_server.client() as client:
                client.delete(LIVE)
            await asyncio.gather(writer.write(700), *(one.publish() for one in publishers))
            await publishers[0].publish()
            there = ids(redis_server)
            assert there == (await positions(database))[-len(there) :]
            assert len(there) >= 500


async def test_a_stream_that_is_ahead_of_the_ledger_is_told(
    database: ConnectionUrls, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The database was put back to an earlier day: events that come now would be taken for old ones."""
    async with writing(database) as writer, publisher(database, redis_server.url) as one:
        await writer.write(3)
        with redis_server.client() as client:
            client.xadd(LIVE, {"event": "{}"}, id="1000000-0")
        await one.publish()
    said = capsys.readouterr()
    assert "stream_ahead" in said.out + said.err


@pytest.mark.parametrize(
    "options", [(), ("--appendonly", "yes", "--appendfsync", "everysec")], ids=["forgets", "appends"]
)
async def test_redis_is_killed_and_starts_again_in_the_middle(
    database: ConnectionUrls, options: tuple[str, ...]
) -> None:
    with running_redis(*options) as server:
        async with writing(database) as writer, contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(mirror_of(database, server.url, simulated_clock=False))
            for _ in range(3):
                for _ in range(20):
                    await writer.write(25)
                await until(lambda: len(ids(server)) > 100)
                server.kill()
                await writer.write(25)
                server.start()
            await writer.write(1)
            everything = await positions(database)
            await until(lambda: ids(server) == everything)


async def test_a_deletion_takes_the_events_that_name_the_account(
    database: ConnectionUrls, redis_server: RedisServer
) -> None:
    """R7: what still names the account goes, what is told without its name stays."""
    async with ledger_telling(database, START) as ledger, publisher(database, redis_server.url) as one:
        customers = [await ledger.customer(name, 1_000) for name in ("leaves", "stays")]
        for customer in customers:
            await customer.reserves("lost", ("agent_turn", 1), ttl_seconds=60)
            await customer.reserves("paid", ("agent_turn", 1))
            await customer.settles("paid", ("agent_turn", 1))
        await ledger.at(START + timedelta(hours=1))
        for customer in customers:
            await customer.is_brought_up()
        await one.publish()
        assert len(ids(redis_server)) == 2
        leaves, stays = customers
        await leaves.does(RequestDeletion(account_id="leaves", confirmation_code="code"))
        await ledger.at(START + timedelta(days=31))
        await leaves.does(DeleteAccount(account_id="leaves"))
        await one.publish()
        await one.forget_deleted()
        told = [json.loads(fields["event"]) for _, fields in stream(redis_server)]
        assert {event["account_id"] for event in told} == {"stays", None}
        assert {e["type"] for e in told if e["account_id"] is None} == {"period.closed"}
        await stays.reserves("again", ("agent_turn", 1), ttl_seconds=60)
        with redis_server.client() as client:
            assert client.ttl(f"{PREFIX}events:checked") > 3_000


async def test_consumer_groups_as_the_readme_has_them(database: ConnectionUrls, redis_server: RedisServer) -> None:
    """Two consumers share the events; what one of them took and never acknowledged is claimed by the other."""
    async with writing(database) as writer, publisher(database, redis_server.url) as one:
        with redis_server.client() as client:
            assert client.execute_command("XGROUP CREATE ledger:events:live billing 0 MKSTREAM")
            await writer.write(10)
            await one.publish()
            taken = read_group(client, "worker-1", 4)
            rest = read_group(client, "worker-2", 100)
            assert [*taken, *rest] == ids(redis_server)
            assert client.execute_command("XACK", LIVE, "billing", *(f"{n}-0" for n in rest)) == 6
            claimed = client.execute_command("XAUTOCLAIM ledger:events:live billing worker-2 0 0-0 COUNT 100")[1]
            assert [int(id.removesuffix("-0")) for id, _ in claimed] == taken
            assert client.execute_command("XACK", LIVE, "billing", *(id for id, _ in claimed)) == 4
            assert client.xpending(LIVE, "billing")["pending"] == 0
            await writer.write(1)
            await one.publish()
            assert read_group(client, "worker-1", 100) == ids(redis_server)[-1:]


def read_group(client: Any, consumer: str, count: int) -> Positions:
    command = f"XREADGROUP GROUP billing {consumer} COUNT {count} BLOCK 5000 STREAMS ledger:events:live >"
    entries = client.execute_command(command)[0][1]
    return [int(id.removesuffix("-0")) for id, _ in entries]
