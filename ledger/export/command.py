"""`gateway-ledger export`: an export on the terminal, with its progress and what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import asyncpg
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from ledger import schema
from ledger.database import read_engine
from ledger.export.exporting import AccountUnknown, Export, Progress, export
from ledger.export.writers import NotWritten, ParquetMissing, writer_of
from ledger.files import replacing
from ledger.queries import DatabaseAway, NotYet, Reading

DONE: Final = 0
"""Exit code: the file is there, whole."""

FAILED: Final = 1
"""Exit code: the file could not be written; what was there before is there still."""

UNKNOWN: Final = 2
"""Exit code: there is no such account, or the month has not begun."""

AWAY: Final = 3
"""Exit code: the database cannot be reached or read, or went away meanwhile."""

STOPPED: Final = 128 + signal.SIGTERM
"""Exit code: a SIGTERM came; nothing was left behind."""


async def run(url: str, wanted: Export, output: Path, format: str, *, simulated_clock: bool = False) -> int:
    """Export from the database at `url` into a file, say what was written, and return the exit code.

    `url` may be that of any role that can read the tables, and of a replica. Progress and failures go to standard
    error. The file has its name only once it is complete.
    """
    errors = Console(stderr=True)
    try:
        async with _reading(url, simulated_clock) as reading:
            with _ended_by_sigterm(), _bar(errors) as progress, replacing(output) as file:
                rows = await export(reading, wanted, writer_of(format, file, wanted.columns), progress)
    except (AccountUnknown, NotYet) as error:
        return _failed(errors, str(error), UNKNOWN)
    except (DatabaseAway, asyncpg.PostgresError, SQLAlchemyError) as error:
        return _failed(errors, f"the database cannot be read: {_root_of(error)}", AWAY)
    except ParquetMissing as error:
        return _failed(errors, str(error), FAILED)
    except (NotWritten, OSError) as error:
        return _failed(errors, f"{output} cannot be written: {getattr(error, 'strerror', None) or error}", FAILED)
    except asyncio.CancelledError:
        return _failed(errors, "stopped; nothing was written", STOPPED)
    Console(soft_wrap=True, highlight=False).print(f"Wrote {rows:,} rows to {escape(str(output))}")
    return DONE


@contextlib.asynccontextmanager
async def _reading(url: str, simulated_clock: bool) -> AsyncIterator[Reading]:
    engine = read_engine(url, 1, role=None)
    try:
        yield Reading(engine, simulated_clock=simulated_clock or await _is_simulated(Reading(engine)))
    finally:
        await engine.dispose()


async def _is_simulated(reading: Reading) -> bool:
    """Tell whether the database's clock is a simulated one, whoever set it: that is everybody's (T3)."""
    async with reading.snapshot() as snapshot:
        return await snapshot.first(select(schema.clock.c.now)) is not None


@contextlib.contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Exporting", total=None, rows=0)
        yield lambda done, total, rows: bar.update(task, completed=done, total=total, rows=rows)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let a SIGTERM cancel what is done here, so that it is cleared away; Ctrl-C does so by itself."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _root_of(error: BaseException) -> str:
    """Return what was raised first, which says it without the statement that was run."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _failed(console: Console, reason: str, code: int) -> int:
    console.print(f"[red]error:[/red] {escape(reason)}", highlight=False, soft_wrap=True)
    return code
