"""Signed deliveries by the service itself: exactly one for each event, through crashes and by hand (V3, V4, R7)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from ledger.embedded import ConnectionUrls
from ledger.failpoints import VARIABLE
from tests.support.client import Client, connect
from tests.support.events import OLD_SECRET, SECRET
from tests.support.receiver import Receiver, receiving, verified
from tests.support.service import STOP_SECONDS_MAX, Service

ACCOUNTS = 12
EVENTS_EACH = 4

Services = Callable[..., Service]


def endpoints_file(folder: Path, receiver: Receiver, *paths: str, more: str = "") -> str:
    """Write a file with an endpoint of all events of `live` for each path, named after it."""
    path = folder / "endpoints.toml"
    path.write_text(
        "\n".join(
            f'[endpoints.{each.strip("/")}]\nurl = "{receiver.url}{each}"\nenvironment = "live"\nallow_private = true\n'
            f'secrets = ["{SECRET}", "{OLD_SECRET}"]\n{more}'
            for each in paths
        )
    )
    return str(path)


async def told(client: Client) -> list[str]:
    return [event["id"] for event in (await client.get("/v1/events?limit=500")).body["data"]]


async def test_v1_v3_fifty_settlements_across_a_threshold_are_told_once(
    database: ConnectionUrls, services: Services, tmp_path: Path
) -> None:
    async with receiving() as receiver:
        hooks = endpoints_file(tmp_path, receiver, "/ok", "/204")
        service = services("--database-url", database.service, "--webhooks", hooks)
        async with connect(service) as client:
            await client.open_account("a", 11 * 50 + 50)
            await asyncio.gather(*(client.reserve("a", f"j{n}") for n in range(50)))
            settled = await asyncio.gather(*(client.settle("a", f"j{n}") for n in range(50)))
            assert {answer.status for answer in settled} == {200}
            await receiver.until(lambda: len(receiver.requests) == 2)
            (event,) = (await client.get("/v1/events")).body["data"]
            await client.open_account("b")
            await client.reserve("b", "j")  # Its event comes after whatever else there might be.
            await receiver.until(lambda: len(receiver.requests) >= 4)
        assert service.stop() == 0
    assert len(receiver.requests) == 4
    for path in ("/ok", "/204"):
        first, second = receiver.at(path)
        assert first.event["type"] == "credits.threshold_reached"
        assert second.event["type"] == "credits.exhausted"
        assert first.event["id"] == event["id"]
        assert (first.event["account_id"], first.event["data"]) == ("a", event["data"])
        assert "replay_of" not in first.event
        assert verified(first.signature, first.body, SECRET)
        assert verified(first.signature, first.body, OLD_SECRET)
    log = service.log.read_text()
    assert "whsec_" not in log
    assert receiver.url not in log


async def raise_events(client: Client, account: str, first: int) -> None:
    """Raise one event a grant: each refusal after one is told of."""
    for n in range(first, first + EVENTS_EACH // 2):
        await client.grant(account, f"g{n}", 1)
        refused = await client.reserve(account, f"j{n}")
        assert refused.status == 402, refused


async def test_a_service_that_is_killed_in_the_middle_loses_nothing_and_keeps_the_order(
    database: ConnectionUrls, services: Services, tmp_path: Path
) -> None:
    """Killed with deliveries on their way, answered and not recorded, and not yet begun; events go on meanwhile."""
    async with receiving() as receiver:
        hooks = endpoints_file(tmp_path, receiver, "/held", "/ok")
        options = ("--database-url", database.service, "--webhooks", hooks)
        first = services(*options)
        async with connect(first) as client:
            for n in range(ACCOUNTS):
                await client.open_account(f"a{n}")
                await raise_events(client, f"a{n}", 0)
            await receiver.until(lambda: len(receiver.at("/held")) >= ACCOUNTS)
        first.kill()
        receiver.held.set()
        owner = await asyncpg.connect(database.owner)
        await owner.execute("update ledger.deliveries set claimed_until = now() where claimed_until > now()")
        await owner.close()
        second = services(*options)
        async with connect(second) as client:
            for n in range(ACCOUNTS):
                await raise_events(client, f"a{n}", 100)
            events = await told(client)
        assert len(events) == ACCOUNTS * EVENTS_EACH
        for path in ("/held", "/ok"):
            await receiver.until(lambda path=path: set(receiver.ids(path)) == set(events))  # type: ignore[misc] # its default is its kind
        second.stop()
    for path in ("/held", "/ok"):
        of_account: dict[str, list[str]] = defaultdict(list)
        bodies: dict[str, set[bytes]] = defaultdict(set)
        for request in receiver.at(path):
            of_account[request.event["account_id"]].append(request.event["id"])
            bodies[request.event["id"]].add(request.body)
        assert {len(each) for each in bodies.values()} == {1}, "an id always comes with the same bytes"
        for ids in of_account.values():
            assert list(dict.fromkeys(ids)) == [event for event in events if event in ids]
            assert ids == sorted(ids, key=events.index), "none is sent again once a later one was sent"


async def test_a_service_that_dies_between_an_answer_and_its_record_sends_again_under_the_same_id(
    database: ConnectionUrls, services: Services, tmp_path: Path
) -> None:
    """What was acknowledged and not recorded comes a second time, everything else once, and nothing is lost (V3)."""
    async with receiving() as receiver:
        hooks = endpoints_file(tmp_path, receiver, "/ok")
        options = ("--database-url", database.service, "--webhooks", hooks)
        dying = services(*options, environment={VARIABLE: f"deliver=kill#{ACCOUNTS}"})
        async with connect(dying) as client:
            for n in range(ACCOUNTS):
                await client.open_account(f"a{n}", 10)
                with contextlib.suppress(aiohttp.ClientError):  # It may be dead by the last of them.
                    await client.reserve(f"a{n}", "j")
            assert await asyncio.to_thread(dying.process.wait, STOP_SECONDS_MAX) == -9
        owner = await asyncpg.connect(database.owner)
        await until(owner, "select count(*) = 1 from pg_stat_activity where datname = current_database()")
        recorded = await owner.fetch("select id from ledger.deliveries where status = 'delivered'")
        await owner.execute("update ledger.deliveries set claimed_until = now() where claimed_until > now()")
        async with connect(services(*options)) as client:
            events = await told(client)
            assert len(events) == ACCOUNTS
            await until(owner, f"select count(*) = {ACCOUNTS} from ledger.deliveries where status = 'delivered'")
        await owner.close()
    times = Counter(receiver.ids("/ok"))
    assert set(times) == set(events)
    assert all(times[row["id"]] == 1 for row in recorded)
    assert max(times.values()) == 2, "what it died with was answered and not recorded"
    assert len({request.body for request in receiver.requests}) == ACCOUNTS, "an id always comes with the same bytes"


async def run(*arguments: str) -> tuple[int, str]:
    """Run the command line, and return its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("gateway-ledger"),
        *arguments,
        env={},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_v4_an_event_is_replayed_by_hand(database: ConnectionUrls, services: Services, tmp_path: Path) -> None:
    async with receiving() as receiver:
        hooks = endpoints_file(tmp_path, receiver, "/ok", "/410")
        service = services("--database-url", database.service, "--webhooks", hooks)
        async with connect(service) as client:
            await client.open_account("a")
            await client.reserve("a", "j")
            (id,) = await told(client)
        await receiver.until(lambda: len(receiver.requests) == 2)
        where = ("--database-url", database.service)
        assert await run("events", "replay", id, *where) == (0, f"410: {id}:r1\nok: {id}:r1\n")
        assert await run("events", "replay", id, "--endpoint", "ok", *where) == (0, f"ok: {id}:r2\n")
        await receiver.until(lambda: len(receiver.requests) == 5)
        original, *replays = receiver.at("/ok")
        for replay in replays:
            assert replay.event["replay_of"] == id
            assert {**replay.event, "id": id} == {**original.event, "replay_of": id}
            assert verified(replay.signature, replay.body, SECRET)
        assert sorted(receiver.ids("/ok")) == [id, f"{id}:r1", f"{id}:r2"]

        await until_ended(database, 5)
        code, said = await run("events", "deliveries", "--event", id, *where)
        lines = [line.split() for line in said.splitlines()[1:]]
        assert code == 0
        assert sorted((line[1], line[2], line[4], line[5], line[6]) for line in lines) == [
            ("410", id, "gone", "1", "410"),
            ("410", f"{id}:r1", "gone", "1", "410"),
            ("ok", id, "delivered", "1", "204"),
            ("ok", f"{id}:r1", "delivered", "1", "204"),
            ("ok", f"{id}:r2", "delivered", "1", "204"),
        ]
        for arguments, complaint in (
            (("evt_none", *where), "Error: there is no event evt_none\n"),
            ((id, "--endpoint", "x", *where), "Error: there is no endpoint x; there are: 410, ok\n"),
        ):
            assert await run("events", "replay", *arguments) == (1, complaint)
        code, said = await run("events", "replay", id, "--database-url", "postgresql://nobody@127.0.0.1:1/none")
        assert (code, said.startswith("Error: the database cannot be used: ")) == (1, True)
    assert len(receiver.requests) == 5


async def until_ended(database: ConnectionUrls, count: int) -> None:
    owner = await asyncpg.connect(database.owner)
    await until(owner, f"select count(*) = {count} from ledger.deliveries where status <> 'pending'")
    await owner.close()


async def until(owner: asyncpg.Connection, condition: str) -> None:
    """Wait until a query says true."""
    async with asyncio.timeout(60):
        while not await owner.fetchval(condition):  # noqa: ASYNC110 - another process makes it so
            await asyncio.sleep(0.05)


async def test_r7_what_a_deleted_account_was_still_to_be_told_is_not_sent(
    database: ConnectionUrls, services: Services, tmp_path: Path
) -> None:
    """Its events are gone with it; that there was a delivery stays, and names nothing (R5)."""
    async with receiving() as receiver:
        hooks = endpoints_file(tmp_path, receiver, "/500")
        service = services("--database-url", database.service, "--webhooks", hooks, "--simulated-clock")
        async with connect(service) as client:
            await client.open_account("zebra", 100)
            await client.reserve("zebra", "zebra-job", ttl_seconds=1, metadata={"name": "zebra"})
            await client.call("PUT", "/v1/clock", {"now": "2036-01-01T00:00:00Z"})
            await client.call("POST", "/v1/sweeps/expire_holds")
            await receiver.until(lambda: len(receiver.requests) == 1)
            await client.call("POST", "/v1/accounts/zebra/deletion")
            receiver.faults["/500"] = "/ok"
            owner = await asyncpg.connect(database.owner)
            await owner.execute("update ledger.deliveries set next_attempt_at = '2036-02-10' where attempts = 1")
            await client.call("PUT", "/v1/clock", {"now": "2036-02-05T00:00:00Z"})
            swept = await client.call("POST", "/v1/sweeps/delete_accounts")
            assert swept.body["counts"]["accounts_deleted"] == 1
            await client.call("PUT", "/v1/clock", {"now": "2036-02-10T00:00:00Z"})
            await until(owner, "select bool_or(status = 'undeliverable') from ledger.deliveries")
            record: Sequence[asyncpg.Record] = await owner.fetch("select * from ledger.deliveries order by delivery")
            await owner.close()
    first = record[0]
    assert (first["type"], first["status"], first["error"]) == ("job.expired", "undeliverable", "event_deleted")
    assert first["attempts"] == 1
    assert "zebra" not in str([dict(row) for row in record])
    later = receiver.requests[1:]
    assert {request.event["account_id"] for request in later} <= {None}
    assert b"zebra" not in b"".join(request.body for request in later)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ('types = ["job.done"]\n', "endpoint ok: types[0]: invalid enum value 'job.done'"),
        ("retries = 9\n", "endpoint ok: Object contains unknown field `retries`"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_at_the_start(
    database: ConnectionUrls, services: Services, tmp_path: Path, more: str, complaint: str
) -> None:
    async with receiving() as receiver:
        hooks = endpoints_file(tmp_path, receiver, "/ok", more=more)
        with pytest.raises(AssertionError, match="the service did not start") as raised:
            await asyncio.to_thread(services, "--database-url", database.service, "--webhooks", hooks)
    assert complaint in str(raised.value)
    assert "whsec_" not in str(raised.value).replace("SECRET", "")
