"""PostgreSQL's own programs for backups, run as an administrator would, of the version of the server that is tested."""

from __future__ import annotations

import asyncio
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Final

import asyncpg

from ledger.embedded import SYSTEM_DIR, EmbeddedPostgres
from ledger.embedded.programs import find_programs

WAIT_SECONDS_MAX: Final = 60


class Backups:
    """The backups of one server, which are kept in a folder. `chosen` is where its programs are, if not the wheel's."""

    def __init__(self, postgres: EmbeddedPostgres, chosen: Path | None, folder: Path) -> None:
        self._postgres = postgres
        self._user = postgres.place.user
        self._programs = find_programs(chosen, self._user, SYSTEM_DIR).folder
        self._host = ["--host", str(postgres.place.socket_dir), "--username", "postgres"]
        self._folder = folder
        self._archive = folder / "archive"

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of the programs to its end, as the user of the server."""
        command = [str(self._programs / program), *self._host, *map(str, arguments)]
        options = self._user.process_options
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", **options)
        assert done.returncode == 0, done.stderr

    def dump(self, database: str) -> Path:
        """Dump a database."""
        place = self._folder_of_the_server("dump")
        self.run("pg_dump", "--format", "custom", "--file", place / "ledger.dump", database)
        return place / "ledger.dump"

    async def archive(self) -> None:
        """Have the server keep its write-ahead log from now on, and let backups be taken of it; it is restarted."""
        archive = self._folder_of_the_server("archive")
        connection = await self._connect()
        await connection.execute("alter system set archive_mode = 'on'")
        await connection.execute(f"alter system set archive_command = 'cp %p {archive}/%f'")
        await connection.close()
        await self._postgres.stop()
        await self._postgres.start()
        with (self._postgres.place.cluster / "pg_hba.conf").open("a") as file:
            file.write("local replication all trust\n")
        connection = await self._connect()
        await connection.execute("select pg_reload_conf()")
        await connection.close()

    def take(self, data_dir: Path) -> None:
        """Take a base backup, into where a server of that data directory would have its files."""
        cluster = data_dir / "postgresql"
        cluster.mkdir(parents=True)
        for folder in (data_dir, cluster):
            folder.chmod(0o755)
        (cluster / "data").mkdir()
        self._user.owns(cluster / "data")
        self.run("pg_basebackup", "--pgdata", cluster / "data", "--checkpoint", "fast")

    async def lose_the_server(self) -> None:
        """End the server as if its machine had burnt down, when all of its log is in the archive."""
        connection = await self._connect()
        last = await connection.fetchval("select pg_walfile_name(pg_switch_wal())")
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not (self._archive / last).exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
        await connection.close()
        await self._postgres.stop()

    def recover_to(self, data_dir: Path, instant: datetime) -> None:
        """Have a base backup come to how things stood at an instant, when its server is started."""
        data = data_dir / "postgresql" / "data"
        with (data / "postgresql.auto.conf").open("a") as file:
            file.write(
                f"archive_mode = 'off'\nrestore_command = 'cp {self._archive}/%f %p'\nhot_standby = 'off'\n"
                f"recovery_target_time = '{instant.isoformat()}'\nrecovery_target_action = 'promote'\n"
            )
        (data / "recovery.signal").touch()

    def _folder_of_the_server(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        self._user.owns(folder)
        return folder

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self._postgres.url("postgres", "postgres"))
