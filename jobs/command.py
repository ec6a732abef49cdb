"""`gateway-ledger sweep`: one sweep in a process of its own, with its own engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from jobs.runner import SweepFailed
from jobs.sweeps import SWEEPS
from ledger.api.services import Services, SweepRun, SweepsBusy
from ledger.database import NotMigratedError, check_migrated, is_away, operator_pool
from ledger.engine import Unavailable
from ledger.queries import DatabaseAway
from ledger.settings import Settings

FAILURES: Final = (SweepsBusy, SweepFailed, NotMigratedError, DatabaseAway, Unavailable)
"""What a run can fail with; the message says why."""


class SweepNotDone(Exception):
    """The sweep did not come to its end; the message says why."""


class SweepUnknown(Exception):
    """There is no sweep of this name; the message says which there are."""


async def run(
    settings: Settings, name: str, services: Callable[[Settings], AbstractAsyncContextManager[Services]]
) -> None:
    """Run a sweep on the database of the settings, show its progress, and print what it did.

    The clock is the one that the database's services use, simulated or not.

    Args:
        settings: what the operator said, with a database.
        name: the sweep.
        services: connects to the database and runs an engine on it.

    Raises:
        SweepUnknown: there is no such sweep.
        SweepNotDone: it runs elsewhere and does not end, it failed, or the database is away or has no ledger.
    """
    if name not in SWEEPS:
        raise SweepUnknown(f"there is no sweep {name}; there are {', '.join(SWEEPS)}")
    try:
        done = await _run(settings, name, services)
    except FAILURES as error:
        raise SweepNotDone(str(error)) from error
    except Exception as error:
        if not is_away(error):
            raise
        raise SweepNotDone(f"the database cannot be used: {str(error) or type(error).__name__}") from error
    counts = ", ".join(f"{count:,} {item.replace('_', ' ')}" for item, count in done.counts.items())
    seconds = (done.finished_at - done.started_at).total_seconds()
    Console().print(f"{name}: {counts} ({seconds:.1f} s)", highlight=False, soft_wrap=True)


async def _run(
    settings: Settings, name: str, services: Callable[[Settings], AbstractAsyncContextManager[Services]]
) -> SweepRun:
    assert settings.database_url is not None
    await check_migrated(settings.database_url)
    own = msgspec.structs.replace(
        settings, no_sweeps=True, webhooks=None, simulated_clock=await _clock_is_simulated(settings.database_url)
    )
    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:,.0f}"), TimeElapsedColumn())
    async with services(own) as running:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(name, total=None)
            done = await running.sweeps.run(name, lambda count: progress.advance(task, count))
    assert done is not None
    return done


async def _clock_is_simulated(url: str) -> bool:
    async with operator_pool(url, 1) as pool:
        simulated = await pool.fetchval("select exists (select from ledger.clock)")
    return bool(simulated)
