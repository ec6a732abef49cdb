"""The service dies, fails and stalls between any two steps of a batch; whoever had no answer asks again (J1)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from ledger.embedded import ConnectionUrls
from ledger.failpoints import POINTS, VARIABLE
from tests.support.client import Answer, Client, connect
from tests.support.service import STOP_SECONDS_MAX, Service

WORKERS = 20
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


@pytest.mark.parametrize("point", POINTS)
async def test_the_service_dies(point: str, database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """After the sixth batch's step; the commands that were not answered are repeated on the next service."""
    options = ("--database-url", database.service, "--no-sweeps")
    dying = services(*options, environment={VARIABLE: f"{point}=kill#6"})
    left = [story(worker) for worker in range(WORKERS)]
    answers: Counter[int] = Counter()
    async with connect(dying) as client:
        await client.open_account("a", CREDITS)
        await go_on(client, left, answers)
        assert await asyncio.to_thread(dying.process.wait, STOP_SECONDS_MAX) == -9
    assert any(left), "it died before all was answered"
    assert set(answers) <= {200, 201}
    async with connect(services(*options)) as client:
        await go_on(client, left, answers)
        assert not any(left)
        await assert_once(client)


async def test_the_service_fails(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """A defect at each point, one after the other: the batch is halved, and nobody's command is done twice."""
    armed = ",".join(f"{point}=raise#{turn}" for turn, point in enumerate(POINTS, start=3))
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
    assert all(f"the failpoint {point} was reached" in log for point in POINTS)


async def test_the_service_stalls(database: ConnectionUrls, services: Callable[..., Service]) -> None:
    """A caller that does not wait asks again, while its first command is still under way."""
    armed = ",".join(f"{point}=sleep:{STALL_SECONDS}#{turn}" for turn, point in enumerate(POINTS, start=4))
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
