"""Runs every sweep by the clock, inside `serve`.

When a sweep runs next follows from when it ran last, on whichever replica, so a restart neither repeats it nor puts it
off; what was missed while nothing ran is made up for by one run. Two runs of a sweep never overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from jobs.runner import LastRun, Runner, no_progress
from jobs.sweep import Progress, Sweep
from jobs.sweeps import SWEEPS
from ledger.api.services import SweepRun, SweepView

STAGGER: Final = timedelta(seconds=1)
"""What is overdue at the start runs one after the other, not all at once."""


class Sweeps:
    """The sweeps of a service: run when asked and, once started, by the clock."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._running: set[asyncio.Task[object]] = set()

    async def start(self) -> None:
        """Run sweeps by the clock from now on."""
        last_runs = await self._runner.last_runs()
        now = datetime.now(UTC)
        for position, sweep in enumerate(SWEEPS.values()):
            last = last_runs.get(sweep.name)
            self._scheduler.add_job(
                self._run,
                IntervalTrigger(seconds=int(sweep.every.total_seconds()), timezone=UTC),
                [sweep],
                id=sweep.name,
                next_run_time=_first_run(sweep, last, now) + position * STAGGER,
                max_instances=1,
                coalesce=True,
                misfire_grace_time=None,  # However late: one run makes up for all that were missed.
            )
        self._scheduler.start()

    async def stop(self) -> None:
        """Run nothing more by the clock, and return once what was running is cut off: it can be, anywhere."""
        if self._scheduler.running:
            running = list(self._running)
            self._scheduler.shutdown(wait=False)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, sweep: Sweep) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._runner.run_scheduled(sweep)
        finally:
            self._running.discard(task)

    async def run(self, name: str, progress: Progress | None = None) -> SweepRun | None:
        """Run a sweep now, and return what it did; None where there is none of that name.

        Raise `SweepsBusy` where another run of it does not come to its end in time.
        """
        sweep = SWEEPS.get(name)
        return None if sweep is None else await self._runner.run(sweep, progress or no_progress)

    async def show(self) -> Sequence[SweepView]:
        """Return every sweep with its last run, on whichever replica, and its next one on this."""
        last_runs = await self._runner.last_runs()
        return [self._view(sweep, last_runs.get(sweep.name)) for sweep in SWEEPS.values()]

    def _view(self, sweep: Sweep, last: LastRun | None) -> SweepView:
        job = self._scheduler.get_job(sweep.name) if self._scheduler.running else None
        return SweepView(
            name=sweep.name,
            every_seconds=int(sweep.every.total_seconds()),
            started_at=last.started_at if last else None,
            finished_at=last.finished_at if last else None,
            counts=last.counts if last else None,
            error=last.error if last else None,
            next_run_at=job and job.next_run_time and job.next_run_time.astimezone(UTC),
        )


def _first_run(sweep: Sweep, last: LastRun | None, now: datetime) -> datetime:
    """Return when a sweep runs first: as long after its last run as it always is, or now where that has passed."""
    if last is None or last.finished_at is None:
        return now
    return min(max(now, last.started_at + sweep.every), now + sweep.every)
