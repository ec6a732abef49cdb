"""What every test can ask for: a PostgreSQL, a fresh migrated database, the running service."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
import structlog

from ledger.database import migrate
from ledger.embedded import ConnectionUrls, EmbeddedPostgres
from tests.support.redis import RedisServer, running_redis
from tests.support.service import Service, start_service

TEMPLATE = "template_ledger"


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Forget where a command that was run in this process has its log go."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def programs() -> Path | None:
    """The PostgreSQL to test with: that of LEDGER_POSTGRES_BIN, or the wheel's."""
    folder = os.environ.get("LEDGER_POSTGRES_BIN")
    return Path(folder) if folder else None


@pytest.fixture(scope="session")
def session_dir() -> Iterator[Path]:
    """A folder that PostgreSQL's system user can enter, as root's `tmp_path` cannot."""
    with tempfile.TemporaryDirectory(prefix="gateway-ledger-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            folder.chmod(0o711)
        yield folder


@pytest.fixture
def open_dir(session_dir: Path) -> Iterator[Path]:
    """Such a folder for one test."""
    folder = session_dir / uuid.uuid4().hex[:12]
    folder.mkdir()
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres(session_dir: Path, programs: Path | None) -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL for the whole run."""
    server = EmbeddedPostgres(session_dir / "postgres", programs=programs)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="session")
def migrated_template(postgres: EmbeddedPostgres) -> str:
    """The name of a migrated database that others are copied from, which is faster than migrating each."""

    async def make() -> None:
        urls = await postgres.create_database(TEMPLATE)
        await migrate(urls.owner)

    asyncio.run(make())
    return TEMPLATE


@pytest.fixture
def database(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[ConnectionUrls]:
    """A fresh database with all tables, as its owner and as the service reach it."""
    with _fresh_database(postgres, migrated_template) as urls:
        yield urls


@pytest.fixture(scope="module")
def module_database(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[ConnectionUrls]:
    """A database that the tests of one module share, each with accounts of its own."""
    with _fresh_database(postgres, migrated_template) as urls:
        yield urls


@contextlib.contextmanager
def _fresh_database(postgres: EmbeddedPostgres, template: str) -> Iterator[ConnectionUrls]:
    name = f"test_{uuid.uuid4().hex}"
    yield asyncio.run(postgres.create_database(name, template))
    asyncio.run(_drop(postgres.url("postgres", "postgres"), name))


async def _drop(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f'drop database "{name}" with (force)')
    finally:
        await connection.close()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts services, given the options of `serve` and an `environment`; stops them at the end."""
    with _starter(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def module_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Service]]:
    """The same, for services that the tests of one module share."""
    with _starter(tmp_path_factory.mktemp("services")) as start:
        yield start


@contextlib.contextmanager
def _starter(folder: Path) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []
    numbers = itertools.count()

    def start(*options: str, environment: dict[str, str] | None = None) -> Service:
        own = folder / f"service-{next(numbers)}"
        own.mkdir()
        started.append(start_service(own, *options, environment=environment))
        return started[-1]

    yield start
    for service in started:
        if service.process.poll() is None:
            service.stop()


@pytest.fixture
def server(database: ConnectionUrls, services: Callable[..., Service]) -> Service:
    """A service on a fresh database, with a simulated clock."""
    return services("--database-url", database.service, "--simulated-clock")


@pytest.fixture(scope="module")
def module_server(module_database: ConnectionUrls, module_services: Callable[..., Service]) -> Service:
    """A service that the tests of one module share, with a simulated clock: each works on accounts of its own."""
    return module_services("--database-url", module_database.service, "--simulated-clock")


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A redis-server of the test's own, which forgets everything when it ends."""
    with running_redis() as server:
        yield server
