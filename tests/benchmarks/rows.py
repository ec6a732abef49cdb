"""The rows of the table: what each measures in a round, on one server, in turns with the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ledger.tokens import Role
from tests.benchmarks import books, engine, floor, load, peer
from tests.benchmarks.bare import running_bare
from tests.benchmarks.figures import Figures
from tests.benchmarks.load import LoadTask, Stream, StreamReport
from tests.benchmarks.memory import MIB, peak_rss
from tests.benchmarks.server import BenchmarkError, Server
from tests.support.service import Service

SHAPES: Final = {"hot": 1, "uniform": 1_000}
"""How many accounts share the load."""
FLOOR_CLIENTS: Final = (1, 16, 64)
BATCH_COMMANDS: Final = 64
BATCH_CONNECTIONS: Final = 8
"""With these, 512 commands are under way: two of the engine's batches."""
QUIET_ACCOUNTS: Final = 100
QUIET_PAIRS_PER_SECOND: Final = 100.0
QUIET_CONNECTIONS: Final = 32


@dataclass
class Bench:
    """What the rows work with, and where they note their figures."""

    server: Server
    database: str
    url: str
    """The database, as the service's role."""
    service: Service
    seconds: float
    told: Callable[[str], None]
    standing: list[str] = field(default_factory=list)
    """Accounts that are there already and serve every run; without them, each run has new ones."""
    audited: bool = True
    """Whether the books can be audited."""
    peer: Path | None = None
    """The peer's Python, where it could be installed."""
    figures: Figures = field(default_factory=Figures)
    remarks: dict[str, str] = field(default_factory=dict)
    """Why something was not measured, by its name."""
    round: int = 0

    async def accounts_for(self, what: str, count: int) -> list[str]:
        """Return so many accounts for one run, and leave the database at rest."""
        self.told(what)
        accounts = self.standing[:count]
        if not accounts:
            accounts = books.names(f"{what}.{self.round}", count)
            await books.open_accounts(self.url, accounts)
        await self.server.settle_down(self.database)
        return accounts

    async def check_books(self, account_ids: Iterable[str]) -> None:
        """Audit the accounts that a run used."""
        if self.audited:
            found = await books.discrepancies(self.url, account_ids)
            self.figures.note("audit.discrepancies", found, worst=True)

    async def drive(self, what: str, *streams: Stream) -> dict[str, StreamReport]:
        """Send streams to the service, watch its memory, and audit what they used."""
        prefix = f"{what}.{self.round}"
        with peak_rss(self.service.process.pid) as held:
            reports = await self.send(self.service.url, self.service.tokens[Role.GATEWAY], prefix, streams)
        self.figures.note("memory.most_mib", held[1] / MIB, worst=True)
        await self.check_books(account_id for stream in streams for account_id in stream.accounts)
        return reports

    async def send(self, url: str, token: str, prefix: str, streams: Sequence[Stream]) -> dict[str, StreamReport]:
        """Send streams to whoever answers at a URL."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        return await load.measure(LoadTask(parts.hostname, parts.port, token, prefix, self.seconds, list(streams)))


async def floor_row(bench: Bench) -> None:
    """The floor, with 1, 16 and 64 clients."""
    for shape in SHAPES:
        for clients in FLOOR_CLIENTS:
            bench.told(f"floor.{shape}.{clients}")
            measured = await floor.measure(bench.server, shape, clients, bench.seconds)
            bench.figures.note(f"floor.{shape}.{clients}.pairs_per_second", measured.pairs_per_second)


async def engine_row(bench: Bench) -> None:
    """The engine in process, 64 callers."""
    for shape, count in SHAPES.items():
        what = f"engine.{shape}"
        accounts = await bench.accounts_for(what, count)
        task = engine.EngineTask(bench.url, accounts, f"{what}.{bench.round}", bench.seconds)
        measured = await engine.measure(task)
        bench.figures.note(f"{what}.pairs_per_second", measured.pairs_per_second)
        bench.figures.note(f"{what}.p50_ms", measured.ms_p50)
        bench.figures.note(f"{what}.p99_ms", measured.ms_p99)
        await bench.check_books(accounts)


async def http_row(bench: Bench) -> None:
    """The service over HTTP, a closed loop of 64 connections."""
    for shape in SHAPES:
        await _closed(bench, shape)


async def _closed(bench: Bench, shape: str) -> None:
    what = f"http.{shape}"
    accounts = await bench.accounts_for(what, SHAPES[shape])
    report = _unrefused(await bench.drive(what, Stream("all", accounts)))
    bench.figures.note(f"{what}.pairs_per_second", report.pairs_per_second)
    _note_latency(bench, what, report)


async def open_row(bench: Bench) -> None:
    """The service over HTTP at half of what the closed loop of this round reached."""
    for shape in SHAPES:
        what, reached = f"open.{shape}", bench.figures.rounds[f"http.{shape}.pairs_per_second"]
        if len(reached) < bench.round:
            await _closed(bench, shape)
        accounts = await bench.accounts_for(what, SHAPES[shape])
        report = (await bench.drive(what, Stream("all", accounts, rate=reached[-1] / 2)))["all"]
        bench.figures.note(f"{what}.pairs_per_second", report.pairs_per_second)
        bench.figures.note(f"{what}.refused", report.refused, worst=True)
        _note_latency(bench, what, report)


async def lone_row(bench: Bench) -> None:
    """One connection to an idle service, beside a lone client of the floor and a bare HTTP answer."""
    accounts = await bench.accounts_for("lone", 1)
    stream = Stream("all", accounts, connections=1)
    least = await floor.measure(bench.server, "hot", 1, bench.seconds)
    async with running_bare() as url:
        bare = (await bench.send(url, "none", "bare", [stream]))["all"]
    report = _unrefused(await bench.drive("lone", stream))
    bench.figures.note("lone.floor.p50_ms", least.operation_p50_ms)
    bench.figures.note("lone.bare.p50_ms", bare.p50)
    bench.figures.note("lone.floor_and_bare_ms", least.operation_p50_ms + bare.p50)
    bench.figures.note("lone.reserve.p50_ms", report.reserve_p50)
    bench.figures.note("lone.settle.p50_ms", report.settle_p50)


async def batch_row(bench: Bench) -> None:
    """The batch endpoint: 64 reservations in a request, then their settlements, on a few connections."""
    for shape, count in SHAPES.items():
        what = f"batch.{shape}"
        accounts = await bench.accounts_for(what, count)
        stream = Stream("all", accounts, connections=BATCH_CONNECTIONS, batch=BATCH_COMMANDS)
        report = _unrefused(await bench.drive(what, stream))
        bench.figures.note(f"{what}.commands_per_second", report.pairs_per_second * 2)
        bench.figures.note(f"{what}.pairs_per_second", report.pairs_per_second)
        _note_latency(bench, what, report)


async def noisy_row(bench: Bench) -> None:
    """Quiet accounts at a low fixed rate, alone and beside one noisy account at its maximum."""
    accounts = await bench.accounts_for("noisy", QUIET_ACCOUNTS + 1)
    quiet = Stream("quiet", accounts[1:], connections=QUIET_CONNECTIONS, rate=QUIET_PAIRS_PER_SECOND)
    noisy = Stream("noisy", accounts[:1])
    alone = _unrefused(await bench.drive("noisy.alone", quiet), "quiet")
    await bench.server.settle_down(bench.database)
    beside = await bench.drive("noisy.beside", quiet, noisy)
    _note_latency(bench, "noisy.alone", alone)
    _note_latency(bench, "noisy.quiet", _unrefused(beside, "quiet"))
    bench.figures.note("noisy.pairs_per_second", _unrefused(beside, "noisy").pairs_per_second)


async def peer_row(bench: Bench) -> None:
    """The peer, 16 threads."""
    if bench.peer is None:
        return
    for shape, count in SHAPES.items():
        what = f"peer.{shape}"
        bench.told(what)
        measured = await peer.measure(bench.server, bench.peer, count, f"{what}.{bench.round}", bench.seconds)
        bench.figures.note(f"{what}.pairs_per_second", measured.pairs_per_second)
        bench.figures.note(f"{what}.p50_ms", measured.ms_p50)
        bench.figures.note(f"{what}.p99_ms", measured.ms_p99)


def _unrefused(reports: dict[str, StreamReport], name: str = "all") -> StreamReport:
    report = reports[name]
    if report.refused:
        raise BenchmarkError(f"{report.refused} requests were refused: {report.refusal}")
    return report


def _note_latency(bench: Bench, what: str, report: StreamReport) -> None:
    bench.figures.note(f"{what}.p50_ms", report.p50)
    bench.figures.note(f"{what}.p99_ms", report.p99)


ROWS: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "floor": floor_row,
    "engine": engine_row,
    "http": http_row,
    "open": open_row,
    "lone": lone_row,
    "batch": batch_row,
    "noisy": noisy_row,
    "peer": peer_row,
}
"""By name, in the order of a round."""
