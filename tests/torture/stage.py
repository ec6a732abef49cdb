"""What is tortured: PostgreSQL, a proxy before it, and services, each of which is started again whenever it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import asyncpg
import psutil

from ledger.database import migrate
from ledger.embedded import EmbeddedPostgres
from ledger.failpoints import VARIABLE
from ledger.tokens import Role, new_token, variable_of
from tests.torture.proxy import Proxy

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 40.0
RESTART_PAUSE_SECONDS: Final = 0.1

FAKETIME: Final = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
"""The library that makes a process see another time, where it is installed (Debian: libfaketime)."""

WAL_SIZE_MAX: Final = "64MB"
"""So little that a small disk is enough: it is reached all the time, which is a test of its own."""


class Replica:
    """One service, under a supervisor that starts it again as soon as it has ended: always on the same port."""

    def __init__(self, folder: Path, options: tuple[str, ...], tokens: dict[Role, str], clock: str = "") -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"service-{self.port}.log"
        self.answers = asyncio.Event()
        """Whether it is up."""
        self.starts = 0
        self.failpoint = ""
        """What is armed at the next start, and only then."""
        self.clock = clock
        """How far the system clock is off that it sees from its next start on, such as `+40d`."""
        self.armed = False
        """Whether the process that runs was started so."""
        self._options = options
        self._tokens = tokens
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    def headers(self, role: Role = Role.ADMIN) -> dict[str, str]:
        """Return what opens it."""
        return {"Authorization": f"Bearer {self._tokens[role]}"}

    @property
    def pid(self) -> int | None:
        """Its process, or None while it is between two."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal, and tell whether there was somebody to receive it."""
        pid = self.pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def start(self) -> None:
        """Begin to supervise it."""
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End it in order, for good."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _supervise(self) -> None:
        while True:
            await self._run()
            await asyncio.sleep(RESTART_PAUSE_SECONDS)

    async def _run(self) -> None:
        environment = _environment(self._tokens, self.port)
        self.armed = bool(self.failpoint)
        if self.armed:
            environment[VARIABLE] = self.failpoint
            self.failpoint = ""
        if self.clock:
            environment |= _faking(self.clock)
        program = Path(sys.executable).with_name("gateway-ledger")
        self.starts += 1
        with self.log.open("ab") as log:
            process = self._process = await asyncio.create_subprocess_exec(
                str(program),
                "serve",
                *self._options,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                if b"answers at" in line:
                    self.answers.set()
            await process.wait()
        finally:
            self.answers.clear()


class Stage:
    """Everything there is, and where it can be got at."""

    def __init__(self, postgres: EmbeddedPostgres | None, proxy: Proxy | None, replicas: list[Replica]) -> None:
        self.postgres = postgres
        """None where the service runs its own."""
        self.proxy = proxy
        self.replicas = replicas
        self.data_dir: Path | None = None
        """Where the service's own PostgreSQL is, if it runs one."""
        self.small_disk: Path | None = None
        """The file system that PostgreSQL's data are on, where it is a small one."""

    @property
    def postmaster(self) -> int | None:
        """PostgreSQL's process, or None while there is none."""
        if self.postgres is not None:
            return self.postgres.pid
        assert self.data_dir is not None
        for file in self.data_dir.rglob("postmaster.pid"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(file.read_text().splitlines()[0])
                return pid if psutil.pid_exists(pid) else None
        return None

    def postgres_processes(self, *, batches: bool = False) -> list[psutil.Process]:
        """Return PostgreSQL's processes, or only those that serve connections of services."""
        pid = self.postmaster
        if pid is None:
            return []
        try:
            postmaster = psutil.Process(pid)
            children = postmaster.children()
            if not batches:
                return [*children, postmaster]
            return [child for child in children if "ledger_service" in " ".join(child.cmdline())]
        except psutil.Error:
            return []

    async def calm_down(self) -> None:
        """Replace services that are still to die, and wait until all are up."""
        for replica in self.replicas:
            while replica.armed:
                replica.signal(signal.SIGKILL)
                await asyncio.sleep(RESTART_PAUSE_SECONDS)
        await self.all_answer()

    async def all_answer(self) -> None:
        """Wait until every service is up; raise TimeoutError where that takes too long."""
        async with asyncio.timeout(START_SECONDS_MAX):
            for replica in self.replicas:
                await replica.answers.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(tokens: dict[Role, str], port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_") or name in _KEPT}
    opened = {variable_of(role): token for role, token in tokens.items()}
    return {**kept, **opened, "LEDGER_PORT": str(port), "LEDGER_LOG_REQUESTS": "errors"}


_KEPT: Final = ("LEDGER_POSTGRES_BIN",)


def _faking(clock: str) -> dict[str, str]:
    """Return what lets a process see another date, while what it waits for takes as long as ever."""
    assert FAKETIME is not None
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def _new_tokens() -> dict[Role, str]:
    return {role: new_token(role) for role in Role}


@contextlib.asynccontextmanager
async def running_postgres(folder: Path, programs: Path | None) -> AsyncIterator[EmbeddedPostgres]:
    """Run a PostgreSQL that starts again whenever it dies, with a migrated database, under a folder."""
    postgres = EmbeddedPostgres(folder, programs=programs)
    urls = await postgres.start()
    watching = None
    try:
        connection = await asyncpg.connect(postgres.url("postgres", "postgres"))
        await connection.execute(f"alter system set max_wal_size = '{WAL_SIZE_MAX}'")
        await connection.execute("select pg_reload_conf()")
        await connection.close()
        await migrate(urls.owner)
        watching = asyncio.create_task(postgres.watch())
        yield postgres
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        await postgres.stop()


@contextlib.asynccontextmanager
async def replicas_on(postgres: EmbeddedPostgres, folder: Path, count: int, clock: str = "") -> AsyncIterator[Stage]:
    """Run so many services on one PostgreSQL, all through one proxy; their clocks may be off."""
    proxy = Proxy(postgres.place.socket_dir / ".s.PGSQL.5432")
    port = await proxy.start()
    tokens = _new_tokens()
    options = ("--database-url", f"postgresql://ledger_service@127.0.0.1:{port}/ledger")
    replicas = [Replica(folder, options, tokens, clock) for _ in range(count)]
    try:
        yield await _started(Stage(postgres, proxy, replicas))
    finally:
        proxy.pass_on()
        await asyncio.gather(*(replica.stop() for replica in replicas))
        await proxy.stop()


@contextlib.asynccontextmanager
async def service_with_its_own(folder: Path) -> AsyncIterator[Stage]:
    """Run one service that runs its own PostgreSQL."""
    tokens = _new_tokens()
    replica = Replica(folder, ("--data-dir", str(folder / "data")), tokens)
    stage = Stage(None, None, [replica])
    stage.data_dir = folder / "data"
    try:
        yield await _started(stage)
    finally:
        for process in stage.postgres_processes():
            with contextlib.suppress(psutil.Error):
                process.resume()
        await replica.stop()


async def _started(stage: Stage) -> Stage:
    for replica in stage.replicas:
        replica.start()
    await stage.all_answer()
    return stage


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int, run: Callable[[list[str]], bool]) -> Iterator[Path | None]:
    """Mount a file system of that size for as long as the block lasts; give None where that is not permitted."""
    image, mounted = folder / "disk.image", folder / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * 2**20)
    made = os.geteuid() == 0 and run(["mkfs.ext4", "-q", "-m", "0", str(image)])
    made = made and run(["mount", "-o", "loop", str(image), str(mounted)])
    try:
        yield mounted if made else None
    finally:
        if made:
            run(["umount", str(mounted)]) or run(["umount", "--lazy", str(mounted)])
        image.unlink()
