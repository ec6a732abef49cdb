"""What reads cost once there is a history, and what a history costs those who write (`make bench-reads`).

It fills a database with 10 million postings, 2 million of them one account's, beside an empty one on the same
PostgreSQL, runs the service on each, and measures over HTTP. Writes are measured in turns, so that whatever else the
machine does meanwhile strikes all; a second empty database tells how far two that are alike lie apart.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console
from rich.table import Table

from ledger.database import migrate
from ledger.embedded import EmbeddedPostgres
from ledger.tokens import Role
from tests.benchmarks.filling import BIG, Filled, fill, whole_month
from tests.benchmarks.memory import MIB, peak_rss
from tests.benchmarks.service import running_service
from tests.support.client import Client, connect
from tests.support.ending import end_as_interrupted
from tests.support.service import Service

PAGE: Final = 1_000
READS: Final = 300
WORKERS: Final = 16
ROUNDS: Final = 12
PAIRS_PER_ROUND: Final = 1_600

console = Console(soft_wrap=True)


@dataclass
class Result:
    """The lines of the table: what was measured, the figure, what it is compared with, and the ratio."""

    lines: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, what: str, figure: str, beside: str = "", ratio: float | None = None) -> None:
        self.lines.append((what, figure, beside, "" if ratio is None else f"{ratio:.2f}"))

    def compare_ms(self, what: str, figures: list[float], beside: list[float]) -> None:
        mine, others = statistics.median(figures), statistics.median(beside)
        self.add(what, _ms(figures), _ms(beside), mine / others)


def _ms(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    median, high = statistics.median(ordered), ordered[int(len(ordered) * 0.95)]
    return f"{median * 1_000:.2f} ms (p95 {high * 1_000:.2f})"


async def timed(call: Awaitable[Any]) -> float:
    """Return how many seconds a call takes, which must succeed."""
    start = time.perf_counter()
    answer = await call
    took = time.perf_counter() - start
    assert answer.status in (200, 201), answer
    return took


# -- reads ---------------------------------------------------------------------------------------------------------


async def _measure_usage(client: Client, empty: Client, month: str, result: Result) -> None:
    path = f"/v1/accounts/{BIG}/usage?period={month}"
    for some in (client, empty):
        for _ in range(20):
            await some.get(path)
    full = [await timed(client.get(path)) for _ in range(READS)]
    none = [await timed(empty.get(path)) for _ in range(READS)]
    result.compare_ms(f"usage of {month}, beside that of no usage", full, none)


async def walk_records(client: Client, pages: int) -> tuple[str, str, int]:
    """Return the paths of the first page of the records and of one far off, or the last, and its number."""
    first = f"/v1/accounts/{BIG}/usage/records"
    far, page = first, 1
    while page < pages:
        cursor = (await client.get(far)).body["next_cursor"]
        if cursor is None:
            break
        far, page = f"{first}?cursor={cursor}", page + 1
    return first, far, page


async def _measure_pages(client: Client, result: Result) -> None:
    """Walk to page 1,000 of the records, and read it and the first in turns."""
    first, far, page = await walk_records(client, PAGE)
    times: dict[str, list[float]] = {first: [], far: []}
    for _ in range(READS):
        for path, taken in times.items():
            taken.append(await timed(client.get(path)))
    result.compare_ms(f"page {page:,} of the records, beside page 1", times[far], times[first])


async def _measure_csv(service: Service, jobs: int, result: Result) -> None:
    url = f"{service.url}/v1/accounts/{BIG}/usage/records"
    headers = {**service.headers(Role.READER), "Accept": "text/csv"}
    timeout = aiohttp.ClientTimeout(total=None)
    with peak_rss(service.process.pid) as rss:
        start, lines, size = time.perf_counter(), 0, 0
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, headers=headers) as response:
            assert response.status == 200
            async for chunk in response.content.iter_any():
                lines += chunk.count(b"\n")
                size += len(chunk)
        took = time.perf_counter() - start
    assert lines > jobs, (lines, jobs)
    result.add(f"CSV of {lines - 1:,} records over HTTP", f"{took:.1f} s, {size / MIB:.0f} MiB")
    result.add("… the service's memory", f"{rss[1] / MIB:.0f} MiB", f"{rss[0] / MIB:.0f} MiB before", rss[1] / rss[0])


async def _measure_export(url: str, folder: Path, month: str, result: Result) -> None:
    for what, format, accounts in (
        ("statements", "csv", ("--all",)),
        ("records", "csv", ("--account", BIG)),
        ("records", "parquet", ("--all",)),
        ("entries", "csv", ("--account", BIG)),
    ):
        command = [
            str(Path(sys.executable).with_name("gateway-ledger")),
            *("export", what, "--period", month, "--format", format, *accounts),
            *("--output", str(folder / f"{what}.{format}"), "--database-url", url),
        ]
        start = time.perf_counter()
        rows, peak = await asyncio.to_thread(_exported, command)
        took = time.perf_counter() - start
        what = f"export of {rows} rows of {what}, {' '.join(accounts)}, {format}"
        result.add(what, f"{took:.1f} s, at most {peak / MIB:.0f} MiB")


def _exported(command: list[str]) -> tuple[str, int]:
    """Run an export; return how many rows it wrote, as it says, and its resident bytes at most."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    with peak_rss(process.pid) as rss:
        out, _ = process.communicate()
    assert process.returncode == 0
    return out.decode().split()[1], rss[1]


# -- writes --------------------------------------------------------------------------------------------------------


@dataclass
class Writes:
    """How long reservations and settlements took, and how many pairs a second there were in each round."""

    reserve: list[float] = field(default_factory=list)
    settle: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


async def _measure_writes(full: Client, empty: Client, control: Client, result: Result) -> None:
    accounts = [BIG, *(f"account-{number}" for number in range(2, WORKERS + 1))]
    for account_id in accounts:
        await empty.open_account(account_id, 10**9)
        await control.open_account(account_id, 10**9)
    turns = list(itertools.permutations(((full, Writes()), (empty, Writes()), (control, Writes()))))
    numbers = itertools.count()
    for round_number in range(ROUNDS + 1):
        for client, writes in turns[round_number % len(turns)]:
            taken = Writes() if round_number == 0 else writes  # The first warms all up.
            start = time.perf_counter()
            await asyncio.gather(*(_work(client, account_id, numbers, taken) for account_id in accounts))
            taken.rates.append(PAIRS_PER_ROUND / (time.perf_counter() - start))
    with_history, without, alike = (writes for _, writes in turns[0])
    for what, some in (("beside an empty database", with_history), ("of two empty databases", alike)):
        result.compare_ms(f"reserve, {what}", some.reserve, without.reserve)
        result.compare_ms(f"settle, {what}", some.settle, without.settle)
        rate, other = statistics.median(some.rates), statistics.median(without.rates)
        result.add(f"jobs a second, {what}", f"{rate:,.0f}", f"{other:,.0f}", rate / other)


async def _work(client: Client, account_id: str, numbers: Iterator[int], writes: Writes) -> None:
    for _ in range(PAIRS_PER_ROUND // WORKERS):
        job_id = f"bench-{next(numbers)}"
        writes.reserve.append(await timed(client.reserve(account_id, job_id)))
        writes.settle.append(await timed(client.settle(account_id, job_id, record={"status_code": 200})))


# -- all of it -----------------------------------------------------------------------------------------------------


async def _run(folder: Path, postings: int) -> None:
    server = EmbeddedPostgres(folder / "postgres")
    await server.start()
    try:
        result, filled = await _measured(server, folder, postings)
    finally:
        await server.stop()
    _show(result, filled)


async def _measured(server: EmbeddedPostgres, folder: Path, postings: int) -> tuple[Result, Filled]:
    full, empty, control = [await server.create_database(name) for name in ("full", "empty", "control")]
    for urls in (full, empty, control):
        await migrate(urls.owner)
    start = time.perf_counter()
    filled = await fill(full.service, server.url("postgres", "full"), postings, lambda step: console.print(f"… {step}"))
    console.print(f"filled {filled.postings:,} postings in {time.perf_counter() - start:.0f} s")
    month = whole_month(datetime.now(UTC))
    result = Result()
    async with (
        running_service(folder / "full", full.service, "--no-sweeps") as served,
        running_service(folder / "empty", empty.service, "--no-sweeps") as other,
        running_service(folder / "control", control.service, "--no-sweeps") as third,
        connect(served) as client,
        connect(other) as without,
        connect(third) as alike,
    ):
        await without.open_account(BIG)
        for what, measured in (
            ("usage", _measure_usage(client, without, month, result)),
            ("pages", _measure_pages(client, result)),
            ("CSV", _measure_csv(served, filled.big_jobs, result)),
            ("exports", _measure_export(full.service, folder, month, result)),
            ("writes", _measure_writes(client, without, alike, result)),
        ):
            console.print(f"… {what}")
            await measured
    return result, filled


def _show(result: Result, filled: Filled) -> None:
    title = (
        f"{filled.postings:,} postings of {filled.accounts:,} accounts, {filled.big_jobs * 2:,} of them one's; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}"
    )
    table = Table("what", "measured", "beside", "ratio", title=title, title_justify="left")
    for line in result.lines:
        table.add_row(*line)
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postings", type=int, default=10_000_000)
    postings = parser.parse_args().postings
    end_as_interrupted()
    with tempfile.TemporaryDirectory(prefix="gateway-ledger-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        asyncio.run(_run(folder, postings))


if __name__ == "__main__":
    main()
