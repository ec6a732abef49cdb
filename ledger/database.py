"""How the database is reached, and how it is brought to the newest version of the tables."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, QueuePool

from ledger.pooler import STARTUP, transaction_connection, without_pooler

SERVICE_ROLE: Final = "ledger_service"
"""The database role that the service works as: it may add to the journal, and never change it (contract A1)."""

STATEMENT_SECONDS_MAX: Final = 30
CONNECT_SECONDS_MAX: Final = 5

REPLAN_USES: Final = 4_096
"""After how many batches, at the latest, statements are planned anew."""

_SESSION: Final = {
    "application_name": "gateway-ledger",
    "timezone": "UTC",
    "jit": "off",  # Forbidden scans look dear to planners before 18, and compiling them costs more than running them.
    "lock_timeout": "10s",
    "statement_timeout": f"{STATEMENT_SECONDS_MAX}s",
    "idle_in_transaction_session_timeout": "60s",
}

_BATCHES: Final = {
    # A batch reaches its few rows by their keys, whatever the planner believes of tables that have just grown.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_material": "off",
    "enable_memoize": "off",
    "plan_cache_mode": "force_generic_plan",  # Planning a statement takes longer than running it.
}


_READS: Final = {
    "default_transaction_read_only": "on",
    "enable_seqscan": "off",  # Every read reaches its rows by the account's number.
}

AWAY: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,  # a connection that was cut in the middle of a statement
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.DatabaseDroppedError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.ReadOnlySQLTransactionError,
    OSError,
    TimeoutError,
)
"""What is raised where the database is away, shutting down, full or closed to us: trying again later may help.

A statement that takes too long is not among them: that is the statement's fault, and it must not take its neighbours
with it.
"""

_CONNECTION_LOST: Final = ("closed", "closing", "released", "in progress")
"""What asyncpg says, among other things, in an `InterfaceError` about a connection that was lost."""

AGAIN: Final = (asyncpg.TransactionRollbackError, asyncpg.LockNotAvailableError)
"""What is raised where a transaction stood in the way of others: trying again at once may help."""


def is_away(error: BaseException) -> bool:
    """Tells a database that is away from a defect of ours."""
    if isinstance(error, DBAPIError):
        cause = _driver_error(error)
        return error.connection_invalidated or (cause is not None and is_away(cause))
    if isinstance(error, asyncpg.InterfaceError):
        return any(sign in str(error) for sign in _CONNECTION_LOST)
    return isinstance(error, (*AWAY, NoConnectionFree))


def knows_other_types(error: BaseException) -> bool:
    """Tells what is raised on a connection that was there before the types of our rows were made anew.

    They are when a backup is restored in place. A value that cannot be encoded is told from it by another connection.
    """
    known = (asyncpg.InternalServerError, asyncpg.UndefinedObjectError, asyncpg.DatatypeMismatchError)
    return isinstance(error, known) or type(error) is asyncpg.DataError


def may_be_read_later(error: BaseException) -> bool:
    """Tells a read that had to wait too long, for a lock or for its rows, or that stood in a replica's way."""
    cause = _driver_error(error) if isinstance(error, DBAPIError) else error
    return isinstance(cause, (*AGAIN, asyncpg.QueryCanceledError))


def _driver_error(error: DBAPIError) -> BaseException | None:
    """Returns what asyncpg raised, which SQLAlchemy wraps twice."""
    return error.orig and error.orig.__cause__


class MigrationError(Exception):
    """The database could not be brought to the newest version; the message says why."""


def sqlalchemy_url(url: str) -> URL:
    """Returns a `postgres://` or `postgresql://` URL as SQLAlchemy takes it, with asyncpg for its driver."""
    plain, _ = without_pooler(url)
    return make_url(plain.replace("postgres://", "postgresql://", 1)).set(drivername="postgresql+asyncpg")


async def migrate(url: str) -> None:
    """Runs the migrations that the database has not had yet.

    Several processes may do this at once: the first does it, the others wait. Within one process, alembic can
    do one at a time.

    Args:
        url: the database, as the role that owns the tables.

    Raises:
        MigrationError: the database is away, a pooler is in between, or a migration failed. Each migration is a
            transaction of its own: those before it stay.
    """
    if without_pooler(url)[1]:
        raise MigrationError("a migration needs a session of its own: give the URL of the database, not of its pooler")
    engine = create_async_engine(sqlalchemy_url(url), poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade)
    except (OSError, SQLAlchemyError) as error:
        raise MigrationError(f"the database could not be migrated: {error}") from error
    finally:
        await engine.dispose()


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    spec = find_spec("migrations")
    assert spec is not None
    assert spec.origin is not None
    config = Config()
    config.set_main_option("script_location", str(Path(spec.origin).parent).replace("%", "%%"))
    return config


class NotMigratedError(Exception):
    """The database is not at the version that this program needs, or its user may not be the service's role."""


class EmptyDatabaseError(NotMigratedError):
    """The database has no ledger at all."""


async def check_migrated(url: str) -> None:
    """Raises `NotMigratedError` unless the database has the ledger at this program's version or a later one.

    Raises OSError or asyncpg.PostgresError where it is away.
    """
    connection = await connect(url)
    try:
        if await connection.fetchval("select to_regclass('ledger.accounts')") is None:
            raise EmptyDatabaseError("the database has no ledger yet: run `gateway-ledger migrate`")
        revision = await connection.fetchval("select version_num from alembic_version")
        script = ScriptDirectory.from_config(_config())
        known = {known.revision for known in script.walk_revisions()}
        if revision in known and revision != script.get_current_head():  # An unknown one is newer than this program.
            raise NotMigratedError(f"the database is at version {revision}: run `gateway-ledger migrate`")
        if not await connection.fetchval("select pg_has_role($1, 'member')", SERVICE_ROLE):
            raise NotMigratedError(f"the database user is no member of {SERVICE_ROLE}: grant it")
    finally:
        await connection.close()


async def connect(url: str) -> asyncpg.Connection:
    """Returns one connection, as the user of the URL, with the server's own settings.

    Raises OSError or asyncpg.PostgresError where the database is away.
    """
    address, pooled = _address(url)
    return await asyncpg.connect(address, timeout=CONNECT_SECONDS_MAX, **_kind(pooled, {}, asyncpg.Connection))


def batch_pool(url: str, size: int) -> asyncpg.Pool:
    """Returns the pool that batches are written through; it connects when a connection is first needed."""
    return _pool(url, size, {**_SESSION, **_BATCHES}, connection_class=BatchConnection)


def operator_pool(url: str, size: int, *, idle_seconds_max: float = 0) -> asyncpg.Pool:
    """Returns a pool for what is no batch and no read: what operators ask for, sweeps, deliveries.

    A connection that nobody used for `idle_seconds_max` is closed, so that others can have it; 0 keeps it for good.
    """
    return _pool(url, size, _SESSION, idle_seconds_max=idle_seconds_max)


def health_pool(url: str, seconds_max: float) -> asyncpg.Pool:
    """Returns the pool that asks whether the database is there, and waits no longer than this for an answer."""
    return _pool(url, 1, _SESSION, seconds_max)


class BatchConnection(asyncpg.Connection):
    """A connection that has nothing to reset after a use, and keeps its plans for as long as they suit the tables.

    A plan that was made for an empty table reads all of a full one. So plans are thrown away whenever the number of
    uses has doubled, when no table can have grown to much more than twice its size, and regularly after that.
    """

    uses = 0

    async def reset(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncpg's signature
        """Leave nothing behind; a connection that is still in a transaction is closed."""
        if self.is_in_transaction():
            self.terminate()
            return
        self.uses += 1
        if self.uses & (self.uses - 1) == 0 or self.uses % REPLAN_USES == 0:
            await self.execute("discard plans", timeout=timeout)


def _pool(
    url: str,
    size: int,
    session: dict[str, str],
    seconds_max: float = STATEMENT_SECONDS_MAX + 5,
    connection_class: type[asyncpg.Connection] = asyncpg.Connection,
    idle_seconds_max: float = 0,
) -> asyncpg.Pool:
    address, pooled = _address(url)
    return asyncpg.create_pool(
        address,
        min_size=0,
        max_size=size,
        max_inactive_connection_lifetime=idle_seconds_max,
        timeout=min(CONNECT_SECONDS_MAX, seconds_max),
        command_timeout=seconds_max,
        **_kind(pooled, {**session, "role": SERVICE_ROLE}, connection_class),
    )


def _kind(pooled: bool, settings: dict[str, str], connection_class: type[asyncpg.Connection]) -> dict[str, Any]:
    """Returns what makes connections have some settings: a session's, or through a pooler each transaction's."""
    if not pooled:
        return {"connection_class": connection_class, "server_settings": settings}
    return {
        "connection_class": transaction_connection(settings),
        "server_settings": {name: value for name, value in settings.items() if name in STARTUP},
        "statement_cache_size": 0,  # Every statement without a name.
    }


class PoolUse(NamedTuple):
    """How many connections of a pool are used and idle, and how many it may have."""

    used: int
    idle: int
    limit: int


def use_of(pool: asyncpg.Pool) -> PoolUse:
    """Returns how a pool is used at this moment."""
    idle = pool.get_idle_size()
    return PoolUse(pool.get_size() - idle, idle, pool.get_max_size())


def use_of_engine(engine: AsyncEngine) -> PoolUse:
    """Returns how the pool of an engine is used at this moment."""
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    return PoolUse(pool.checkedout(), pool.checkedin(), pool.size())


def read_engine(url: str, size: int, role: str | None = SERVICE_ROLE) -> AsyncEngine:
    """Returns the engine for reads: every connection is read-only, so it can be pointed at a replica.

    Args:
        url: the database.
        size: how many connections it may have.
        role: the role that connections take on; None stays with the user of the URL.
    """
    _, pooled = without_pooler(url)
    settings = {**_SESSION, **_READS, **({} if role is None else {"role": role})}
    unnamed = {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str}  # a function that returns ""
    return create_async_engine(
        sqlalchemy_url(url),
        pool_size=size,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=CONNECT_SECONDS_MAX,
        isolation_level="REPEATABLE READ",
        hide_parameters=True,  # Errors are logged; what was asked for is nobody's business.
        json_deserializer=str,  # JSON stays text: whoever reads it decodes what it needs
        connect_args={
            "timeout": CONNECT_SECONDS_MAX,
            "command_timeout": STATEMENT_SECONDS_MAX + 5,  # A server that went silent says nothing, not even that.
            **_kind(pooled, settings, asyncpg.Connection),
            **(unnamed if pooled else {}),
        },
    )


def _address(url: str) -> tuple[str, bool]:
    """Returns a URL as asyncpg takes it, and whether a pooler in transaction mode is there."""
    plain, pooled = without_pooler(url)
    return plain.replace("postgresql+asyncpg://", "postgresql://", 1), pooled
