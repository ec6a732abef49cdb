"""A PgBouncer in transaction mode between the service and a PostgreSQL: few sessions for many connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from ledger.embedded import EmbeddedPostgres
from tests.support.needed import lacking

START_SECONDS_MAX = 20.0
PORT = 6432


def program() -> str:
    """Find `pgbouncer`. With LEDGER_TESTS_NEED_SERVERS set, there has to be one."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if found is None:
        lacking("no pgbouncer on PATH: apt-get install --no-install-recommends pgbouncer")
    return found


@contextlib.contextmanager
def running_pgbouncer(postgres: EmbeddedPostgres, url: str, folder: Path, sessions: int) -> Iterator[str]:
    """Run a PgBouncer in front of the database of a URL, with so many sessions of the server; give the URL to use.

    It runs as the system user of PostgreSQL, whose socket nobody else can reach.
    """
    parsed = urllib.parse.urlsplit(url)
    database, user = parsed.path.removeprefix("/"), parsed.netloc.removesuffix("@")
    postgres.place.user.owns(folder)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"""[databases]
{database} = host={postgres.place.socket_dir} port=5432 dbname={database} user={user}
[pgbouncer]
listen_addr =
listen_port = {PORT}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
logfile = {folder}/pgbouncer.log
"""
    )
    settings.chmod(0o644)
    with subprocess.Popen(
        [program(), "-q", str(settings)], stderr=subprocess.DEVNULL, **postgres.place.user.process_options
    ) as process:
        try:
            _wait(folder / f".s.PGSQL.{PORT}", process)
            yield f"postgresql://{user}@/{database}?host={folder}&port={PORT}&pooler=transaction"
        finally:
            process.terminate()


def _wait(socket: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not socket.exists():
        assert process.poll() is None, "pgbouncer ended at once"
        assert time.monotonic() < deadline, "pgbouncer did not start"
        time.sleep(0.05)
