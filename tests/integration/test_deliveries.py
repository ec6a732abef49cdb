"""Deliveries in the database: each event once for each endpoint, in order for each account, and none lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from ledger.database import operator_pool
from ledger.embedded import ConnectionUrls
from ledger.events import deliveries
from ledger.events.deliveries import Attempt, Claimed, Deliveries
from ledger.events.endpoints import Endpoint
from ledger.events.ladder import Status
from ledger.events.replays import NotReplayed, replay
from tests.support.events import NOON, Outbox, endpoint

OK = Attempt(200, None, 5)
FAILED = Attempt(500, None, 5)
MAIN = endpoint()
MANY = 1_000


@pytest.fixture
async def pool(database: ConnectionUrls) -> AsyncIterator[asyncpg.Pool]:
    async with operator_pool(database.service, 4) as opened:
        yield opened


@pytest.fixture
async def outbox(pool: asyncpg.Pool) -> Outbox:
    outbox = Outbox(pool)
    await outbox.at(NOON)
    return outbox


@pytest.fixture
async def sut(pool: asyncpg.Pool, outbox: Outbox) -> Deliveries:
    sut = Deliveries(pool, simulated_clock=True)
    await sut.register(MAIN)
    return sut


async def fan_out(sut: Deliveries, to: Endpoint = MAIN) -> None:
    while await sut.fan_out(to):
        pass


async def claim(sut: Deliveries, to: Endpoint = MAIN, most: int = MANY) -> dict[str, Claimed]:
    await fan_out(sut, to)
    return {claimed.id: claimed for claimed in await sut.claim(to, most)}


async def end(sut: Deliveries, claimed: Claimed) -> None:
    assert await sut.record(claimed, "delivered", None, OK)


async def expire_leases(pool: asyncpg.Pool) -> None:
    await pool.execute(
        "update ledger.deliveries set claimed_until = now() - interval '1 second' where status = 'pending'"
    )


async def test_each_endpoint_gets_what_it_asks_for(sut: Deliveries, outbox: Outbox) -> None:
    spend = endpoint("spend", types=("credits.exhausted",))
    test = endpoint("test", environment="test")
    for each in (spend, test):
        await sut.register(each)
    await outbox.tells("a", "a1", type="job.expired")
    await outbox.tells("b", "b1", type="credits.exhausted")
    await outbox.tells("c", "c1", type="credits.exhausted", environment="test")
    assert set(await claim(sut)) == {"a1", "b1"}
    assert set(await claim(sut, spend)) == {"b1"}
    assert set(await claim(sut, test)) == {"c1"}


async def test_a_new_endpoint_begins_now_or_from_the_start(sut: Deliveries, outbox: Outbox) -> None:
    await outbox.tells("a", "before")
    late, all_of_it = endpoint("late"), endpoint("all", from_start=True)
    for each in (late, all_of_it):
        await sut.register(each)
    await outbox.tells("b", "after")
    await sut.register(late)  # As a service that is started again does.
    assert set(await claim(sut, late)) == {"after"}
    assert set(await claim(sut, all_of_it)) == {"before", "after"}


async def test_only_the_first_of_an_account_is_due(sut: Deliveries, outbox: Outbox) -> None:
    await outbox.tells("a", "a1", "a2", "a3")
    await outbox.tells("b", "b1", "b2")
    first = await claim(sut)
    assert set(first) == {"a1", "b1"}
    assert await claim(sut) == {}
    await end(sut, first["a1"])
    second = await claim(sut)
    assert set(second) == {"a2"}
    await outbox.tells("a", "a4")
    assert await claim(sut) == {}
    await end(sut, second["a2"])
    third = await claim(sut)
    await end(sut, third["a3"])
    assert set(await claim(sut)) == {"a4"}


async def test_one_account_on_its_ladder_holds_up_no_other(sut: Deliveries, outbox: Outbox) -> None:
    await outbox.tells("a", "a1", "a2")
    first = await claim(sut)
    assert await sut.record(first["a1"], "pending", timedelta(minutes=1), FAILED)
    await outbox.tells("b", "b1", "b2")
    assert set(await claim(sut)) == {"b1"}
    await outbox.at(NOON + timedelta(seconds=59))
    assert await claim(sut) == {}
    await outbox.at(NOON + timedelta(seconds=60))
    again = await claim(sut)
    assert set(again) == {"a1"}
    assert again["a1"].attempts == 1


@pytest.mark.parametrize("status", ["delivered", "exhausted", "gone", "undeliverable"])
async def test_whatever_ends_one_lets_the_next_of_its_account_go(
    sut: Deliveries, outbox: Outbox, status: Status
) -> None:
    await outbox.tells("a", "a1", "a2")
    first = await claim(sut)
    assert await sut.record(first["a1"], status, None, "too_large" if status == "undeliverable" else FAILED)
    assert set(await claim(sut)) == {"a2"}


async def test_many_pages_keep_their_order(sut: Deliveries, outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "PAGE_EVENTS", 7)
    ids = [f"a{n:02}" for n in range(50)]
    await outbox.tells("a", *ids)
    await outbox.tells("x", "x", environment="test")
    assert await sut.fan_out(MAIN)
    sent = []
    while found := await claim(sut):
        for claimed in found.values():
            sent.append(claimed.id)
            await end(sut, claimed)
    assert sent == ids


async def test_two_replicas_share_the_work_and_send_nothing_twice(
    sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool
) -> None:
    """Both fan out, claim and record at once; every account's events arrive once, in order."""
    for account in range(20):
        await outbox.tells(f"a{account}", *(f"{account:02}-{n}" for n in range(10)))
    sent: list[str] = []

    async def replica() -> None:
        own = Deliveries(pool, simulated_clock=True)
        while len(sent) < 200:
            await fan_out(own)
            for claimed in await own.claim(MAIN, 3):
                sent.append(claimed.id)
                await asyncio.sleep(0)
                await end(own, claimed)

    async with asyncio.timeout(60):
        await asyncio.gather(replica(), replica(), replica())
    assert max(Counter(sent).values()) == 1
    for account in range(20):
        mine = [id for id in sent if id.startswith(f"{account:02}-")]
        assert mine == [f"{account:02}-{n}" for n in range(10)]


async def test_an_event_that_comes_as_the_last_ends_is_not_forgotten(sut: Deliveries, outbox: Outbox) -> None:
    """Fanning out and recording race for the endpoint's lock: whoever is second sees what the first did."""
    for n in range(30):
        await outbox.tells("a", f"first-{n}")
        first = (await claim(sut))[f"first-{n}"]
        await outbox.tells("a", f"second-{n}")
        await asyncio.gather(end(sut, first), fan_out(sut))
        await end(sut, (await claim(sut))[f"second-{n}"])


async def test_what_a_crash_left_is_sent_again_under_its_id_and_keeps_its_step(
    sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool
) -> None:
    """The process died between sending and recording: nothing was counted, and nothing is lost."""
    await outbox.tells("a", "a1", "a2")
    crashed = (await claim(sut))["a1"]
    assert await claim(sut) == {}
    await expire_leases(pool)
    again = (await claim(sut))["a1"]
    assert (again.id, again.event, again.attempts) == (crashed.id, crashed.event, 0)
    await end(sut, again)
    assert await pool.fetchval("select attempts from ledger.deliveries where id = 'a1'") == 1


async def test_whoever_lost_its_lease_records_nothing(sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool) -> None:
    await outbox.tells("a", "a1", "a2")
    slow = (await claim(sut))["a1"]
    await expire_leases(pool)
    quick = (await claim(sut))["a1"]
    assert not await sut.record(slow, "exhausted", None, FAILED)
    assert await pool.fetchval("select status from ledger.deliveries where id = 'a1'") == "pending"
    assert await claim(sut) == {}
    await sut.give_back([slow])
    assert await claim(sut) == {}
    await end(sut, quick)
    assert not await sut.record(slow, "exhausted", None, FAILED)
    assert [tuple(row) for row in await pool.fetch("select number, status_code from ledger.delivery_attempts")] == [
        (1, 200)
    ]


async def test_what_is_given_back_is_due_at_once(sut: Deliveries, outbox: Outbox) -> None:
    await outbox.tells("a", "a1")
    first = await claim(sut)
    await sut.give_back(list(first.values()))
    assert set(await claim(sut)) == {"a1"}


async def test_the_record_says_how_each_attempt_went(sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool) -> None:
    """R5: without the body."""
    await outbox.tells("a", "a1", data='{"job_id":"secret-job"}')
    now = NOON
    for n, attempt in enumerate((FAILED, Attempt(None, "timeout", 10_000), OK), start=1):
        claimed = (await claim(sut))["a1"]
        ended = n == 3
        wait = None if ended else timedelta(minutes=n)
        assert await sut.record(claimed, "delivered" if ended else "pending", wait, attempt)
        now += timedelta(minutes=n)
        await outbox.at(now)
    tried = await pool.fetch("select number, at, status_code, error, milliseconds from ledger.delivery_attempts")
    assert [tuple(row) for row in tried] == [
        (1, NOON, 500, None, 5),
        (2, NOON + timedelta(minutes=1), None, "timeout", 10_000),
        (3, NOON + timedelta(minutes=3), 200, None, 5),
    ]
    row = await pool.fetchrow("select * from ledger.deliveries")
    assert row is not None
    assert (row["status"], row["attempts"], row["status_code"], row["error"]) == ("delivered", 3, 200, None)
    assert (row["created_at"], row["finished_at"]) == (NOON, NOON + timedelta(minutes=3))
    assert (row["next_attempt_at"], row["claimed_until"]) == (None, None)
    assert "secret-job" not in str(dict(row))


async def test_r7_an_event_that_is_gone_has_nothing_to_send(
    sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool
) -> None:
    await outbox.tells("a", "a1", "a2", type="credits.exhausted")
    await fan_out(sut)
    await pool.execute("delete from ledger.events where id = 'a1'")
    await pool.execute("update ledger.accounts set account_id = null")
    first = (await claim(sut))["a1"]
    assert first.event is None
    assert await sut.record(first, "undeliverable", None, "event_deleted")
    row = await pool.fetchrow("select status, attempts, error from ledger.deliveries where id = 'a1'")
    assert row is not None
    assert tuple(row) == ("undeliverable", 0, "event_deleted")
    second = (await claim(sut))["a2"]
    assert second.event is not None
    assert second.event.account_id is None


async def test_a_replay_is_a_new_delivery_beside_the_order(sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool) -> None:
    other = endpoint("other", types=("job.expired",))
    await sut.register(other)
    await outbox.tells("a", "a1", "a2")
    first = await claim(sut)
    await claim(sut, other)
    made = await replay(pool, "a1", None)
    assert [(each.endpoint, each.id) for each in made] == [("main", "a1:r1"), ("other", "a1:r1")]
    assert [(each.endpoint, each.id) for each in await replay(pool, "a1", "main")] == [("main", "a1:r2")]
    replays = await claim(sut)
    assert set(replays) == {"a1:r1", "a1:r2"}
    assert replays["a1:r2"].event == first["a1"].event
    for claimed in replays.values():
        await end(sut, claimed)
    assert await claim(sut) == {}, "the order of the account is as it was"
    await end(sut, first["a1"])
    assert set(await claim(sut)) == {"a2"}


async def test_replays_at_once_have_different_numbers(sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool) -> None:
    await outbox.tells("a", "a1")
    made = await asyncio.gather(*(replay(pool, "a1", None) for _ in range(10)))
    assert {each.id for replays in made for each in replays} == {f"a1:r{n}" for n in range(1, 11)}


@pytest.mark.parametrize(
    ("id", "name", "complaint"),
    [
        ("none", None, "there is no event none"),
        ("a1", "nobody", "there is no endpoint nobody; there are: main, spend"),
        ("a1", "spend", "the endpoint spend does not receive job.expired of live"),
        ("t1", None, "no endpoint receives job.expired of test"),
    ],
)
async def test_what_cannot_be_replayed_is_said(
    sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool, id: str, name: str | None, complaint: str
) -> None:
    await sut.register(endpoint("spend", types=("credits.exhausted",)))
    await outbox.tells("a", "a1")
    await outbox.tells("a", "t1", environment="test")
    with pytest.raises(NotReplayed, match=f"^{complaint}$"):
        await replay(pool, id, name)
    assert await pool.fetchval("select count(*) from ledger.deliveries") == 0


NOT_ALLOWED, KEPT = "42501", "23000"


@pytest.mark.parametrize(
    "statement",
    [
        "delete from ledger.deliveries",
        "delete from ledger.deliveries where false",
        "truncate ledger.deliveries, ledger.delivery_attempts",
        "update ledger.deliveries set id = id",
        "update ledger.deliveries set endpoint = endpoint, created_at = now()",
        "delete from ledger.delivery_attempts",
        "update ledger.delivery_attempts set status_code = 200",
        "delete from ledger.endpoints",
    ],
)
async def test_r5_the_service_cannot_delete_or_forge_the_record(
    sut: Deliveries, outbox: Outbox, pool: asyncpg.Pool, statement: str
) -> None:
    await outbox.tells("a", "a1")
    await end(sut, (await claim(sut))["a1"])
    with pytest.raises(asyncpg.PostgresError) as raised:
        await pool.execute(statement)
    assert raised.value.sqlstate == NOT_ALLOWED


@pytest.mark.parametrize(
    "statement",
    [
        "delete from ledger.deliveries",
        "truncate ledger.deliveries, ledger.delivery_attempts",
        "delete from ledger.delivery_attempts",
        "update ledger.delivery_attempts set status_code = 200",
    ],
)
async def test_r5_nor_does_the_owner_by_an_ordinary_statement(database: ConnectionUrls, statement: str) -> None:
    owner = await asyncpg.connect(database.owner)
    try:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await owner.execute(statement)
    finally:
        await owner.close()
