"""`make torture`: rounds of faults under load until so many processes were killed; see README.md."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import structlog
from rich.console import Console

from ledger.embedded import EmbeddedPostgres
from tests.support.ending import end_as_interrupted
from tests.torture.plan import EMBEDDED, FAULTS, faults
from tests.torture.rounds import Report, audit_all, play
from tests.torture.stage import FAKETIME, replicas_on, running_postgres, service_with_its_own, small_disk

ROUND_FAULTS: Final = 25
EMBEDDED_EVERY: Final = 5
"""Every so-manieth round is of a service that runs its own PostgreSQL."""
REPLICAS: Final = (2, 3, 4)
"""How many services a round may run on one PostgreSQL; which, is drawn."""
DISK_MEGABYTES: Final = 4_096
DIFFERENCES_SHOWN: Final = 40
DIFFERENCE_WIDTH: Final = 1_000

console = Console(width=160, soft_wrap=True, highlight=False)


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(prog="python -m tests.torture.command", description=__doc__)
    options.add_argument("--seed", default=secrets.token_hex(4), help="of an earlier run, to repeat its plan")
    options.add_argument("--kills", type=int, default=500, help="how many processes are to be killed")
    options.add_argument("--minutes", type=float, default=60, help="after which no further round begins")
    options.add_argument("--replicas", type=int, choices=[1, *REPLICAS], help="as many in every round")
    options.add_argument("--callers", type=int, default=12, help="how many ask at a time")
    options.add_argument("--keep", action="store_true", help="keep what the services and PostgreSQL wrote")
    return options


async def torture(options: argparse.Namespace, folder: Path) -> Report:
    """Play rounds until enough processes were killed or the time is over, and return what they came to."""
    programs = os.environ.get("LEDGER_POSTGRES_BIN")
    with small_disk(folder, DISK_MEGABYTES, _succeeds) as disk:
        if disk is None:
            console.print("the disk is not filled: only root can mount one that is small enough")
        if FAKETIME is None:
            console.print("no clock runs off: libfaketime is not installed")
        place = disk or folder
        place.chmod(0o711)
        async with running_postgres(place / "postgres", Path(programs) if programs else None) as postgres:
            return await _rounds(options, folder, postgres, disk)


async def _rounds(options: argparse.Namespace, folder: Path, postgres: EmbeddedPostgres, disk: Path | None) -> Report:
    rng = random.Random(options.seed)  # noqa: S311 - a plan that can be made again, no secret
    whole, start = Report(), time.monotonic()
    for number in itertools.count(1):
        count = options.replicas or rng.choice(REPLICAS)
        own = folder / f"round-{number}"
        own.mkdir()
        own.chmod(0o711)
        if options.replicas is None and number % EMBEDDED_EVERY == 0:
            what, names, running = "its own PostgreSQL", EMBEDDED, service_with_its_own(own)
        else:
            what, names, running = f"{count} replicas", _possible(disk), replicas_on(postgres, own, count)
        seed = f"{options.seed} round {number}"
        plan = faults(seed, [name for name in FAULTS if name in names])
        async with running as stage:
            stage.small_disk = disk
            report = await play(stage, plan, ROUND_FAULTS, seed, f"r{number}", options.callers)
            whole.add(report)
            over = whole.kills >= options.kills or time.monotonic() - start > options.minutes * 60
            if over:
                whole.differences += await audit_all(stage)
        _tell(number, what, report, whole, start)
        if over:
            break
    return whole


def _possible(disk: Path | None) -> frozenset[str]:
    left_out = {"fill_disk": disk is None, "skew_clock": FAKETIME is None}
    return frozenset(name for name in FAULTS if not left_out.get(name))


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _tell(number: int, what: str, report: Report, whole: Report, start: float) -> None:
    console.print(
        f"round {number} ({what}): {report.kills} kills, {report.commands} commands, {report.repeated} repeated, "
        f"{len(report.differences)} differences; in all {whole.kills} kills in {time.monotonic() - start:.0f} s"
    )
    for line in report.differences[:DIFFERENCES_SHOWN]:
        console.print(f"  {line[:DIFFERENCE_WIDTH]}", style="red", markup=False)


def main() -> None:
    """Torture, and exit with 1 where a difference was found."""
    options = parser().parse_args()
    end_as_interrupted()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console.print(f"seed {options.seed}: --seed {options.seed} repeats the plan")
    folder = Path(tempfile.mkdtemp(prefix="gateway-ledger-torture-"))
    folder.chmod(0o711)
    try:
        report = asyncio.run(torture(options, folder))
    finally:
        if options.keep:
            console.print(f"kept: {folder}")
        else:
            _succeeds(["rm", "-rf", str(folder)])
    console.print(f"faults: {dict(report.hits.most_common())}")
    console.print(
        f"no answer: {dict(report.unanswered.most_common())}; refusals: {dict(report.refusals.most_common())}"
    )
    console.print(
        f"seed {options.seed}: {report.kills} kills, {report.commands} commands, "
        f"{report.repeated} of them repeated, {len(report.differences)} differences",
        style="red" if report.differences else "green",
    )
    sys.exit(bool(report.differences))


if __name__ == "__main__":
    main()
