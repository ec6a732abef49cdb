"""Measures the product's speed against what PostgreSQL can do, on one server, in one run (`make bench`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from ledger.database import migrate
from tests.benchmarks import command, floor, peer
from tests.benchmarks.command import Measured
from tests.benchmarks.goals import GOALS
from tests.benchmarks.memory import MIB, rss
from tests.benchmarks.rows import ROWS, Bench
from tests.benchmarks.server import BenchmarkError, Server
from tests.benchmarks.service import running_service


async def _measure(server: Server, folder: Path, options: argparse.Namespace) -> Measured:
    urls = await server.create_database("ledger")
    await migrate(urls.owner)
    await floor.prepare(server)
    async with running_service(folder / "service", urls.service) as service:
        bench = Bench(server, "ledger", urls.service, service, options.seconds, command.told)
        if "peer" in options.only:
            await _prepare_peer(bench)
        for bench.round in range(1, options.rounds + 1):
            for name in options.only:
                await ROWS[name](bench)
            if bench.round in (1, options.rounds):
                which = "first" if bench.round == 1 else "last"
                bench.figures.note(f"memory.{which}_round_mib", rss(service.process.pid) / MIB)
    return Measured(bench.figures, bench.remarks)


async def _prepare_peer(bench: Bench) -> None:
    try:
        bench.peer = await peer.prepare(bench.server)
    except BenchmarkError as error:
        bench.remarks["peer"] = f"not measured: {error}"


def _rows(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(ROWS):
        raise argparse.ArgumentTypeError(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return [name for name in ROWS if name in chosen]


def main() -> None:
    """Parse the options, measure, and print the table."""
    parser = command.parser(__doc__, "bench.json")
    parser.add_argument("--only", type=_rows, default=list(ROWS), metavar="ROW,…", help=", ".join(ROWS))
    command.run(parser.parse_args(), _measure, GOALS)


if __name__ == "__main__":
    main()
