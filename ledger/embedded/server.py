"""Starting, watching and stopping the embedded PostgreSQL."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

import asyncpg
import psutil
import structlog

from ledger.embedded.place import SYSTEM_DIR, EmbeddedPostgresError, Place, prepare_place
from ledger.embedded.programs import Programs, find_programs

OWNER_ROLE: Final = "ledger_owner"
SERVICE_ROLE: Final = "ledger_service"
READER_ROLE: Final = "ledger_reader"
SUPERUSER: Final = "postgres"
DATABASE: Final = "ledger"

START_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 10.0
"""How long each way of stopping may take. PostgreSQL can wait for ever when it is stopped while it recovers."""

WATCH_INTERVAL_SECONDS: Final = 0.5
RESTART_DELAY_SECONDS_MAX: Final = 30.0

_HBA: Final = "# The socket's folder can be entered by one user alone: that is the password.\nlocal all all trust\n"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ConnectionUrls:
    """How to reach one database, as `postgresql://` URLs."""

    owner: str
    """The role that owns the tables: for migrations."""
    service: str
    """The role of the running service: it can do only what migrations grant it."""
    reader: str
    """The role of dashboards: it can read the views of the schema `reporting`, and nothing else."""


class EmbeddedPostgres:
    """PostgreSQL under a data directory, for as long as the service runs.

    - It listens on a unix socket only, in a folder that nobody but its system user (and root) can enter.
    - Only one service at a time can use a data directory: a lock on `<data-dir>/service.lock`, which ends
      with the process that holds it, however that ends.
    - After a `kill -9` of the service its PostgreSQL goes on alone; the next start stops it and starts its
      own. After a `kill -9` of PostgreSQL, `watch` starts it again. Either way PostgreSQL's own recovery
      loses nothing committed.
    - A new cluster is made aside and renamed when it is complete, so what an interrupted start leaves is
      never used.
    """

    def __init__(self, data_dir: Path, *, programs: Path | None = None, system_dir: Path = SYSTEM_DIR) -> None:
        """Takes the data directory, and optionally a folder with PostgreSQL's programs (not the wheel's)."""
        self._data_dir = data_dir
        self._chosen_programs = programs
        self._system_dir = system_dir
        self._place: Place | None = None
        self._programs: Programs | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def place(self) -> Place:
        """Where the files are; known once `start` was called."""
        if self._place is None:
            raise EmbeddedPostgresError("PostgreSQL was not started")
        return self._place

    @property
    def pid(self) -> int | None:
        """The process id of the running server, or None."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    async def start(self) -> ConnectionUrls:
        """Starts PostgreSQL and returns how to reach the ledger's database; makes both on the first start.

        Raises:
            EmbeddedPostgresError: it cannot be started, or another service uses the data directory.
        """
        await _to_the_end(self._prepare)
        await self._launch()
        await self._make_roles()
        return await self.create_database(DATABASE)

    async def stop(self) -> None:
        """Stops PostgreSQL in order, with everything on disk, and lets go of the data directory."""
        process, self._process = self._process, None
        if process is not None:
            await _to_the_end(lambda: _stop_process(process))
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def watch(self) -> None:
        """Starts PostgreSQL again whenever it has died, until cancelled."""
        delay_seconds = WATCH_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(delay_seconds)
            if self.pid is not None:
                delay_seconds = WATCH_INTERVAL_SECONDS
                continue
            log.warning("postgres_died", data_dir=str(self._data_dir))
            try:
                await self._launch()
            except (EmbeddedPostgresError, OSError, asyncpg.PostgresError, psutil.Error) as error:
                delay_seconds = min(2 * delay_seconds, RESTART_DELAY_SECONDS_MAX)
                log.warning("postgres_not_restarted", error=str(error), retry_seconds=delay_seconds)
            else:
                log.info("postgres_restarted", pid=self.pid)

    async def create_database(self, name: str, template: str | None = None) -> ConnectionUrls:
        """Makes a database of the owner's that service and reader may connect to; leaves one that is there."""
        connection = await self._connect()
        try:
            if not await connection.fetchval("select true from pg_database where datname = $1", name):
                source = f'template "{template}"' if template else ""
                await connection.execute(f'create database "{name}" owner {OWNER_ROLE} {source}')
            await connection.execute(f'revoke all on database "{name}" from public')
            await connection.execute(f'grant connect on database "{name}" to {SERVICE_ROLE}, {READER_ROLE}')
        finally:
            await connection.close()
        return ConnectionUrls(*(self.url(role, name) for role in (OWNER_ROLE, SERVICE_ROLE, READER_ROLE)))

    def url(self, role: str, database: str) -> str:
        """Returns the URL with which a role reaches a database of this server."""
        return f"postgresql://{role}@/{database}?host={quote(str(self.place.socket_dir))}"

    def _prepare(self) -> None:
        """Takes the data directory and brings the cluster to where the server can be started on it."""
        place = self._place = prepare_place(self._data_dir, self._system_dir)
        self._lock = _take_lock(place.data_dir)
        programs = self._programs = find_programs(self._chosen_programs, place.user, self._system_dir)
        (place.cluster / "pg_hba.conf").write_text(_HBA)
        (place.cluster / "pg_hba.conf").chmod(0o644)
        if not place.data.exists():
            _make_cluster(place, programs)
        version = (place.data / "PG_VERSION").read_text().strip()
        if version != programs.major:
            raise EmbeddedPostgresError(
                f"{place.data} was made by PostgreSQL {version}, and the programs are of PostgreSQL "
                f"{programs.major}: choose others with LEDGER_POSTGRES_BIN, or move the data with pg_dump"
            )

    async def _launch(self) -> None:
        """Starts the server and returns when it answers."""
        await _to_the_end(self._spawn)
        await (await self._connect_when_ready()).close()

    async def _make_roles(self) -> None:
        connection = await self._connect()
        try:
            for role in (OWNER_ROLE, SERVICE_ROLE, READER_ROLE):
                if not await connection.fetchval("select true from pg_roles where rolname = $1", role):
                    await connection.execute(f"create role {role} login")
        finally:
            await connection.close()

    def _spawn(self) -> None:
        _clear_leftovers(self.place)
        assert self._programs is not None
        with _fresh_log(self.place.log) as output:
            self._process = subprocess.Popen(  # noqa: S603 - the program was found by us
                [self._programs.postgres, "-D", self.place.data, *_server_options(self.place)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the service, which stops PostgreSQL last.
                **_process_options(self.place),
            )

    async def _connect_when_ready(self) -> asyncpg.Connection[asyncpg.Record]:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.pid is not None:
            try:
                return await self._connect()
            except (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError) as error:
                if time.monotonic() > deadline:
                    message = f"PostgreSQL did not answer in {START_SECONDS_MAX:.0f} seconds: {error}"
                    raise EmbeddedPostgresError(message) from error
                await asyncio.sleep(0.05)
        raise EmbeddedPostgresError(f"PostgreSQL stopped as it started:\n{_tail(self.place.log)}")

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            host=str(self.place.socket_dir), port=5432, user=SUPERUSER, database="postgres", timeout=10
        )


async def _to_the_end(work: Callable[[], None]) -> None:
    """Runs blocking work in a thread and, if cancelled meanwhile, waits for it before giving way.

    What it has begun (a lock taken, a process started) is therefore known to `stop`.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if error := task.exception():
            log.warning("cancelled_work_failed", error=str(error))
        raise


def _take_lock(data_dir: Path) -> IO[str]:
    """Takes the data directory for this process, until the file is closed or the process ends."""
    file = (data_dir / "service.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise EmbeddedPostgresError(
            f"another gateway-ledger (process {holder}) is using {data_dir}: stop it, or choose another --data-dir"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _make_cluster(place: Place, programs: Programs) -> None:
    """Makes a new cluster under another name and renames it when it is complete."""
    unfinished = place.cluster / "data.new"
    if unfinished.exists():
        _end(_processes_of(unfinished), signal.SIGKILL)
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    place.user.owns(unfinished)
    options = ["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]
    command = [
        str(programs.initdb),
        "--pgdata",
        str(unfinished),
        *options,
        "--data-checksums",
        "--no-instructions",
    ]
    answer = subprocess.run(  # noqa: S603 - the program was found by us
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        start_new_session=True,  # Ctrl-C waits for it: a second or two.
        **_process_options(place),
    )
    if answer.returncode != 0:
        raise EmbeddedPostgresError(f"initdb failed:\n{answer.stdout}{answer.stderr}")
    unfinished.rename(place.data)


def _server_options(place: Place) -> list[str]:
    """What the server is told. Durability (fsync, synchronous_commit) is PostgreSQL's default: on."""
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": _quoted(place.socket_dir),
        "unix_socket_permissions": "0700",
        "port": "5432",
        "hba_file": str(place.cluster / "pg_hba.conf"),
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        "log_line_prefix": "%m [%p] %q%u@%d ",
    }
    return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]


def _quoted(path: Path) -> str:
    """Writes one path as a list of one, which is how PostgreSQL reads that setting."""
    return '"' + str(path).replace('"', '""') + '"'


def _process_options(place: Place) -> dict[str, Any]:
    environment = {"PATH": os.defpath, "LC_ALL": "C"}
    return {"env": environment, "umask": 0o077, **place.user.process_options}


def _clear_leftovers(place: Place) -> None:
    """Ends what was left running on this cluster by a kill, and removes what was left lying.

    PostgreSQL judges an old `postmaster.pid` by whether some process has that number; here it is known
    better.
    """
    pid_file = place.data / "postmaster.pid"
    postmaster_pid = _first_number(pid_file)
    # The server stops in order and ends its children. If it is gone already, they are told to leave.
    _end([p for p in _processes_of(place.data) if p.pid == postmaster_pid], signal.SIGINT)
    _end(_processes_of(place.data), signal.SIGQUIT)
    pid_file.unlink(missing_ok=True)
    for file in place.socket_dir.iterdir():
        file.unlink()


def _processes_of(data: Path) -> list[psutil.Process]:
    """Returns the PostgreSQL processes of a data folder: they name it, or have it as current folder."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"] in ("postgres", "postmaster", "initdb") and (
                str(data) in process.cmdline() or Path(process.cwd()) == data
            ):
                found.append(process)
        except psutil.Error:  # It has ended, or is somebody else's.
            continue
    return found


def _end(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Sends a signal and waits until the processes have ended, at last by force."""
    for step in (number, signal.SIGKILL):
        for process in processes:
            _send(process, step)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while processes and time.monotonic() < deadline:
            time.sleep(0.02)
            processes = [process for process in processes if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody collects, as in some containers, has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _first_number(file: Path) -> int | None:
    try:
        return int(file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stops the server in order; at once if that takes too long (the next start then recovers)."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            continue
        return


def _fresh_log(path: Path) -> IO[bytes]:
    """Opens a new log and keeps the one before it."""
    if path.exists():
        path.replace(path.with_suffix(".log.1"))
    return path.open("wb")


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:])
