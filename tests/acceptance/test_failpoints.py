"""The service dies, fails and stalls between any two steps of a batch; whoever had no answer asks again (J1)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from ledger.embedded import ConnectionUrls
from ledger.failpoints import BATCH_POINTS, VARIABLE
from tests.support.client import Answer, Client, connect
from tests.support.service import STOP_SECONDS_MAX, Service

WORKERS = 20
KINDS = ("reserve", "settle", "refund")
CREDITS = 100_000
STALL_SECONDS = 1.0

Step = Callable[[Client], Awaitable[Answer]]


def story(worker: int) -> list[Step]:
    """The commands of one job: every other one is settled and refunded in part, the rest are released."""
    job = f"j{worker}"
    reserve: Step = lambda client: client.reserve("a", job)  # noqa: E731 - they are data
    if worker % 2:
        return [reserve, lambda client: client.release("a", job)]
    return [reserve, lambda client: client.settle("a", job), lambda client: client.refund("a", job, f"rf-{job}", 5)]


async def go_on(
    client: Client, left: list[list[Step]], answers: Counter[int], patience_seconds: float | None = None
) -> None:
    """Carry stories on, each for as long as it is answered; what was not answered stays to be asked again."""

    async def tell(steps: list[Step]) -> None:
        while steps:
            try:
                async with asyncio.timeout(patience_seconds):
                    answer = await steps[0](client)
            except (aiohttp.ClientError, TimeoutError):
                return
            answers[answer.status] += 1
            if answer.status >= 500:
                return
            steps.pop(0)

    await asyncio.gather(*map(tell, left))


async def assert_once(client: Client) -> None:
    """Fail unless the journal has every command once, and every figure is what the stories come to."""
    entries = await client.every("/v1/accounts/a/entries")
    seen = Counter((entry["job_id"], entry["kind"]) for entry in entries)
    expected: Counter[tuple[str | None, str]] = Counter({(None, "grant"): 1})
    for worker in range(WORKERS):
        kinds = ("reserve", "release") if worker % 2 else ("reserve", "settle", "refund")
        expected.update((f"j{worker}", kind) for kind in kinds)
    assert seen == expected
    balance = await client.balance("a")
    assert (balance["available"], balance["held"]) == (CREDITS - WORKERS // 2 * (11 - 5), 0)
    await client.assert_audit_clean()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_service_dies(kind: str, database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """At each point with a batch of such commands alone, which are repeated on a service that lives."""
    options = ("--database-url", database.service, "--no-sweeps")
    stories = [story(worker) for worker in range(WORKERS)]
    closing = stories[::2]  # Those with a settlement and a refund.
    before = KINDS.index(kind)
    answers: Counter[int] = Counter()
    async with connect(services(*options)) as client:
        await client.open_account("a", CREDITS)
        for steps in closing:
            await go_on(client, [steps[:before]], answers)
            del steps[:before]
    entered = await entries_of(kind, database)
    for turn, point in enumerate(BATCH_POINTS):
        dying = services(*options, environment={VARIABLE: f"{point}=kill"})
        group = [steps[:1] for steps in closing[turn :: len(BATCH_POINTS)]]
        async with connect(dying) as client:
            await go_on(client, group, answers)
            assert await asyncio.to_thread(dying.process.wait, STOP_SECONDS_MAX) == -9
        assert all(group), "nobody was answered by the first batch, which was the last"
        before_it, entered = entered, await entries_of(kind, database)
        assert (entered > before_it) == (point in ("commit", "answer"))
    async with connect(services(*options)) as client:
        await go_on(client, stories, answers)
        assert not any(stories)
        assert set(answers) <= {200, 201}
        await assert_once(client)


async def entries_of(kind: str, database: ConnectionUrls) -> int:
    """Return how many entries of a kind the journal has."""
    connection = await asyncpg.connect(database.owner)
    try:
        return int(await connection.fetchval("select count(*) from ledger.entries where kind = $1", kind))
    finally:
        await connection.close()


async def test_the_service_fails(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """A defect at each point, one after the other: the batch is halved, and nobody's command is done twice."""
    armed = ",".join(f"{point}=raise#{turn}" for turn, point in enumerate(BATCH_POINTS, start=3))
    service = services("--database-url", database.service, "--no-sweeps", environment={VARIABLE: armed})
    left = [story(worker) for worker in range(WORKERS)]
    answers: Counter[int] = Counter()
    async with connect(service) as client:
        await client.open_account("a", CREDITS)
        while any(left):
            await go_on(client, left, answers)
        await assert_once(client)
    assert set(answers) <= {200, 201, 500}
    log = service.log.read_text()
    assert "failpoints_armed" in log
    assert all(f"the failpoint {point} was reached" in log for point in BATCH_POINTS)


async def test_a_defect_after_the_commit_undoes_nothing(
    database: ConnectionUrls, services: Callable[..., Service]
) -> None:
    """Whoever is told of a failure was heard all the same; once the outcomes are handed out, nobody is told of one."""
    armed = "commit=raise#3,answer=raise#3"  # The first two batches open the account.
    service = services("--database-url", database.service, "--no-sweeps", environment={VARIABLE: armed})
    async with connect(service) as client:
        await client.open_account("a", CREDITS)
        failed = await client.reserve("a", "j")
        assert (failed.status, failed.code) == (500, "internal_error")
        assert (await client.balance("a"))["held"] == 11
        assert (await client.reserve("a", "j")).status == 200, "it was done, and this batch fails after its answer"
        assert (await client.balance("a"))["held"] == 11
        assert (await client.settle("a", "j")).status == 200
        await client.assert_audit_clean()
    log = service.log.read_text()
    assert all(f"the failpoint {point} was reached" in log for point in ("commit", "answer"))


async def test_the_service_stalls(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """A caller that does not wait asks again, while its first command is still under way."""
    armed = ",".join(f"{point}=sleep:{STALL_SECONDS}#{turn}" for turn, point in enumerate(BATCH_POINTS, start=4))
    service = services("--database-url", database.service, "--no-sweeps", environment={VARIABLE: armed})
    left = [story(worker) for worker in range(WORKERS)]
    answers: Counter[int] = Counter()
    async with connect(service) as client:
        await client.open_account("a", CREDITS)
        tries = 0
        while any(left):
            await go_on(client, left, answers, patience_seconds=STALL_SECONDS / 4)
            tries += 1
        assert tries > 1, "somebody had to ask again"
        await assert_once(client)
    assert set(answers) <= {200, 201}


def test_it_does_not_start_with_what_it_does_not_understand(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("gateway-ledger")
    command = [str(program), "serve", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, env={VARIABLE: "write=vanish"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert VARIABLE in done.stderr
    assert not (tmp_path / "data").exists()
