"""`gateway-ledger serve`: everything the service needs, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg
import msgspec
import uvicorn
from litestar.types import ASGIApp

from ledger.api.edge import no_http
from ledger.database import EmptyDatabaseError, NotMigratedError, check_migrated, migrate
from ledger.embedded import EmbeddedPostgres, prepare_data_dir
from ledger.settings import Settings, SettingsError
from ledger.tokens import development_tokens
from ledger.wire import check_all, refusing

GRACEFUL_SECONDS_MAX: Final = 30
"""How long requests that were accepted may take once the service is told to stop."""

CHECK_TICKS: Final = 10
"""After how many tenths of a second the connections are looked at: some callers get a second more."""


class ServiceStartError(Exception):
    """The service cannot start; the message says why."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator wants to know of a service that is up."""

    url: str
    data_dir: Path | None
    """Where the embedded PostgreSQL keeps its data, if it is that one."""
    tokens_file: Path | None
    """Where the development tokens are, if there are any."""


async def serve(
    settings: Settings,
    running_app: Callable[[Settings], contextlib.AbstractAsyncContextManager[ASGIApp]],
    on_started: Callable[[Started], None],
) -> None:
    """Runs the service until SIGTERM or SIGINT, then ends it in order, with the PostgreSQL it started.

    Args:
        settings: what the operator said.
        running_app: runs the application, for the settings with the database and the tokens filled in.
        on_started: called once requests are answered.

    Raises:
        ServiceStartError: the port is taken, the tokens cannot be read, or the application did not start.
        MigrationError: the embedded database could not be migrated.
        SettingsError: no token is configured.
        EmbeddedPostgresError: the embedded PostgreSQL cannot be started.
    """
    stopper = _Stopper()
    try:
        settings, tokens_file = _with_tokens(settings)
        data_dir = None if settings.database_url else settings.data_dir
        with _listener(settings) as listener:
            started = Started(url=_url(listener), data_dir=data_dir, tokens_file=tokens_file)
            async with _database(settings) as ready, running_app(ready) as app:
                await _answer(listener, app, ready.doc_base_url, stopper, lambda: on_started(started))
    except asyncio.CancelledError:
        if not stopper.asked:
            raise


class _Stopper:
    """Turns SIGTERM and SIGINT into an orderly end, at whichever point the service is.

    While it is starting, the start is cancelled. Once it answers, requests are finished; a second signal does
    not wait for them.
    """

    def __init__(self) -> None:
        self.asked = False
        self.server: uvicorn.Server | None = None
        self._task = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        if self.server is not None:
            self.server.force_exit = self.asked
            self.server.should_exit = True
        elif self._task is not None and not self.asked:
            self._task.cancel()
        self.asked = True


class _Server(uvicorn.Server):
    """uvicorn, which leaves the signals to `_Stopper`, says when it answers and waits for no caller without end."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def on_tick(self, counter: int) -> bool:
        """Does what is to be done ten times a second; returns whether it is time to stop."""
        if counter % CHECK_TICKS == 0:
            check_all(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)


async def _answer(
    listener: socket.socket, app: ASGIApp, doc_base: str, stopper: _Stopper, on_started: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        app,
        loop="none",  # It runs in the loop that is running.
        http=refusing(partial(no_http, doc_base=doc_base)),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        proxy_headers=False,  # Nobody asks where a request came from.
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SECONDS_MAX,
    )
    # What is there now stays for good: the collector need not go through it each time, which holds requests up.
    gc.collect()
    gc.freeze()
    server = stopper.server = _Server(config, on_started)
    try:
        await server.serve(sockets=[listener])
    finally:
        stopper.server = None
    if not server.started:
        raise ServiceStartError("the application did not start; its log says why")


def _listener(settings: Settings) -> socket.socket:
    """Takes the port before anything else is started; nobody can connect until uvicorn listens."""
    try:
        address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(address[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[4])
    except OSError as error:
        raise ServiceStartError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Settings]:
    """Adds a database that is there: the operator's, or the embedded one, migrated and watched."""
    if settings.database_url is not None:
        await _check(settings)
        yield settings
        return
    postgres = EmbeddedPostgres(settings.data_dir, programs=settings.postgres_bin)
    try:
        urls = await postgres.start()
        await migrate(urls.owner)
        watching = asyncio.create_task(postgres.watch())
        try:
            yield msgspec.structs.replace(settings, database_url=urls.service)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
    finally:
        await postgres.stop()


async def _check(settings: Settings) -> None:
    """Refuses an operator's database that is not migrated; one that is quite empty is migrated at once."""
    url = settings.database_url
    assert url is not None
    try:
        try:
            await check_migrated(url)
        except EmptyDatabaseError:
            await migrate(settings.owner_database_url or url)
            await check_migrated(url)
    except (OSError, asyncpg.PostgresError) as error:
        raise ServiceStartError(f"the database cannot be used: {error}") from error
    except NotMigratedError as error:
        raise ServiceStartError(str(error)) from error


def _with_tokens(settings: Settings) -> tuple[Settings, Path | None]:
    """Adds the development tokens to a database of our own; with another, tokens must be configured."""
    if settings.database_url is not None:
        if not len(settings.tokens):
            raise SettingsError("LEDGER_TOKEN_HASHES: no token is configured (see `gateway-ledger tokens new`)")
        return settings, None
    try:
        path, table = development_tokens(prepare_data_dir(settings.data_dir))
    except (OSError, ValueError) as error:
        raise ServiceStartError(f"cannot use the development tokens: {error}") from error
    return msgspec.structs.replace(settings, tokens=settings.tokens | table), path
