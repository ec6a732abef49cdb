"""The floor: what the same PostgreSQL does with the least that a durable reserve and settle can be, by pgbench."""

from __future__ import annotations

import asyncio
import math
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from tests.benchmarks.figures import percentile
from tests.benchmarks.server import BenchmarkError, Server
from tests.benchmarks.worker import run_program

FILES: Final = Path(__file__).parent / "floor"
DATABASE: Final = "floor"
THREADS: Final = 2
_TPS: Final = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_FAILED: Final = re.compile(r"^number of failed transactions: ([0-9]+)", re.MULTILINE)


@dataclass(frozen=True)
class Floor:
    """What one run came to."""

    pairs_per_second: float
    operation_p50_ms: float
    """How long half a pair took, where there was a single client."""


async def prepare(server: Server) -> None:
    """Make the floor's database."""
    await server.create_database(DATABASE)
    connection = await asyncpg.connect(server.superuser_url(DATABASE))
    try:
        await connection.execute((FILES / "schema.sql").read_text())
    finally:
        await connection.close()


async def measure(server: Server, shape: str, clients: int, seconds: float) -> Floor:
    """Run pgbench with this many clients on `pair_hot.sql` (one busy account) or `pair_uniform.sql` (1,000)."""
    await server.settle_down(DATABASE)
    with tempfile.TemporaryDirectory(prefix="gateway-ledger-floor-") as folder:
        log = Path(folder) / "pairs"
        options = ["--no-vacuum", "--protocol=prepared", f"--file={FILES / f'pair_{shape}.sql'}"]
        options += [f"--client={clients}", f"--jobs={min(THREADS, clients)}", f"--time={max(1, round(seconds))}"]
        if clients == 1:
            options += ["--log", f"--log-prefix={log}"]
        text = await _pgbench(server, options)
        pairs_ms = [float(line.split()[2]) / 1_000 for file in log.parent.iterdir() for line in file.open()]
    failed, tps = _FAILED.search(text), _TPS.search(text)
    if tps is None or (failed is not None and failed[1] != "0"):
        raise BenchmarkError(f"pgbench did not carry everything out:\n{text}")
    return Floor(float(tps[1]), percentile(pairs_ms, 50) / 2 if pairs_ms else math.nan)


async def _pgbench(server: Server, options: list[str]) -> str:
    where = ("--host", str(server.socket_dir), "--port", "5432", "--username", "postgres", DATABASE)
    return (await run_program(server.pgbench, *options, *where, stderr=asyncio.subprocess.STDOUT)).decode()
