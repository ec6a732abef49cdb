"""`gateway-ledger audit`: the audit on the terminal, with its progress and a table of what it found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import asyncpg
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ledger.audit.auditing import AccountUnknownError, NoteHead, audit
from ledger.audit.findings import AuditReport, Discrepancy, Figure
from ledger.audit.heads import Head, HeadsError, heads_of, heads_writer
from ledger.database import connect
from ledger.files import replacing

CLEAN: Final = 0
"""Exit code: everything was checked and is as it should be."""

WRONG: Final = 1
"""Exit code: there are discrepancies."""

UNKNOWN: Final = 2
"""Exit code: there is no such account, or a file of heads cannot be used; nothing was checked."""

AWAY: Final = 3
"""Exit code: the database cannot be reached or read, or went away meanwhile."""

HASH_CHARACTERS: Final = 64
COUNT: Final = """
select count(*) from ledger.postings
where $1::text is null or account = (select account from ledger.accounts where account_id = $1)
"""


class _AwayError(Exception):
    """The database is away, or the URL names none that could be reached."""


class _NotCleanError(Exception):
    """The books do not add up, so that no heads are written."""


async def run(
    url: str, account_id: str | None, *, heads_file: Path | None = None, against_file: Path | None = None
) -> int:
    """Audit the database at `url`, or one account of it, print what was found, and return the exit code.

    `url` may be that of any role that can read the tables, and of a replica. The table goes to standard
    output, progress and failures to standard error.

    Args:
        url: the database.
        account_id: the account to audit; None audits all.
        heads_file: where to write the last entry of each account, once all of them are found clean.
        against_file: such a file, whose entries must still be there.
    """
    errors = Console(stderr=True)
    try:
        with contextlib.ExitStack() as files:
            note_head = None if heads_file is None else heads_writer(files.enter_context(replacing(heads_file)))
            against = () if against_file is None else files.enter_context(heads_of(against_file))
            report = await _audit(url, account_id, errors, note_head, against)
            _show(report, Console())
            _check_clean(report, heads_file)
    except _NotCleanError as error:
        return _failed(errors, str(error), WRONG)
    except (AccountUnknownError, HeadsError) as error:
        return _failed(errors, str(error), UNKNOWN)
    except (_AwayError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return _failed(errors, f"the database cannot be read: {str(error) or type(error).__name__}", AWAY)
    except OSError as error:
        return _failed(errors, f"{heads_file} cannot be written: {error.strerror or error}", UNKNOWN)
    return CLEAN if report.ok else WRONG


def _check_clean(report: AuditReport, heads_file: Path | None) -> None:
    if heads_file is not None and not report.ok:
        raise _NotCleanError(f"{heads_file} was not written: only heads of clean books are kept")


async def _audit(
    url: str, account_id: str | None, console: Console, note_head: NoteHead | None, against: Iterable[Head]
) -> AuditReport:
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
            return await audit(
                connection,
                account_id,
                progress=lambda count: progress.advance(task, count),
                note_head=note_head,
                against=against,
            )
    except OSError as error:
        raise _AwayError(str(error) or type(error).__name__) from error
    finally:
        connection.terminate()


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await connect(url)
    except (OSError, ValueError) as error:
        raise _AwayError(str(error) or type(error).__name__) from error


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
