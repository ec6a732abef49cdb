"""Ten times what the service can take: what is accepted stays quick, the rest is told when to come back.

Each round measures on one service, in this order:

- `before`: the most it does, 64 connections in a closed loop; everything else is compared with that
- `alone`: 100 quiet accounts at one pair a second each, and nothing else
- `flood`: reservations at ten times the rate of `before`, over as many accounts as there
- `noisy`: the same flood on one account, beside the quiet ones
- `large`: a flood whose settlements carry results of 200 KB
- `after`: as `before`
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ledger.database import migrate
from ledger.tokens import Role
from tests.benchmarks import command
from tests.benchmarks.command import Measured
from tests.benchmarks.flood import FloodReport, FloodTask, flood
from tests.benchmarks.goals import Goal
from tests.benchmarks.load import Stream
from tests.benchmarks.memory import MIB, peak_rss, rss
from tests.benchmarks.rows import QUIET_ACCOUNTS, QUIET_CONNECTIONS, QUIET_PAIRS_PER_SECOND, Bench
from tests.benchmarks.server import BenchmarkError, Server
from tests.benchmarks.service import running_service

OVERLOAD: Final = 10
ACCOUNTS: Final = 1_000
CONNECTIONS: Final = 6_000
"""Half as many again as requests may be under way."""
LARGE_CONNECTIONS: Final = 500
LARGE_RESULT_BYTES: Final = 200_000

GOALS: Final = (
    Goal("flood.p99_ms", "≤", 2_500),
    Goal("flood.served", "≥", 0.3, "before.pairs_per_second"),
    Goal("flood.without_retry_after", "≤", 0),
    Goal("noisy.quiet.refused", "≤", 0),
    Goal("noisy.quiet.p99_ms", "≤", 1_000),
    Goal("memory.most_mib", "≤", 768),
    Goal("after.pairs_per_second", "≥", 0.9, "before.pairs_per_second"),
)


class Overload:
    """One round's measurements, on one service."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._note = bench.figures.note

    async def measure(self) -> None:
        """Measure everything once."""
        await self._closed("before")
        rate = OVERLOAD * (self._bench.figures.rounds["before.pairs_per_second"][-1])
        quiet = await self._bench.accounts_for("alone", QUIET_ACCOUNTS)
        await self._quiet("alone", quiet)
        await self._flood("flood", await self._bench.accounts_for("flood", ACCOUNTS), rate)
        quiet = await self._bench.accounts_for("quiet", QUIET_ACCOUNTS)
        noisy = await self._bench.accounts_for("noisy", 1)
        await asyncio.gather(self._flood("noisy", noisy, rate), self._quiet("noisy.quiet", quiet))
        large = await self._bench.accounts_for("large", ACCOUNTS)
        await self._flood("large", large, rate, LARGE_CONNECTIONS, LARGE_RESULT_BYTES)
        self._note("memory.afterwards_mib", rss(self._bench.service.process.pid) / MIB)
        await self._closed("after")

    async def _closed(self, what: str) -> None:
        accounts = await self._bench.accounts_for(what, ACCOUNTS)
        report = (await self._bench.drive(what, Stream("all", accounts)))["all"]
        self._note(f"{what}.pairs_per_second", report.pairs_per_second)
        self._note(f"{what}.p99_ms", report.p99)

    async def _quiet(self, what: str, accounts: list[str]) -> None:
        """Open streams count from when a request was due: one that is refused or held up shows."""
        stream = Stream("all", accounts, connections=QUIET_CONNECTIONS, rate=QUIET_PAIRS_PER_SECOND)
        report = (await self._bench.drive(what, stream))["all"]
        self._note(f"{what}.refused", report.refused, worst=True)
        self._note(f"{what}.p50_ms", report.p50)
        self._note(f"{what}.p99_ms", report.p99)

    async def _flood(
        self, what: str, accounts: list[str], rate: float, connections: int = CONNECTIONS, result_bytes: int = 0
    ) -> None:
        bench = self._bench
        parts = urlsplit(bench.service.url)
        assert parts.hostname is not None
        assert parts.port is not None
        task = FloodTask(
            host=parts.hostname,
            port=parts.port,
            token=bench.service.tokens[Role.GATEWAY],
            prefix=f"{what}.{bench.round}",
            seconds=bench.seconds,
            accounts=accounts,
            rate=rate,
            connections=connections,
            result_bytes=result_bytes,
        )
        with peak_rss(bench.service.process.pid) as held:
            report = await flood(task)
        self._note("memory.most_mib", held[1] / MIB, worst=True)
        self._note(f"{what}.most_mib", held[1] / MIB, worst=True)
        self._tell(what, report)
        await bench.check_books(accounts)

    def _tell(self, what: str, report: FloodReport) -> None:
        if report.other or report.settled != report.accepted:
            raise BenchmarkError(f"{what}: {report}")
        seconds = self._bench.seconds
        self._note(f"{what}.due", report.due / seconds)
        self._note(f"{what}.sent", (report.due - report.not_sent) / seconds)
        self._note(f"{what}.refused", report.refused / seconds)
        self._note(f"{what}.served", report.settled / report.took_seconds)
        self._note(f"{what}.p50_ms", report.reserve_ms[0])
        self._note(f"{what}.p99_ms", report.reserve_ms[1])
        self._note(f"{what}.settle_p99_ms", report.settle_ms[1])
        self._note(f"{what}.without_retry_after", report.without_retry_after, worst=True)


async def _measure(server: Server, folder: Path, options: argparse.Namespace) -> Measured:
    urls = await server.create_database("ledger")
    await migrate(urls.owner)
    async with running_service(folder / "service", urls.service) as service:
        bench = Bench(server, "ledger", urls.service, service, options.seconds, command.told)
        for bench.round in range(1, options.rounds + 1):
            await Overload(bench).measure()
    return Measured(bench.figures, bench.remarks)


def main() -> None:
    """Parse the options, measure, and print the table."""
    parser = command.parser(__doc__, "overload.json")
    parser.set_defaults(rounds=1, seconds=10.0)
    command.run(parser.parse_args(), _measure, GOALS)


if __name__ == "__main__":
    main()
