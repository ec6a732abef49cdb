"""Measures the product on 10 million postings, in turns with an empty database (`make bench-history`)."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ledger.database import migrate
from tests.benchmarks import books, command, floor, reads
from tests.benchmarks.command import Measured
from tests.benchmarks.figures import Figures
from tests.benchmarks.filling import ACCOUNTS, BIG, fill, whole_month
from tests.benchmarks.goals import HISTORY_GOALS, HISTORY_ROWS
from tests.benchmarks.rows import ROWS, Bench
from tests.benchmarks.server import Server
from tests.benchmarks.service import running_service
from tests.support.client import Client, connect

READS: Final = 200
WARM_UP_READS: Final = 20
PAGE: Final = 100

STANDING: Final = [BIG, *(f"account-{number}" for number in range(2, ACCOUNTS + 1))]
"""The accounts that have a history; where one busy account is measured, the one with a fifth of it all."""


async def _measure(server: Server, folder: Path, options: argparse.Namespace) -> Measured:
    await floor.prepare(server)
    figures = Figures()
    async with _bench(server, folder, "empty", options) as empty, _bench(server, folder, "full", options) as full:
        async with connect(full.service) as client:
            await _measure_reads(client, figures)
        for number in range(1, options.rounds + 1):
            for name in HISTORY_ROWS:
                for bench in (full, empty) if number % 2 else (empty, full):
                    bench.round = number
                    await ROWS[name](bench)
    for bench in (full, empty):
        figures.add(bench.figures, bench.database)
    return Measured(figures, {})


@contextlib.asynccontextmanager
async def _bench(server: Server, folder: Path, name: str, options: argparse.Namespace) -> AsyncIterator[Bench]:
    """Run the service on a database with the standing accounts, with a history or without; no sweep disturbs it."""
    urls = await server.create_database(name)
    await migrate(urls.owner)
    if name == "full":
        await fill(urls.service, server.superuser_url(name), options.postings, command.told)
        await books.widen_accounts(urls.service, STANDING)
    else:
        await books.open_accounts(urls.service, STANDING)
    async with running_service(folder / name, urls.service, "--no-sweeps") as service:
        told = lambda what: command.told(f"{name}: {what}")  # noqa: E731 - one line says it
        yield Bench(
            server, name, urls.service, service, options.seconds, told, standing=STANDING, audited=name == "empty"
        )


async def _measure_reads(client: Client, figures: Figures) -> None:
    """Read the usage of a whole month of the biggest account, and pages of its records near and far."""
    month = whole_month(datetime.now(UTC))
    first, far, _ = await reads.walk_records(client, PAGE)
    paths = {"usage": f"/v1/accounts/{BIG}/usage?period={month}", "first_page": first, "far_page": far}
    for name, path in paths.items():
        command.told(f"full: {name}")
        taken = [await reads.timed(client.get(path)) for _ in range(WARM_UP_READS + READS)][WARM_UP_READS:]
        figures.note(f"full.reads.{name}.p50_ms", statistics.median(taken) * 1_000)


def main() -> None:
    """Parse the options, fill, measure, and print the table."""
    parser = command.parser(__doc__, "bench-history.json")
    parser.add_argument("--postings", type=int, default=10_000_000)
    command.run(parser.parse_args(), _measure, HISTORY_GOALS)


if __name__ == "__main__":
    main()
