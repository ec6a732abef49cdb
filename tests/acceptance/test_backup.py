"""A database that was lost and restored: the books add up, what is missing is known, and the service goes on.

What the gateway did after the instant that was restored is not in the ledger; it sends it again, from its own log, and
that has one effect. Whoever was told of events meanwhile knows their ids, which are never given to others.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ledger.database import migrate
from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from tests.support.backup import Backups
from tests.support.client import Answer, Client, connect
from tests.support.history import write_history
from tests.support.service import Service
from tests.support.sweeping import dump

OPENING = 10_000


def audit(url: str, *options: str | Path) -> tuple[int, str]:
    """Run `gateway-ledger audit`, and return its exit code and what it printed."""
    program = Path(sys.executable).with_name("gateway-ledger")
    command = [str(program), "audit", "--database-url", url, *map(str, options)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={"COLUMNS": "250"})
    return done.returncode, done.stdout + done.stderr


# -- a dump --------------------------------------------------------------------------------------------------------


async def test_a_dump_is_the_whole_ledger(
    postgres: EmbeddedPostgres,
    programs: Path | None,
    database: ConnectionUrls,
    open_dir: Path,
    services: Callable[..., Service],
    tmp_path: Path,
) -> None:
    await write_history(database.service)
    assert audit(database.service, "--heads", tmp_path / "heads.jsonl")[0] == 0
    backups = Backups(postgres, programs, open_dir)
    file = backups.dump(_name(database))
    restored = await postgres.create_database(f"test_{uuid.uuid4().hex}")
    backups.run("pg_restore", "--dbname", _name(restored), file)
    assert await dump(restored.owner, without=()) == await dump(database.owner, without=())
    assert audit(restored.service, "--against", tmp_path / "heads.jsonl")[0] == 0
    async with connect(services("--database-url", restored.service, "--simulated-clock")) as client:
        await client.open_account("later", OPENING)
        assert (await client.reserve("later", "first")).status == 201
        await client.assert_audit_clean()


def _name(urls: ConnectionUrls) -> str:
    return urls.owner.split("/")[3].split("?")[0]


# -- a base backup, and the log since ------------------------------------------------------------------------------


@pytest.fixture
async def first(open_dir: Path, programs: Path | None) -> AsyncIterator[EmbeddedPostgres]:
    """The server that is going to be lost."""
    server = EmbeddedPostgres(open_dir / "first", programs=programs)
    urls = await server.start()
    await migrate(urls.owner)
    yield server
    await server.stop()


@pytest.fixture
async def second(open_dir: Path, programs: Path | None) -> AsyncIterator[EmbeddedPostgres]:
    """The server that takes its place, not started yet."""
    server = EmbeddedPostgres(open_dir / "second", programs=programs)
    yield server
    await server.stop()


@pytest.mark.timeout(240)
async def test_restored_to_an_instant_the_service_goes_on_and_what_is_sent_again_has_one_effect(
    first: EmbeddedPostgres,
    second: EmbeddedPostgres,
    programs: Path | None,
    open_dir: Path,
    services: Callable[..., Service],
    tmp_path: Path,
) -> None:
    backups = Backups(first, programs, open_dir)
    await backups.archive()
    url, heads = first.url("ledger_service", "ledger"), tmp_path / "heads.jsonl"
    service = services("--database-url", url)
    async with connect(service) as client:
        for account in ("acme", "quiet", "told"):
            await client.open_account(account, OPENING)
        await _works(client, "before")
        backups.take(open_dir / "second")
        await _works(client, "between")
        assert (await client.reserve("acme", "in-flight", ttl_seconds=3_600)).status == 201
        assert (await client.reserve("acme", "short", ttl_seconds=1)).status == 201
        assert (await client.reserve("told", "kept", ttl_seconds=1, metadata={"loan": "Zoë"})).status == 201
        instant = await _now(url)
        await _lost(client)
        await _told_of(client, "kept")
        await _told_of(client, "once-there")
        await _told_of_no_credits(client, "gone")
        told = await _events(client)
        credits = await _credits(client)
    assert service.stop() == 0
    assert audit(url, "--heads", heads)[0] == 0
    await backups.lose_the_server()

    backups.recover_to(open_dir / "second", instant)
    url = (await second.start()).service
    assert audit(url)[0] == 0
    code, said = audit(url, "--against", heads)
    assert code == 1
    assert "acme" in said
    assert "missing" in said
    assert "quiet" not in said

    async with connect(services("--database-url", url)) as client:
        assert (await client.get("/v1/accounts/acme/jobs/lost")).code == "resource_not_found"
        assert (await client.settle("acme", "lost")).code == "resource_not_found"  # to be reserved again first
        assert (await client.get("/v1/accounts/acme/jobs/in-flight")).body["status"] == "reserved"
        assert (await client.get("/v1/accounts/acme/jobs/between")).body["status"] == "settled"
        await _expired(client, "short")
        once = await _lost(client)
        again = await _lost(client)
        assert [answer.body for answer in once] == [answer.body for answer in again]
        assert await _credits(client) == credits
        await _told_of(client, "kept")
        await _told_of(client, "others")
        await _told_of_no_credits(client, "come")
        told_anew = await _events(client)
        await client.assert_audit_clean()
    assert audit(url, "--heads", tmp_path / "new.jsonl")[0] == 0
    # V3: what is told again has the id it had, and nothing else has it, though our numbers are the same.
    assert {_subject(told[id]) for id in told.keys() & told_anew.keys()} == {"kept", "short"}
    assert all(told[id] == told_anew[id] for id in told.keys() & told_anew.keys())
    assert {_subject(event) for event in told.values()} == {"kept", "short", "once-there", "gone"}
    assert {_subject(event) for event in told_anew.values()} == {"kept", "short", "others", "come"}


async def _works(client: Client, job: str) -> None:
    assert (await client.reserve("acme", job, idempotency_key=job)).status == 201
    assert (await client.settle("acme", job)).status == 200


async def _lost(client: Client) -> list[Answer]:
    """What came after the instant: a settlement of what was in flight, a job, and the refund of an earlier one."""
    answers = [
        await client.settle("acme", "in-flight"),
        await client.reserve("acme", "lost"),
        await client.settle("acme", "lost"),
        await client.refund("acme", "before", "rf-1", 5),
    ]
    for answer in answers:
        # Put again, a job that is settled without a result says so.
        assert answer.status in (200, 201) or answer.code == "result_not_replayable", answer
    return [answers[0], *answers[2:]]


async def _credits(client: Client) -> int:
    """Return what an account has, held or not: a hold that is over meanwhile makes no difference."""
    balance = await client.balance("acme")
    return int(balance["available"] + balance["held"])


async def _expired(client: Client, job: str, account: str = "acme") -> None:
    """Wait for a hold to be over: its deadline is of before the disaster, and stands (T1)."""
    async with asyncio.timeout(30):
        while (shown := (await client.get(f"/v1/accounts/{account}/jobs/{job}")).body)["status"] == "reserved":  # noqa: ASYNC110 - time passes of itself
            await asyncio.sleep(0.1)
    assert (shown["status"], shown["credits_charged"]) == ("expired", 0)


async def _told_of(client: Client, job: str) -> None:
    """Let a job expire, reserved here unless it is already, and see to it that this is told."""
    if (await client.get(f"/v1/accounts/told/jobs/{job}")).status == 404:
        assert (await client.reserve("told", job, ttl_seconds=1)).status == 201
    await _expired(client, job, "told")
    assert (await client.call("POST", "/v1/sweeps/expire_holds")).status == 200


async def _told_of_no_credits(client: Client, account: str) -> None:
    """Have it told that an account, opened for it, has nothing to spend."""
    await client.open_account(account)
    assert (await client.reserve(account, "refused")).code == "insufficient_credits"


async def _events(client: Client) -> dict[str, Any]:
    """Return all that was told, by its ids."""
    return {event["id"]: event for event in (await client.get("/v1/events?limit=500")).body["data"]}


def _subject(event: Any) -> str:
    """Return the job that an event is about, or else the account."""
    return str(event["data"].get("job_id", event["account_id"]))


async def _now(url: str) -> datetime:
    connection = await asyncpg.connect(url)
    try:
        now = await connection.fetchval("select clock_timestamp()")
    finally:
        await connection.close()
    assert isinstance(now, datetime)
    return now
