"""A short torture, in which everything that can go wrong does once; and that the torturer would notice."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.support.client import Client
from tests.support.needed import lacking
from tests.torture.faults import Faults
from tests.torture.load import Command, Json, Load
from tests.torture.plan import EMBEDDED, FAULTS, KILLS, SERVICES, Fault, faults
from tests.torture.rounds import play
from tests.torture.stage import FAKETIME, Replica, replicas_on, running_postgres, service_with_its_own, small_disk
from tests.torture.verify import Told

SEED: Final = "suite"
CALLERS: Final = 10
DISK_MEGABYTES: Final = 1_024
HOLD_SECONDS: Final = 0.6
TURN_MAX: Final = 5


def each_once(names: list[str]) -> Iterator[Fault]:
    """Yield every one of some faults, none of which lasts long."""
    drawn = faults(SEED, list(FAULTS))
    for name, fault in zip(names, drawn, strict=False):
        turn = min(fault.turn, TURN_MAX)
        yield dataclasses.replace(fault, name=name, hold_seconds=HOLD_SECONDS, settled=True, turn=turn)


def succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def test_a_seed_is_a_plan() -> None:
    plans = [list(itertools.islice(faults(seed, list(FAULTS)), 200)) for seed in ("a", "a", "b")]
    assert plans[0] == plans[1] != plans[2]
    assert {fault.name for fault in plans[0]} == set(FAULTS)


def test_there_is_everything_that_a_plan_can_name() -> None:
    assert set(FAULTS) >= KILLS
    assert set(FAULTS) >= EMBEDDED
    assert all(callable(getattr(Faults, name)) for name in FAULTS)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("count", "some"), [(2, frozenset(FAULTS)), (4, SERVICES | {"kill_postgres", "exhaust"})])
async def test_replicas(count: int, some: frozenset[str], open_dir: Path, programs: Path | None) -> None:
    """Services on one PostgreSQL, with a proxy between them, on a disk that can be filled where that may be."""
    with small_disk(open_dir, DISK_MEGABYTES, succeeds) as disk:
        needs = {"fill_disk": disk, "skew_clock": FAKETIME}
        left_out = {name for name in some & needs.keys() if needs[name] is None}
        names = [name for name in FAULTS if name in some - left_out]
        (disk or open_dir).chmod(0o711)
        async with (
            running_postgres((disk or open_dir) / "postgres", programs) as postgres,
            replicas_on(postgres, open_dir, count) as stage,
        ):
            stage.small_disk = disk
            report = await play(stage, each_once(names), len(names), SEED, "a", CALLERS)
    assert report.differences == []
    assert report.kills >= 2
    assert set(report.hits) >= some & {"cut", "swallow", "delay", "stall", "refuse", "freeze_service", "exhaust"}
    assert report.commands > 100
    assert report.repeated
    if left_out:
        # Everything else ran and held; what did not is said, so that nobody takes it for tried.
        needed = {"fill_disk": "a small disk, which only root may mount", "skew_clock": "libfaketime"}
        pytest.skip("; ".join(f"{name} was left out: it takes {needed[name]}" for name in sorted(left_out)))


async def _logged(service: Replica, what: str) -> str:
    """Return the first line of a service's log that says something; the log is written a moment later."""
    while True:
        for line in service.log.read_text().splitlines():
            if what in line:
                return line
        await asyncio.sleep(0.05)


async def test_a_clock_can_run_off(open_dir: Path, programs: Path | None) -> None:
    """What the fault does: the service's date is another, and the ledger's is not (T3)."""
    if FAKETIME is None:
        lacking("libfaketime is not installed: apt-get install --no-install-recommends libfaketime")
    async with (
        running_postgres(open_dir / "postgres", programs) as postgres,
        replicas_on(postgres, open_dir, 1, clock="+400d") as stage,
        aiohttp.ClientSession() as session,
    ):
        client = Client(session, stage.replicas[0])
        shown = (await client.get("/v1/clock")).body["now"]
        assert (await client.get("/v1/accounts/nobody")).status == 404  # which is logged, soon
        line = await asyncio.wait_for(_logged(stage.replicas[0], '"status":404'), 30)
    now = datetime.now(UTC)
    assert abs(datetime.fromisoformat(shown) - now) < timedelta(days=1)
    assert abs(datetime.fromisoformat(json.loads(line)["timestamp"]) - now) > timedelta(days=399)


@pytest.mark.timeout(400)
async def test_a_service_with_its_own_postgres(
    open_dir: Path, programs: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, it leaves its PostgreSQL behind; its PostgreSQL killed, it starts another."""
    if programs is not None:
        monkeypatch.setenv("LEDGER_POSTGRES_BIN", str(programs))
    names = [name for name in FAULTS if name in EMBEDDED]
    async with service_with_its_own(open_dir) as stage:
        report = await play(stage, each_once(names), len(names), SEED, "a", CALLERS)
    assert report.differences == []
    assert report.kills >= 3
    assert report.commands > 30


# -- the torturer itself ----------------------------------------------------------------------------------------------


Forge = Callable[[list[Command], list[Json]], None]


def unchanged(commands: list[Command], entries: list[Json]) -> None:
    """Leave everything as it was."""


@pytest.fixture
async def verdict(open_dir: Path, programs: Path | None) -> Callable[[Forge], list[str]]:
    """Finds what is wrong with what callers did to an account, once something of it was forged."""
    async with (
        running_postgres(open_dir / "postgres", programs) as postgres,
        replicas_on(postgres, open_dir, 1) as stage,
        aiohttp.ClientSession() as session,
    ):
        load = Load(stage, session, SEED, "a", CALLERS)
        await load.open_accounts()
        load.finish_after(stories=60)
        await load.run()
        account_id = load.accounts["hot"]
        commands = [command for command in load.commands if command.account_id == account_id]
        entries = await Client(session, stage.replicas[0]).every(f"/v1/accounts/{account_id}/entries")

    def tell(forge: Forge) -> list[str]:
        forged = deepcopy((commands, entries))
        forge(*forged)
        told = Told("hot", *forged)
        told.tell_all()
        return told.found

    return tell


def settled(commands: list[Command]) -> Command:
    return next(c for c in commands if c.kind == "settle" and c.done and c.answer["credits_charged"])


def lost(commands: list[Command], entries: list[Json]) -> None:
    name = settled(commands).name
    entries[:] = [entry for entry in entries if (entry["kind"], entry["job_id"]) != ("settle", name)]


def done_twice(commands: list[Command], entries: list[Json]) -> None:
    name = settled(commands).name
    first = next(entry for entry in entries if (entry["kind"], entry["job_id"]) == ("reserve", name))
    entries.append({**first, "created_at": entries[-1]["created_at"]})


def answered_otherwise(commands: list[Command], entries: list[Json]) -> None:
    settled(commands).answer["credits_charged"] += 1


def refused_and_done(commands: list[Command], entries: list[Json]) -> None:
    command = settled(commands)
    command.status, command.answer = 409, {"error": {"code": "job_not_completed"}}


def done_for_nobody(commands: list[Command], entries: list[Json]) -> None:
    commands.remove(settled(commands))


async def test_what_is_wrong_is_noticed(verdict: Callable[[Forge], list[str]]) -> None:
    assert verdict(unchanged) == []
    for forge in (lost, done_twice, answered_otherwise, refused_and_done, done_for_nobody):
        assert verdict(forge), forge.__name__
