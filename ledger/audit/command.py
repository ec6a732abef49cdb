"""`gateway-ledger audit`: the audit on the terminal, with its progress and a table of what it found."""

from __future__ import annotations

from typing import Final

import asyncpg
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ledger.audit.auditing import AccountUnknownError, audit
from ledger.audit.findings import AuditReport, Discrepancy, Figure

CLEAN: Final = 0
"""Exit code: everything was checked and is as it should be."""

WRONG: Final = 1
"""Exit code: there are discrepancies."""

UNKNOWN: Final = 2
"""Exit code: there is no such account; nothing was checked."""

AWAY: Final = 3
"""Exit code: the database cannot be reached or read, or went away meanwhile."""

CONNECT_SECONDS_MAX: Final = 10
HASH_CHARACTERS: Final = 64
COUNT: Final = """
select count(*) from ledger.postings
where $1::text is null or account = (select account from ledger.accounts where account_id = $1)
"""


class _UrlError(Exception):
    """The URL names no database that could be reached."""


async def run(url: str, account_id: str | None) -> int:
    """Audit the database at `url`, or one account of it, print what was found, and return the exit code.

    `url` may be that of any role that can read the tables, and of a replica. The table goes to standard
    output, progress and failures to standard error.
    """
    errors = Console(stderr=True)
    try:
        report = await _audit(url, account_id, errors)
    except AccountUnknownError as error:
        return _failed(errors, str(error), UNKNOWN)
    except (OSError, _UrlError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return _failed(errors, f"the database cannot be read: {str(error) or type(error).__name__}", AWAY)
    _show(report, Console())
    return CLEAN if report.ok else WRONG


async def _audit(url: str, account_id: str | None, console: Console) -> AuditReport:
    connection = await _connect(url)
    try:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("postings"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("Auditing", total=await connection.fetchval(COUNT, account_id))
            return await audit(connection, account_id, progress=lambda count: progress.advance(task, count))
    finally:
        connection.terminate()


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(url.replace("+asyncpg://", "://", 1), timeout=CONNECT_SECONDS_MAX)
    except ValueError as error:
        raise _UrlError(str(error)) from error


def _show(report: AuditReport, console: Console) -> None:
    if report.discrepancies:
        console.print(_table(report.discrepancies))
    if report.unlisted:
        console.print(f"… and {report.unlisted:,} more.")
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in report.checked.items())
    console.print(f"Checked {counts}.", highlight=False)
    if report.ok:
        console.print("[bold green]Everything adds up.[/]")
    else:
        console.print(f"[bold red]{len(report.discrepancies) + report.unlisted:,} discrepancies.[/]")


def _table(discrepancies: list[Discrepancy]) -> Table:
    table = Table("rule", "account", "where", "what", "expected", "found", title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    for each in discrepancies:
        cells = (each.rule, each.account_id, _place(each), each.what, each.expected, each.found)
        table.add_row(*(escape(_short(cell)) for cell in cells))
    return table


def _short(cell: Figure) -> str:
    """Writes a figure; of a hash, which nobody reads whole, its beginning."""
    text = "" if cell is None else str(cell)
    return f"{text[:12]}…" if len(text) == HASH_CHARACTERS else text


def _place(discrepancy: Discrepancy) -> str:
    parts = {
        "entry": discrepancy.sequence,
        "job": discrepancy.job_id,
        "grant": discrepancy.grant_id,
        "month": discrepancy.period,
    }
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value is not None)


def _failed(console: Console, reason: str, code: int) -> int:
    console.print(f"[red]error:[/red] {escape(reason)}", highlight=False, soft_wrap=True)
    return code
