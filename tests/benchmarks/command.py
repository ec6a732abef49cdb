"""What the commands of the benchmarks have in common: their options, a folder to work in, how they end."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.benchmarks import report
from tests.benchmarks.figures import Figures
from tests.benchmarks.goals import Goal
from tests.benchmarks.server import BenchmarkError, Server, running_server
from tests.support.ending import end_as_interrupted

OUTPUT: Final = Path(__file__).parents[2] / "build"

console = Console(width=160, soft_wrap=True)


class Measured:
    """What a run came to: its figures, and why something was not measured, by its name."""

    def __init__(self, figures: Figures, remarks: dict[str, str]) -> None:
        self.figures = figures
        self.remarks = remarks


Measure = Callable[[Server, Path, argparse.Namespace], Awaitable[Measured]]


def told(what: str) -> None:
    """Say what is measured now."""
    console.print(f"… {what}")


def parser(description: str | None, output: str) -> argparse.ArgumentParser:
    """Return the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=4.0, help="how long each figure is measured in a round")
    options.add_argument("--output", type=Path, default=OUTPUT / output, help="where the JSON goes")
    return options


def run(options: argparse.Namespace, measure: Measure, goals: Sequence[Goal]) -> None:
    """Measure on a new PostgreSQL, print the table, write the JSON; exit with 1 where no figure counts."""
    end_as_interrupted()
    with tempfile.TemporaryDirectory(prefix="gateway-ledger-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL's user must be able to enter root's folder.
        try:
            asyncio.run(_run(folder, options, measure, goals))
        except BenchmarkError as error:
            console.print(str(error), style="red", markup=False)
            sys.exit(1)


async def _run(folder: Path, options: argparse.Namespace, measure: Measure, goals: Sequence[Goal]) -> None:
    start, load_before = time.monotonic(), os.getloadavg()[0]
    programs = os.environ.get("LEDGER_POSTGRES_BIN")
    async with running_server(folder, Path(programs) if programs else None) as server:
        measured = await measure(server, folder, options)
    took = time.monotonic() - start
    facts = {
        "at": datetime.now(UTC),
        "took_seconds": round(took),
        "seconds": options.seconds,
        "cores": os.cpu_count(),
        "load_before": load_before,
        "postgresql": server.version,
        "settings": server.settings,
        "remarks": measured.remarks,
    }
    report.write(options.output, facts, measured.figures, goals)
    title = f"PostgreSQL {server.version}, {os.cpu_count()} cores, load before {load_before:.1f}, {took:.0f} s in all"
    report.show(console, title, measured.figures, goals, measured.remarks)
    if any(value for name, value in measured.figures.values().items() if name.endswith("audit.discrepancies")):
        raise BenchmarkError("the audit found the books wrong: no figure counts")
