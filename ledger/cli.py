"""The command line. Each option can also be given as an environment variable, `LEDGER_` + its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import uvloop
from rich.console import Console

from ledger.embedded import EmbeddedPostgresError
from ledger.failpoints import FailpointError, arm
from ledger.log_lines import ByThread
from ledger.logs import configure_logs
from ledger.settings import Settings, SettingsError, load_settings
from ledger.tokens import Role, hash_of, new_token, variable_of

if TYPE_CHECKING:
    from ledger.serve import Started

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _setting(name: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """An option that is also `LEDGER_<NAME>`; without either, what `Settings` says holds."""
    variable = "LEDGER_" + name.removeprefix("--").replace("-", "_").upper()
    return click.option(name, default=None, envvar=variable, show_envvar=True, **attributes)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="gateway-ledger")
def main() -> None:
    """The double-entry credit ledger behind an API gateway."""


@main.command()
@_setting("--host", help="Address to listen on.  [default: 127.0.0.1]")
@_setting("--port", type=int, help="Port to listen on; 0 takes a free one.  [default: 8000]")
@_setting("--data-dir", type=Path, metavar="DIR", help="Where the embedded PostgreSQL and the tokens are.")
@_setting("--database-url", metavar="URL", help="PostgreSQL, in place of the embedded one; `ps` shows passwords.")
@_setting("--redis-url", metavar="URL", help="Redis that events and live balances are published in.")
@_setting("--webhooks", type=Path, metavar="FILE", help="Endpoints that events are delivered to, in TOML.")
@_setting("--catalog", type=Path, metavar="FILE", help="Price catalog, in place of the packaged one.")
@_setting("--simulated-clock", is_flag=True, help="Time stands still until PUT /v1/clock moves it.")
@_setting("--no-sweeps", is_flag=True, help="Run sweeps only when asked.")
def serve(**options: object) -> None:
    """Run the service, with its own PostgreSQL unless --database-url is given."""
    from ledger import metrics
    from ledger.app import running_app
    from ledger.database import MigrationError
    from ledger.serve import ServiceStartError
    from ledger.serve import serve as run
    from pricing.catalog import InvalidCatalog

    settings = _settings(options)
    lines = ByThread(sys.stderr.buffer, metrics.LOG_LINES_DROPPED.inc)
    configure_logs(settings.log_format, settings.log_level, lines=lines)
    try:
        arm(os.environ)
        uvloop.run(run(settings, running_app, _announce))
    except FailpointError as error:
        raise click.UsageError(str(error)) from error
    except (EmbeddedPostgresError, InvalidCatalog, MigrationError, ServiceStartError, SettingsError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        lines.flush()


@main.command()
@_setting("--database-url", metavar="URL", help="The database, as the role that owns the tables.")
def migrate(database_url: str | None) -> None:
    """Bring the database to the newest version of the tables.

    LEDGER_OWNER_DATABASE_URL comes before LEDGER_DATABASE_URL, so that both can be set. `serve` migrates its
    embedded PostgreSQL by itself.
    """
    from ledger.database import MigrationError
    from ledger.database import migrate as run

    settings = _settings({"database_url": database_url})
    configure_logs(settings.log_format, settings.log_level)
    url = settings.owner_database_url or settings.database_url
    if url is None:
        raise click.UsageError("give --database-url or LEDGER_OWNER_DATABASE_URL")
    try:
        uvloop.run(run(url))
    except MigrationError as error:
        raise click.ClickException(str(error)) from error
    Console().print("The database is up to date.")


@main.command()
@click.argument("name")
@_setting("--database-url", metavar="URL", help="The database, as a member of the role ledger_service.")
@_setting("--catalog", type=Path, metavar="FILE", help="Price catalog, in place of the packaged one.")
def sweep(name: str, **options: object) -> None:
    """Run one sweep now, and say what it did.

    It works in this process, beside any number of services on the same database; where the sweep runs already, it
    waits for that to end, up to a minute. `GET /v1/sweeps` lists the names.
    """
    from jobs.command import SweepNotDone, SweepUnknown
    from jobs.command import run as run_sweep
    from ledger.app import running_services
    from pricing.catalog import InvalidCatalog

    settings = _settings(options)
    configure_logs(settings.log_format, settings.log_level)
    if settings.database_url is None:
        raise click.UsageError("give --database-url; a service with its own PostgreSQL answers POST /v1/sweeps/NAME")
    try:
        uvloop.run(run_sweep(settings, name, partial(running_services, tends_mirror=False)))
    except SweepUnknown as error:
        raise click.UsageError(str(error)) from error
    except (InvalidCatalog, SettingsError, SweepNotDone) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@_setting("--database-url", metavar="URL", help="The database, or a replica of it, as any role that can read it.")
@_setting("--account", metavar="ID", help="One account; without it, all of them.")
@_setting("--heads", type=Path, metavar="FILE", help="Write the last entry of each account here, if all adds up.")
@_setting("--against", type=Path, metavar="FILE", help="Check that the entries of a file of --heads are still there.")
@click.pass_context
def audit(
    context: click.Context, database_url: str | None, account: str | None, heads: Path | None, against: Path | None
) -> None:
    """Check every invariant of the books, and name what is wrong.

    Heads that were kept elsewhere find what the books alone cannot tell: a journal that was cut off, and everything
    beside it forged to match.

    Exits with 0 when everything adds up, 1 when something does not, 2 when there is no such account or a file cannot
    be used, and 3 when the database cannot be read. LEDGER_READ_DATABASE_URL counts where no other database is named.
    """
    from ledger.audit.command import run

    settings = _settings({"database_url": database_url})
    url = settings.database_url or settings.read_database_url
    if url is None:
        raise click.UsageError("give --database-url; a service with its own PostgreSQL answers POST /v1/audit")
    context.exit(uvloop.run(run(url, account, heads_file=heads, against_file=against)))


@main.command()
@click.argument("what", type=click.Choice(["usage", "records", "entries", "statements"]))
@_setting("--database-url", metavar="URL", help="The database, or a replica of it, as any role that can read it.")
@_setting("--period", metavar="YYYY-MM", help="The calendar month, in UTC.  [required]")
@_setting("--account", multiple=True, metavar="ID", help="An account; may be repeated. Without any, all of them.")
@_setting("--all", is_flag=True, help="All accounts, those that were deleted too.")
@_setting("--format", type=click.Choice(["csv", "parquet"]), help="The file's format.  [default: csv]")
@_setting("--output", type=Path, metavar="FILE", help="The file to write.  [default: WHAT-PERIOD.FORMAT]")
@click.pass_context
def export(context: click.Context, /, what: str, database_url: str | None, **options: Any) -> None:
    """Write usage, usage records, entries or statements of a month to a file.

    `usage` has the columns of FOCUS, the FinOps Open Cost & Usage Specification. All of it is of one moment. The file
    appears, or replaces one that was there, only when it is complete. Exits with 0 then, 1 when it cannot be written,
    2 when there is no such account or the month has not begun and 3 when the database cannot be read.
    LEDGER_READ_DATABASE_URL counts where no other database is named.
    """
    from ledger.export import Export
    from ledger.export.command import run

    if options["account"] and options["all"]:
        raise click.UsageError("give either --account or --all")
    wanted = Export(what=what, period=_month(options["period"]), accounts=options["account"] or ())
    format = options["format"] or "csv"
    output = options["output"] or Path(f"{what}-{wanted.period}.{format}")
    settings = _settings({"database_url": database_url})
    url = settings.database_url or settings.read_database_url
    if url is None:
        raise click.UsageError("give --database-url; a service with its own PostgreSQL answers `Accept: text/csv`")
    context.exit(uvloop.run(run(url, wanted, output, format, simulated_clock=settings.simulated_clock)))


def _month(period: str | None) -> str:
    from ledger.core.periods import InvalidPeriod, period_end

    if period is None:
        raise click.UsageError("give --period")
    try:
        period_end(period)
    except InvalidPeriod as error:
        raise click.UsageError(f"--period: {error}") from error
    return period


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, envvar="LEDGER_URL", show_envvar=True)
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    envvar="LEDGER_SPEED",
    show_envvar=True,
    help="0 = as fast as it can, 1 = the trace's own pace.",
)
@click.pass_context
def replay(context: click.Context, file: Path, url: str, speed: float) -> None:
    """Drive a running service with a request trace, and check what it answers.

    The tokens are taken from LEDGER_ADMIN_TOKEN and LEDGER_GATEWAY_TOKEN.
    """
    from ledger.replay import run

    admin_token, gateway_token = _token(Role.ADMIN), _token(Role.GATEWAY)
    context.exit(run(file, url, speed, admin_token, gateway_token))


@main.group()
def events() -> None:
    """Events: as they come, and where they were delivered to."""


@events.command(name="replay")
@click.argument("event_id", metavar="ID")
@_setting("--endpoint", metavar="NAME", help="One endpoint; without it, all that receive events of this kind.")
@_setting("--database-url", metavar="URL", help="The database, as a member of the role ledger_service.")
def replay_event(event_id: str, endpoint: str | None, database_url: str | None) -> None:
    """Deliver an event once more, under a new id.

    The service that runs on the database sends it, within a second or so. Each replay of an event is another:
    ID:r1, ID:r2 …
    """
    from ledger.events.command import NotDone
    from ledger.events.command import replay_event as run

    try:
        uvloop.run(run(_service_database(database_url), event_id, endpoint))
    except NotDone as error:
        raise click.ClickException(str(error)) from error


@events.command()
@_setting("--endpoint", metavar="NAME", help="One endpoint; without it, all.")
@_setting("--event", metavar="ID", help="One event, with its replays; without it, all.")
@_setting("--limit", type=click.IntRange(1, 10_000), help="How many, the newest first.  [default: 50]")
@_setting("--database-url", metavar="URL", help="The database, as a member of the role ledger_service.")
def deliveries(endpoint: str | None, event: str | None, limit: int | None, database_url: str | None) -> None:
    """Show the record of deliveries: what was sent where, and how it went."""
    from ledger.events.command import NotDone, show_deliveries

    try:
        uvloop.run(show_deliveries(_service_database(database_url), endpoint, event, limit or 50))
    except NotDone as error:
        raise click.ClickException(str(error)) from error


@events.command()
@_setting("--account", metavar="ID", help="One account; without it, all.")
@_setting("--after", metavar="CURSOR", help="Begin behind a next_cursor of GET /v1/events, or of an earlier run.")
@_setting("--from-start", is_flag=True, help="Begin with the first event there is.")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, envvar="LEDGER_URL", show_envvar=True)
def tail(account: str | None, after: str | None, from_start: bool | None, url: str) -> None:
    """Print events as they come, one JSON object a line, as GET /v1/events shows them.

    Begins with what comes from now on, unless told otherwise; waits for a service that is away. Ctrl-C ends it, and it
    says where to go on from. The token is that of LEDGER_READER_TOKEN, LEDGER_GATEWAY_TOKEN or LEDGER_ADMIN_TOKEN.
    """
    from ledger.events.tail import TailStopped
    from ledger.events.tail import tail as run
    from ledger.replay.client import service_url

    if after and from_start:
        raise click.UsageError("give either --after or --from-start")
    roles = [role for role in (Role.READER, Role.GATEWAY, Role.ADMIN) if os.environ.get(variable_of(role))]
    token = _token(roles[0] if roles else Role.READER)
    try:
        uvloop.run(run(str(service_url(url)).rstrip("/"), token, account, after, from_start=bool(from_start)))
    except ValueError as error:
        raise click.UsageError(f"--url: {error}") from error
    except TailStopped as error:
        raise click.ClickException(str(error)) from error


def _service_database(database_url: str | None) -> str:
    settings = _settings({"database_url": database_url})
    if settings.database_url is None:
        raise click.UsageError(
            "give --database-url; that of a service with its own PostgreSQL is"
            " postgresql://ledger_service@/ledger?host=DATA_DIR/postgresql/run"
        )
    return settings.database_url


@main.group()
def tokens() -> None:
    """Access tokens."""


@tokens.command()
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, envvar="LEDGER_ROLE")
def new(role: str) -> None:
    """Make a token, and print it with what LEDGER_TOKEN_HASHES needs of it.

    The token itself is kept nowhere. LEDGER_TOKEN_HASHES lists any number of hashes, separated by commas.
    """
    token = new_token(Role(role))
    click.echo(f"token  {token}")
    click.echo(f"hash   {hash_of(token, Role(role))}")


def _settings(options: dict[str, object]) -> Settings:
    try:
        return load_settings(options, os.environ)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


def _token(role: Role) -> str:
    name = variable_of(role)
    token = os.environ.get(name)
    if not token:
        raise click.UsageError(f"{name} is not set: source the service's tokens.env, or ask its operator for a token")
    return token


def _announce(started: Started) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold green]Gateway Ledger[/] answers at [bold]{started.url}[/]")
    if started.data_dir:
        console.print("  data    ", started.data_dir, sep="", markup=False)
    if started.tokens_file:
        console.print("  tokens  ", started.tokens_file, sep="", markup=False)
