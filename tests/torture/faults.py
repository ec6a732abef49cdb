"""What can go wrong, each as a method of its name; a fault that lasts is over when its method returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Final

import asyncpg
import psutil

from tests.torture.plan import CLOCKS, Fault
from tests.torture.stage import START_SECONDS_MAX, Replica, Stage

MIGRATION_LOCK: Final = 0x6C656467_6D696772
"""That of `migrations/env.py`, which only alembic can import."""

CONNECTIONS_TRIED: Final = 200
FILL_CHUNK: Final = 2**20
FAILPOINT_SECONDS_MAX: Final = 10.0


class Faults:
    """Does faults to a stage, and counts those that hit."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.hits: Counter[str] = Counter()

    async def do(self, fault: Fault) -> None:
        """Let something go wrong after a while, and be over."""
        if fault.settled:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._replica(fault).answers.wait(), START_SECONDS_MAX)
        await asyncio.sleep(fault.gap_seconds)
        act: Callable[[Fault], Coroutine[None, None, bool]] = getattr(self, fault.name)
        if await act(fault):
            self.hits[fault.name] += 1

    # -- services ---------------------------------------------------------------------------------------------------

    def _replica(self, fault: Fault) -> Replica:
        return self._stage.replicas[fault.choose(len(self._stage.replicas))]

    async def kill_service(self, fault: Fault) -> bool:
        """`kill -9` of a service."""
        return self._replica(fault).signal(signal.SIGKILL)

    async def stop_service(self, fault: Fault) -> bool:
        """SIGTERM: what was accepted is finished, while another takes over."""
        return self._replica(fault).signal(signal.SIGTERM)

    async def freeze_service(self, fault: Fault) -> bool:
        """SIGSTOP, and SIGCONT after a while: its callers have long asked elsewhere."""
        replica = self._replica(fault)
        hit = replica.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.hold_seconds)
        replica.signal(signal.SIGCONT)
        return hit

    async def failpoint(self, fault: Fault) -> bool:
        """Restart a service that is to die between two named steps of a batch, and wait until it did."""
        replica = self._replica(fault)
        replica.failpoint = f"{fault.point}=kill#{fault.turn}"
        if not replica.signal(signal.SIGTERM):
            return False
        starts = replica.starts
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAILPOINT_SECONDS_MAX):
                while replica.starts < starts + 2:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
        return replica.starts >= starts + 2  # Else it is as alive as ever, and dies some time later.

    async def skew_clock(self, fault: Fault) -> bool:
        """The system clock of a service runs off, from its next start to its last: the ledger's is the database's."""
        replica = self._replica(fault)
        replica.clock = CLOCKS[fault.turn % len(CLOCKS)]
        return replica.signal(signal.SIGTERM)

    # -- PostgreSQL ---------------------------------------------------------------------------------------------------

    async def kill_postgres(self, fault: Fault) -> bool:
        """`kill -9` of the postmaster, which leaves its children alone."""
        pid = self._stage.postmaster
        return pid is not None and _kill(psutil.Process(pid))

    async def kill_backend(self, fault: Fault) -> bool:
        """`kill -9` of a process that serves a connection: PostgreSQL ends all the others and recovers."""
        backends = self._stage.postgres_processes(batches=True)
        return bool(backends) and _kill(backends[fault.choose(len(backends))])

    async def freeze_postgres(self, fault: Fault) -> bool:
        """SIGSTOP of all of PostgreSQL, and SIGCONT after a while."""
        return await self._freeze(self._stage.postgres_processes(), fault.hold_seconds)

    async def freeze_backend(self, fault: Fault) -> bool:
        """The same with one connection, perhaps in the middle of a batch: it keeps its locks."""
        backends = self._stage.postgres_processes(batches=True)
        return await self._freeze(backends[: 1 + fault.choose(len(backends))], fault.hold_seconds)

    async def _freeze(self, processes: list[psutil.Process], seconds: float) -> bool:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        await asyncio.sleep(seconds)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.resume()
        return bool(processes)

    async def fill_disk(self, fault: Fault) -> bool:
        """Leave no byte free where PostgreSQL writes, for a while."""
        folder = self._stage.small_disk
        assert folder is not None
        filling = folder / "filling"
        try:
            await asyncio.to_thread(_fill, filling)
            await asyncio.sleep(fault.hold_seconds)
        finally:
            filling.unlink(missing_ok=True)
        return True

    async def exhaust(self, fault: Fault) -> bool:
        """Take all connections that PostgreSQL gives, and let the services look for new ones."""
        postgres, proxy = self._stage.postgres, self._stage.proxy
        assert postgres is not None
        assert proxy is not None
        taken: list[asyncpg.Connection[asyncpg.Record]] = []
        try:
            proxy.cut()
            while len(taken) < CONNECTIONS_TRIED:
                taken += [await asyncpg.connect(postgres.url("ledger_service", "ledger"), timeout=5)]
        except (OSError, asyncpg.PostgresError):
            await asyncio.sleep(fault.hold_seconds)
        finally:
            for connection in taken:
                connection.terminate()
        return bool(taken)

    async def migrate(self, fault: Fault) -> bool:
        """A migration holds its lock, and that of the accounts as `alter table` takes it; a service restarts."""
        postgres = self._stage.postgres
        assert postgres is not None
        try:
            connection = await asyncpg.connect(postgres.url("ledger_owner", "ledger"), timeout=5)
        except (OSError, asyncpg.PostgresError):
            return False
        try:
            await connection.execute("select pg_advisory_lock($1)", MIGRATION_LOCK, timeout=5)
            async with connection.transaction():
                await connection.execute("set local lock_timeout = '5s'")
                await connection.execute("lock table ledger.accounts in access exclusive mode", timeout=10)
                self._replica(fault).signal(signal.SIGKILL)
                await asyncio.sleep(fault.hold_seconds)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        finally:
            connection.terminate()
        return True

    # -- between them -------------------------------------------------------------------------------------------------

    async def cut(self, fault: Fault) -> bool:
        """Break all connections off."""
        assert self._stage.proxy is not None
        self._stage.proxy.cut()
        return True

    async def swallow(self, fault: Fault) -> bool:
        """Lose what PostgreSQL answers for a while, then break off: commits happen that nobody hears of."""
        return await self._for_a_while(fault.hold_seconds / 2, "swallowing", True, cut=True)

    async def delay(self, fault: Fault) -> bool:
        """Let every byte arrive a little later."""
        return await self._for_a_while(2 * fault.hold_seconds, "delay_seconds", fault.hold_seconds / 20)

    async def refuse(self, fault: Fault) -> bool:
        """Break off, and take no new connection for a while."""
        assert self._stage.proxy is not None
        self._stage.proxy.cut()
        return await self._for_a_while(fault.hold_seconds, "refusing", True)

    async def stall(self, fault: Fault) -> bool:
        """Let no byte pass for a while."""
        proxy = self._stage.proxy
        assert proxy is not None
        proxy.stall()
        await asyncio.sleep(fault.hold_seconds)
        proxy.pass_on()
        return True

    async def _for_a_while(self, seconds: float, switch: str, value: object, *, cut: bool = False) -> bool:
        proxy = self._stage.proxy
        assert proxy is not None
        setattr(proxy, switch, value)
        await asyncio.sleep(seconds)
        if cut:
            proxy.cut()
        proxy.pass_on()
        return True


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _fill(file: os.PathLike[str]) -> None:
    """Make a file as large as there is room; the last bytes are written one by one."""
    with open(file, "wb") as filling:  # noqa: PTH123 - any path
        for chunk in (64 * FILL_CHUNK, FILL_CHUNK, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(filling.fileno(), os.fstat(filling.fileno()).st_size, chunk)
