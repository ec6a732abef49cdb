"""The audit of what is pinned, asking a database of ours: one that nobody answers must not pass for a clean bill."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import dependencies

LOCK = f"""
idna==3.10 \\
    --hash=sha256:{"1" * 64}
sniffio==1.3.1 \\
    --hash=sha256:{"2" * 64}
"""
KNOWN = {
    "id": "GHSA-0000-0000-0000",
    "details": "a test's",
    "affected": [
        {
            "package": {"name": "idna", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.11"}]}],
        }
    ],
}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    file = tmp_path / "requirements.lock"
    file.write_text(LOCK)
    return file


@contextlib.asynccontextmanager
async def _database(of_idna: list[object], status: int = 200) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        named = (await request.json())["package"]["name"]
        return web.json_response({"vulns": of_idna} if named == "idna" else {}, status=status)

    app = web.Application()
    app.router.add_post("/v1/query", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/query"
    finally:
        await runner.cleanup()


async def _audit(lock: Path, database: str, *options: str) -> int:
    return await asyncio.to_thread(dependencies.main, ["--lock", str(lock), "--database", database, *options])


async def test_a_known_vulnerability_fails_and_is_named(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with _database([KNOWN]) as database:
        assert await _audit(lock, database) == 1
    told = capsys.readouterr().out
    assert "idna 3.10 has GHSA-0000-0000-0000, mended in 3.11\n" in told
    assert "2 dependencies audited, 1 known vulnerabilities\n" in told


async def test_where_nothing_is_known_it_passes(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with _database([]) as database:
        assert await _audit(lock, database, "--required") == 0
    assert capsys.readouterr().out == "2 dependencies audited, 0 known vulnerabilities\n"


async def test_no_answer_is_told_and_fails_only_where_one_is_required(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with _database([], status=500) as failing:
        for database in ("http://127.0.0.1:9/v1/query", failing):
            assert await _audit(lock, database) == 0
            assert "DEPENDENCIES WERE NOT AUDITED: " in capsys.readouterr().out
            assert await _audit(lock, database, "--required") == 1
            assert "audited, 0 known" not in capsys.readouterr().out


def test_the_lock_is_that_of_the_project() -> None:
    pinned = dependencies.LOCK.read_text()
    assert all(f"\n{name}==" in f"\n{pinned}" for name in ("asyncpg", "litestar", "pytest"))


def test_what_another_dependency_asks_with_an_extra_is_pinned_with_it() -> None:
    """Where the lock leaves the extra out, pip takes the newest release for it, and fails as soon as there is one."""
    pinned = {line.split("==")[0] for line in dependencies.LOCK.read_text().splitlines() if "==" in line}
    asked = {
        f"{canonicalize_name(each.name)}[{','.join(sorted(each.extras))}]"
        for distribution in importlib.metadata.distributions()
        for each in map(Requirement, distribution.requires or ())
        if each.extras and (each.marker is None or each.marker.evaluate({"extra": ""}))
    }
    assert "coverage[toml]" in asked
    assert asked <= pinned
