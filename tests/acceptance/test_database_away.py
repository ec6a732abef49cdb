"""The database goes away and comes back: 503 with Retry-After meanwhile, nothing half done, and then it just works."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ledger.embedded import EmbeddedPostgres
from tests.support.client import Answer, Client, connect
from tests.support.scraping import Scrape, scrape
from tests.support.service import Service


async def until_ready(client: Client) -> None:
    async with asyncio.timeout(60):
        while (await client.get("/health/ready")).status != 200:  # noqa: ASYNC110 - another process gets ready
            await asyncio.sleep(0.1)


async def test_postgres_stops_and_starts_again(
    open_dir: Path, programs: Path | None, services: Callable[..., Service]
) -> None:
    """E2: the embedded PostgreSQL is killed under load; the service starts it again."""
    service = services("--data-dir", str(open_dir / "data"), environment={"LEDGER_POSTGRES_BIN": str(programs or "")})
    async with connect(service) as client:
        await client.open_account("a", 1_000_000)
        pid = postmaster_pid(open_dir)
        answers: dict[str, Answer] = {}

        async def work(worker: int) -> None:
            for n in range(40):
                job = f"j{worker}-{n}"
                answers[job] = await client.reserve("a", job)

        async def kill() -> None:
            await asyncio.sleep(0.3)
            os.kill(pid, signal.SIGKILL)

        await asyncio.gather(kill(), *(work(worker) for worker in range(8)))
        seen = Counter(answer.status for answer in answers.values())
        assert set(seen) <= {201, 503}, seen
        for answer in answers.values():
            if answer.status == 503:
                assert answer.code == "upstream_unavailable"
                assert int(answer.headers["Retry-After"]) >= 1
        await until_ready(client)
        # Every command that was answered is there; each that was not is there once or not at all, and repeating
        # it gives one effect.
        for job, answer in answers.items():
            again = await client.reserve("a", job)
            assert again.status in ((200,) if answer.status == 201 else (200, 201))
        assert (await client.balance("a"))["held"] == 11 * len(answers)
        await client.assert_audit_clean()


async def until_figures_are(client: Client, up: int) -> Scrape:
    """Scrape until the figures of the database are there, or are not: they are kept for some seconds."""
    async with asyncio.timeout(60):
        while (seen := await scrape(client)).value("ledger_database_up") != up:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.2)
    return seen


def postmaster_pid(folder: Path) -> int:
    """Find the embedded server's process by the file it keeps in its data."""
    places = [*folder.rglob("postmaster.pid"), *Path("/var/lib/gateway-ledger").rglob("postmaster.pid")]
    ours = [p for p in places if p.is_relative_to(folder)] or places
    return int(ours[0].read_text().splitlines()[0])


async def test_ready_tells_when_the_database_is_away(
    open_dir: Path, programs: Path | None, services: Callable[..., Service]
) -> None:
    postgres = EmbeddedPostgres(open_dir / "postgres", programs=programs)
    await postgres.start()
    urls = await postgres.create_database("ledger_away")
    service = services("--database-url", postgres.url("postgres", "ledger_away"))
    assert urls.service
    async with connect(service) as client:
        await client.open_account("a", 100)
        await postgres.stop()
        for answer in (
            await client.get("/health/ready"),
            await client.reserve("a", "j"),
            await client.get("/v1/accounts/a/balance"),
            await client.call("POST", "/v1/audit", {}),
        ):
            assert (answer.status, answer.code) == (503, "upstream_unavailable"), answer
            assert int(answer.headers["Retry-After"]) >= 1
        assert (await client.get("/health/live")).status == 200
        seen = await until_figures_are(client, 0)
        assert not seen.has("ledger_open_holds")
        assert seen.has("ledger_queue_commands")
        batch = [{"command": "release", "account_id": "a", "job_id": "j"}]
        results = (await client.call("POST", "/v1/batch", {"commands": batch})).body["results"]
        assert (results[0]["status"], results[0]["body"]["error"]["details"]) == (503, {"retry_after": 1})
        await postgres.start()
        await until_ready(client)
        assert (await client.reserve("a", "j")).status == 201
        assert (await client.balance("a"))["held"] == 11
        seen = await until_figures_are(client, 1)
        assert seen.value("ledger_open_holds") == 1
    service.stop()
    await postgres.stop()


async def test_a_full_queue(server: Service, services: Callable[..., Service]) -> None:
    """With room for one command, many at once are told to come back; who was accepted is served."""
    tokens = {f"LEDGER_{role.upper()}_TOKEN": token for role, token in server.tokens.items()}
    url = server.process.args[3]  # type: ignore[index]
    small = services("--database-url", str(url), "--simulated-clock", environment={**tokens, "LEDGER_QUEUE_SIZE": "1"})
    async with connect(small) as client:
        await client.open_account("a", 1_000_000)
        answers = await asyncio.gather(*(client.reserve("a", f"j{n}") for n in range(100)))
        seen = Counter(answer.status for answer in answers)
        assert set(seen) == {201, 503}, seen
        refused = next(answer for answer in answers if answer.status == 503)
        assert (refused.code, refused.headers["Retry-After"]) == ("upstream_unavailable", "1")
        assert (await client.balance("a"))["held"] == 11 * seen[201]
