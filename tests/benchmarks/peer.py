"""The peer: the package `credit-ledger`, in an environment of its own, on the same server."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg
import msgspec

from tests.benchmarks.figures import percentile
from tests.benchmarks.server import Server
from tests.benchmarks.worker import ROOT, run_program

DATABASE: Final = "peer"
THREADS: Final = 16
WARM_UP_SECONDS: Final = 1.0
REQUIREMENTS: Final = Path(__file__).with_name("peer-requirements.txt")
ENVIRONMENT: Final = ROOT / "build" / "peer"

TABLES: Final = """
create table credit_balance (
    tenant_id text primary key, credits numeric(18, 4) not null check (credits >= 0),
    updated_at timestamptz not null default now());
create table credit_ledger (
    id uuid primary key, tenant_id text not null, delta numeric(18, 4) not null, reason text not null,
    idempotency_key text, balance_after numeric(18, 4) not null, created_at timestamptz not null default now(),
    unique (tenant_id, idempotency_key));
insert into credit_balance (tenant_id, credits) select n, 1000000000 from generate_series(1, 1000) n;
"""
"""The tables that its statements need, which its package lacks; without its row-level security, to its advantage."""


@dataclass(frozen=True)
class PeerReport:
    """What it came to; a call is a decrement or a grant, and a pair is one of each."""

    pairs_per_second: float
    ms_p50: float
    ms_p99: float


async def prepare(server: Server) -> Path:
    """Install the peer, unless it is installed, make its tables, and return its Python.

    Raises `BenchmarkError` where it cannot be installed.
    """
    python = await _install()
    await server.create_database(DATABASE)
    connection = await asyncpg.connect(server.superuser_url(DATABASE))
    try:
        await connection.execute(TABLES)
    finally:
        await connection.close()
    return python


async def measure(server: Server, python: Path, accounts: int, prefix: str, seconds: float) -> PeerReport:
    """Let threads take credits from so many accounts, and give some back, each with a key against repetition."""
    await server.settle_down(DATABASE)
    task = {
        "url": server.superuser_url(DATABASE).replace("postgresql:", "postgresql+psycopg:", 1),
        "accounts": [str(number) for number in range(1, accounts + 1)],
        "prefix": prefix,
        "threads": THREADS,
        "warm_up_seconds": WARM_UP_SECONDS,
        "seconds": seconds,
    }
    out = await _run(python, Path(__file__).with_name("peer_worker.py"), told=msgspec.json.encode(task))
    taken_ms = msgspec.json.decode(out, type=list[float])
    return PeerReport(len(taken_ms) / 2 / seconds, percentile(taken_ms, 50), percentile(taken_ms, 99))


async def _install() -> Path:
    """Make the environment, pinned by hash, and return its Python; it is kept until other versions are asked for."""
    python, installed = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not installed.is_file() or installed.read_text() != wanted:
        await _run(sys.executable, "-m", "venv", "--clear", ENVIRONMENT)
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet")
        await _run(*pip, "--require-hashes", "--only-binary=:all:", "--requirement", REQUIREMENTS)
        installed.write_text(wanted)
    return python


async def _run(*command: str | Path, told: bytes = b"") -> bytes:
    return await run_program(*command, told=told, stderr=asyncio.subprocess.PIPE)
