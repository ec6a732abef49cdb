"""What a service and its database hold at one moment: memory, descriptors, the sizes of tables. And what becomes of it.

A *window* is some minutes of a run with a sample at its end. Windows are compared by quarters of the run.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import asyncpg
import msgspec
import psutil

from tests.benchmarks.figures import Figures
from tests.benchmarks.goals import Goal
from tests.benchmarks.memory import MIB
from tests.benchmarks.steady import Traffic

KIB: Final = 1_024
IN_PLACE: Final = ("accounts", "balances", "quotas", "grants", "periods", "holds", "usage_totals", "endpoints")
"""Tables whose rows are written again and again, or come and go: what they take must not grow with time."""

_TABLES: Final = """
select relname::text, n_live_tup, n_dead_tup, pg_total_relation_size(relid)
from pg_stat_user_tables where schemaname = 'ledger' order by relname
"""
_BACKENDS: Final = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


class Relation(msgspec.Struct):
    """A table: its rows, as PostgreSQL estimates them, and its size with indexes and all."""

    live: int
    dead: int
    size: int


class Sample(msgspec.Struct):
    """What is held at one moment; sizes in bytes."""

    at: datetime
    load: float
    """Of the machine, over the last minute: what else may have held the service up."""
    rss: int
    cpu_seconds: float
    """What the service has used since it started."""
    connections: int
    """Of the service: callers, PostgreSQL, receivers of events."""
    descriptors: int
    threads: int
    backends: int
    """Connections to the database, as PostgreSQL counts them."""
    postgres_private: int
    """Memory of PostgreSQL's processes that is theirs alone: all but the shared buffers and the program."""
    tables: dict[str, Relation]


class Window(msgspec.Struct):
    """Some minutes of a run: what came of its requests, and what was held at its end."""

    traffic: Traffic
    sample: Sample


async def take_sample(service: int, postgres: int, superuser_url: str) -> Sample:
    """Look at both processes, by their ids, and at the database."""
    connection = await asyncpg.connect(superuser_url)
    try:
        tables = {name: Relation(*rest) for name, *rest in await connection.fetch(_TABLES)}
        backends = await connection.fetchval(_BACKENDS)
    finally:
        await connection.close()
    process = psutil.Process(service)
    with process.oneshot():
        times = process.cpu_times()
        return Sample(
            at=datetime.now(UTC),
            load=os.getloadavg()[0],
            rss=process.memory_info().rss,
            cpu_seconds=times.user + times.system,
            connections=len(process.net_connections("all")),
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            backends=backends,
            postgres_private=_private(psutil.Process(postgres)),
            tables=tables,
        )


def _private(process: psutil.Process) -> int:
    """Return the memory that is private to a process and its descendants; one that ends meanwhile has none."""
    return sum(_anonymous(each) for each in (process, *process.children(recursive=True)))


def _anonymous(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)


def quarters(windows: Sequence[Window]) -> tuple[Sequence[Window], Sequence[Window]]:
    """Return the windows of the first and of the last quarter; raise `ValueError` where there are too few for that.

    The first window of all is only where growth is measured from.
    """
    size = (len(windows) - 1) // 4
    if not size:
        raise ValueError("the first quarter cannot be compared with the last: there are fewer than five windows")
    return windows[: size + 1], windows[-size - 1 :]


def figures_of(windows: Sequence[Window]) -> Figures:
    """Return the figures of both quarters: medians over their windows, as `first.p99_ms` and `last.p99_ms`."""
    figures = Figures()
    for name, quarter in zip(("first", "last"), quarters(windows), strict=True):
        for before, window in itertools.pairwise(quarter):
            for figure, value in _figures(before.sample, window):
                figures.note(f"{name}.{figure}", value)
    for window in windows:
        figures.note("refused", window.traffic.refused, worst=True)
    return figures


def _figures(before: Sample, window: Window) -> Iterator[tuple[str, float]]:
    sample, pairs = window.sample, max(window.traffic.pairs, 1)
    seconds = (sample.at - before.at).total_seconds()
    yield "pairs_per_second", window.traffic.pairs / seconds
    yield "load", sample.load
    yield "p50_ms", window.traffic.all.p50
    yield "p99_ms", window.traffic.all.p99
    yield "most_ms", window.traffic.all.most
    yield "cpu_ms_per_pair", 1_000 * (sample.cpu_seconds - before.cpu_seconds) / pairs
    yield "rss_mib", sample.rss / MIB
    yield "postgres_mib", sample.postgres_private / MIB
    yield "connections", sample.connections
    yield "descriptors", sample.descriptors
    yield "threads", sample.threads
    yield "backends", sample.backends
    yield "bytes_per_pair", (_journal_size(sample) - _journal_size(before)) / pairs
    for name in IN_PLACE:
        table = sample.tables[name]
        yield f"{name}.kib", table.size / KIB
        yield f"{name}.bytes_per_row", table.size / max(table.live, 1)


def _journal_size(sample: Sample) -> int:
    """Return the size of what grows with every job."""
    return sum(table.size for name, table in sample.tables.items() if name not in IN_PLACE)


def _at_most(limit: float, *figures: str) -> list[Goal]:
    return [Goal(f"last.{figure}", "≤", limit, f"first.{figure}") for figure in figures]


GOALS: Final = (
    Goal("last.pairs_per_second", "≥", 0.98, "first.pairs_per_second"),
    *_at_most(1.2, "p50_ms", "cpu_ms_per_pair", "rss_mib", "postgres_mib"),
    *_at_most(1.5, "p99_ms"),
    *_at_most(1.05, "connections", "descriptors", "threads", "backends"),
    *_at_most(1.1, "bytes_per_pair", *(f"{name}.bytes_per_row" for name in IN_PLACE)),
    Goal("refused", "≤", 0),
    Goal("audit.discrepancies", "≤", 0),
)
"""The last quarter beside the first."""
