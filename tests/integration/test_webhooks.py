"""V4 on the wire: real receivers that fail in every way, signatures, the ladder, and who may be called at all."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from ledger.core.account import Account
from ledger.database import operator_pool
from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from ledger.events import webhooks
from ledger.events.addresses import public_socket
from ledger.events.endpoints import Endpoint
from ledger.events.sending import ATTEMPT_SECONDS_MAX, Sender
from ledger.events.signing import Secret
from ledger.events.webhooks import Webhooks
from tests.support.events import NOON, OLD_SECRET, SECRET, Outbox, endpoint
from tests.support.receiver import Receiver, receiving, verified

LONG = 50.0
SHORT = 0.5
NOMINAL_MINUTES = (1, 5, 15, 60, 180, 360)


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.05)


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
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@contextlib.asynccontextmanager
async def sending(pool: asyncpg.Pool, *endpoints: Endpoint, seconds_max: float = LONG) -> AsyncIterator[Webhooks]:
    running = Webhooks(pool, endpoints, simulated_clock=True, attempt_seconds_max=seconds_max)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def delivery(pool: asyncpg.Pool, id: str, until: Callable[[asyncpg.Record], bool]) -> asyncpg.Record:
    """Wait until the record of a delivery to the endpoint `main` is so, and return it."""
    async with asyncio.timeout(60):
        while True:
            row = await pool.fetchrow("select * from ledger.deliveries where id = $1 and endpoint = 'main'", id)
            if row is not None and until(row):
                return row
            await asyncio.sleep(0.02)


def ended(row: asyncpg.Record) -> bool:
    return bool(row["status"] != "pending")


async def attempts(pool: asyncpg.Pool, id: str) -> list[tuple[Any, ...]]:
    rows = await pool.fetch(
        "select a.status_code, a.error from ledger.delivery_attempts a join ledger.deliveries d using (delivery)"
        " where d.id = $1 and d.endpoint = 'main' order by a.number",
        id,
    )
    return [tuple(row) for row in rows]


async def test_v4_a_delivery_is_signed_with_every_active_secret(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver
) -> None:
    two = endpoint(url=f"{receiver.url}/ok/path?key=value", secrets=(Secret(SECRET), Secret(OLD_SECRET)))
    async with sending(pool, two):
        await outbox.tells("acme", "evt_1", data='{"job_id":"j-1","metadata":{"name":"Zoë"}}')
        await delivery(pool, "evt_1", ended)
    (request,) = receiver.at("/ok/path")
    assert request.headers["Content-Type"] == "application/json"
    assert request.instant == int(NOON.timestamp())
    assert request.signature.count("v1=") == 2
    assert verified(request.signature, request.body, SECRET)
    assert verified(request.signature, request.body, OLD_SECRET)
    assert not verified(request.signature, request.body, "whsec_somebody-elses-secret")
    assert not verified(request.signature, request.body + b" ", SECRET)
    assert request.event == {
        "id": "evt_1",
        "type": "job.expired",
        "created": int(NOON.timestamp()),
        "environment": "live",
        "account_id": "acme",
        "data": {"job_id": "j-1", "metadata": {"name": "Zoë"}},
    }


async def test_a_receiver_that_is_fine_waits_for_none_that_is_not(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver
) -> None:
    """Every attempt at the silent ones is on its way still when all else has arrived."""
    silent = [endpoint(f"silent-{n}", f"{receiver.url}/silent/{n}") for n in range(5)]
    others = [endpoint(kind, f"{receiver.url}/{kind}") for kind in ("500", "410", "302", "close", "half")]
    async with sending(pool, *silent, *others, endpoint("fine", f"{receiver.url}/ok")):
        for n in range(30):
            await outbox.tells(f"a{n}", f"evt_{n}-1", f"evt_{n}-2")
        await receiver.until(lambda: len(receiver.at("/ok")) == 60)
        tried = await pool.fetchval(
            "select count(*) from ledger.delivery_attempts join ledger.deliveries using (delivery)"
            " where endpoint like 'silent-%'"
        )
        assert tried == 0
        assert len(receiver.at("/silent/0")) == webhooks.CONCURRENT_MAX
    for n in range(30):
        mine = [id for id in receiver.ids("/ok") if id.startswith(f"evt_{n}-")]
        assert mine == [f"evt_{n}-1", f"evt_{n}-2"]


FAULTS: dict[str, tuple[int | None, str | None]] = {
    "/500": (500, None),
    "/404": (404, None),
    "/302": (302, None),
    "/307": (307, None),
    "/silent": (None, "timeout"),
    "/half": (None, "timeout"),
    "/cut": (None, "connection_lost"),
    "/close": (None, "connection_lost"),
}


@pytest.mark.parametrize("path", FAULTS)
async def test_v4_a_failure_is_tried_again_and_then_acknowledged(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver, path: str
) -> None:
    async with sending(pool, endpoint(url=receiver.url + path), seconds_max=SHORT):
        await outbox.tells("a", "evt_1")
        row = await delivery(pool, "evt_1", lambda row: row["attempts"] == 1)
        assert row["status"] == "pending"
        assert NOON + timedelta(seconds=30) <= row["next_attempt_at"] <= NOON + timedelta(seconds=60)
        receiver.faults[path] = "/ok"
        await outbox.at(row["next_attempt_at"])
        assert (await delivery(pool, "evt_1", ended))["status"] == "delivered"
    first, second = receiver.at(path)
    assert first.body == second.body
    assert (first.instant, second.instant) == (int(NOON.timestamp()), int(row["next_attempt_at"].timestamp()))
    assert verified(second.signature, second.body, SECRET)
    assert await attempts(pool, "evt_1") == [FAULTS[path], (204, None)]
    assert receiver.at("/target") == []


async def test_v4_the_ladder_ends_with_the_seventh_attempt(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver
) -> None:
    async with sending(pool, endpoint(url=f"{receiver.url}/503")):
        await outbox.tells("a", "evt_1", "evt_2")
        now = NOON
        for number, minutes in enumerate(NOMINAL_MINUTES, start=1):
            row = await delivery(pool, "evt_1", lambda row, number=number: row["attempts"] == number)  # type: ignore[misc] # its default is its kind
            delay = row["next_attempt_at"] - now
            assert timedelta(minutes=minutes / 2) <= delay <= timedelta(minutes=minutes)
            await outbox.at(row["next_attempt_at"] - timedelta(microseconds=1))
            await asyncio.sleep(0.2)  # Long enough for several looks, which must find nothing.
            assert len(receiver.at("/503")) == number
            now = row["next_attempt_at"]
            await outbox.at(now)
        row = await delivery(pool, "evt_1", ended)
        assert (row["status"], row["attempts"], row["finished_at"]) == ("exhausted", 7, now)
        await delivery(pool, "evt_2", lambda row: row["attempts"] == 1)
    assert receiver.ids("/503") == ["evt_1"] * 7 + ["evt_2"]
    assert len({request.body for request in receiver.at("/503")}) == 2


async def test_v4_a_410_ends_it(pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver) -> None:
    async with sending(pool, endpoint(url=f"{receiver.url}/410")):
        await outbox.tells("a", "evt_1", "evt_2")
        row = await delivery(pool, "evt_2", ended)
    assert (row["status"], row["attempts"], row["status_code"]) == ("gone", 1, 410)
    assert receiver.ids("/410") == ["evt_1", "evt_2"]


async def test_an_answer_without_end_is_not_read_to_it(pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver) -> None:
    async with sending(pool, endpoint(url=f"{receiver.url}/endless")):
        await outbox.tells("a", "evt_1")
        assert (await delivery(pool, "evt_1", ended))["status"] == "delivered"


async def test_what_is_too_large_is_told_without_its_metadata_or_not_at_all(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver
) -> None:
    async with sending(pool, endpoint(url=f"{receiver.url}/ok")):
        big = "x" * 2**18
        await outbox.tells("a", "evt_1", data=f'{{"job_id":"j","metadata":{{"n":"{big}"}}}}')
        await outbox.tells("a", "evt_2", data=f'{{"job_id":"{big}"}}')
        await outbox.tells("a", "evt_3")
        row = await delivery(pool, "evt_2", ended)
        assert (row["status"], row["error"], row["attempts"]) == ("undeliverable", "too_large", 0)
        await delivery(pool, "evt_3", ended)
    assert receiver.ids("/ok") == ["evt_1", "evt_3"]
    assert receiver.at("/ok")[0].event["data"] == {"job_id": "j", "metadata_omitted": True}


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name stand for these addresses."""

    async def resolved(_: object, host: object, port: int, **options: object) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolved)


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("::1", "127.0.0.1"), ("::ffff:127.0.0.1",)])
async def test_a_name_that_stands_for_a_private_address_is_refused(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    """Whatever the name resolved to before: the address that is about to be connected to counts."""
    resolve_to(monkeypatch, *addresses)
    port = receiver.url.rpartition(":")[2]
    guarded = endpoint(url=f"http://hooks.example:{port}/ok", allow_private=False)
    async with sending(pool, guarded, endpoint("allowed", f"{receiver.url}/ok/allowed")):
        await outbox.tells("a", "evt_1")
        await receiver.until(lambda: len(receiver.at("/ok/allowed")) == 1)
        await delivery(pool, "evt_1", lambda row: row["attempts"] == 1)
    assert await attempts(pool, "evt_1") == [(None, "address_refused")]
    assert receiver.at("/ok") == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "localhost", "[::ffff:127.0.0.1]"])
async def test_a_number_is_refused_however_it_is_written(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver, host: str
) -> None:
    port = receiver.url.rpartition(":")[2]
    async with sending(pool, endpoint(url=f"http://{host}:{port}/ok", allow_private=False)):
        await outbox.tells("a", "evt_1")
        row = await delivery(pool, "evt_1", lambda row: row["attempts"] == 1)
    assert row["error"] in ("address_refused", "invalid_url")
    assert receiver.requests == []


async def test_a_public_address_is_connected_to_as_it_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no look-up between the check and the connection: the socket is made of what was checked."""
    checked: list[object] = []
    resolve_to(monkeypatch, "8.8.8.8", "127.0.0.1")

    def note(info: Any) -> socket.socket:
        checked.append(info[4][0])
        return public_socket((*info[:4], ("127.0.0.1", info[4][1])))

    monkeypatch.setattr("ledger.events.sending.public_socket", note)
    sender = Sender(endpoint(url="http://hooks.example/", allow_private=False))
    assert (await sender.send(b"{}", "t=1,v1=0")).error == "address_refused"
    await sender.close()
    assert set(checked) == {"8.8.8.8", "127.0.0.1"}


async def test_what_is_in_the_way_before_anything_is_sent(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/"
        broken = receiver.url.replace("http", "https") + "/ok"
        for name, url, error in (
            ("nobody", nobody, "connection_failed"),
            ("tls", broken, "tls_failed"),
            ("nowhere", "http://nowhere.invalid/", "name_not_resolved"),
        ):
            sender = Sender(endpoint(name, url))
            attempt = await sender.send(b"{}", "t=1,v1=0")
            await sender.close()
            assert (attempt.status_code, attempt.error) == (None, error)
    assert receiver.requests == []


async def test_v4_ten_seconds_of_silence_are_enough(receiver: Receiver) -> None:
    assert ATTEMPT_SECONDS_MAX == 10
    assert inspect.signature(Webhooks).parameters["attempt_seconds_max"].default == ATTEMPT_SECONDS_MAX
    sender = Sender(endpoint(url=f"{receiver.url}/silent"))
    attempt = await sender.send(b"{}", "t=1,v1=0")
    await sender.close()
    assert attempt.error == "timeout"
    assert 9_900 <= attempt.milliseconds < 20_000


async def test_a_stop_gives_back_what_is_on_its_way(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "STOP_SECONDS_MAX", 0.2)
    path = f"{receiver.url}/silent"
    async with sending(pool, endpoint(url=path)):
        await outbox.tells("a", "evt_1")
        await receiver.until(lambda: len(receiver.at("/silent")) == 1)
    row = await delivery(pool, "evt_1", lambda row: row["claimed_until"] is None)
    assert (row["status"], row["attempts"]) == ("pending", 0)
    receiver.faults["/silent"] = "/ok"
    async with sending(pool, endpoint(url=path)):
        assert (await delivery(pool, "evt_1", ended))["status"] == "delivered"
    assert receiver.ids("/silent") == ["evt_1", "evt_1"]


async def test_a_stop_lets_an_answer_that_is_on_its_way_arrive(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver
) -> None:
    async with sending(pool, endpoint(url=f"{receiver.url}/held")):
        await outbox.tells("a", "evt_1")
        await receiver.until(lambda: len(receiver.at("/held")) == 1)
        asyncio.get_running_loop().call_later(0.2, receiver.held.set)
    assert (await delivery(pool, "evt_1", ended))["status"] == "delivered"
    assert receiver.ids("/held") == ["evt_1"]


async def test_connections_that_are_cut_are_made_anew(
    outbox: Outbox,
    receiver: Receiver,
    database: ConnectionUrls,
    postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhooks, "PAUSE_SECONDS", 0.1)
    name = database.service.partition("?")[0].rpartition("/")[2]
    cut = (
        "select pg_terminate_backend(pid) from pg_stat_activity"
        f" where application_name = 'deliveries' and datname = '{name}'"
    )
    operator = await asyncpg.connect(postgres.url("postgres", "postgres"))
    pool = asyncpg.create_pool(database.service, min_size=0, server_settings={"application_name": "deliveries"})
    try:
        async with pool, sending(pool, endpoint(url=f"{receiver.url}/held")):
            await outbox.tells("a", "evt_1", "evt_2")
            await receiver.until(lambda: len(receiver.at("/held")) == 1)
            await operator.execute(cut)
            receiver.held.set()
            await receiver.until(lambda: "evt_2" in receiver.ids("/held"))
            await operator.execute(cut)
            await outbox.tells("a", "evt_3")
            await receiver.until(lambda: "evt_3" in receiver.ids("/held"))
    finally:
        await operator.close()
    assert list(dict.fromkeys(receiver.ids("/held"))) == ["evt_1", "evt_2", "evt_3"]


async def test_a_commit_wakes_the_workers(
    pool: asyncpg.Pool, outbox: Outbox, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the next look, which here does not come."""
    async with sending(pool, endpoint(url=f"{receiver.url}/ok")) as running:
        monkeypatch.setattr(webhooks, "POLL_SECONDS", 3600.0)
        await asyncio.sleep(0.3)  # So that the worker waits for its new poll.
        await outbox.tells("a", "evt_1")
        running.committed([told("a", NOON)])
        await receiver.until(lambda: receiver.ids("/ok") == ["evt_1"])


def told(account_id: str, now: datetime) -> Account:
    made = Account(number=1, account_id=account_id, created_at=now, at=now)
    made.tell("job.expired", "live", now, "expired:1", {})
    return made
