"""``gateway-ledger replay``: a real request trace as the workload of a running service.

- `trace`: a CSV row -> the plan of a job; pure
- `prices`: what a plan should cost, from the prices that the service publishes; pure
- `bodies`: the requests that a plan is sent as; pure
- `client`: requests that outlive an outage
- `drive`: the workers, and the check of every answer
- `tally`, `report`: what was seen, and its table

A client like any other: it knows the service by its HTTP interface alone.
"""

import asyncio
import math
from pathlib import Path

import uvloop
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ledger.replay.client import ReplayStoppedError, service_url
from ledger.replay.drive import Settings, replay
from ledger.replay.report import report
from ledger.replay.tally import Tally
from ledger.replay.trace import Trace, TraceError, read_trace

__all__ = ["AWAY", "INTERRUPTED", "USAGE", "WRONG", "run"]

WRONG = 1
"""Exit code: the replay ran, and something was refused, lost or wrong, or the audit found something."""

USAGE = 2
"""Exit code: the file or an option is no good; nothing was sent."""

AWAY = 3
"""Exit code: the service cannot be reached or used."""

INTERRUPTED = 130
"""Exit code: stopped from the keyboard, as shells count it."""


def run(file: Path, url: str, speed: float, admin_token: str, gateway_token: str) -> int:
    """Replay `file` against the service at `url`, print what was seen, and return the exit code.

    `speed` 0 is as fast as it can be, 1 the trace's own pace, 2 twice as fast. 0 is returned only when
    nothing was refused by mistake, nothing was lost, every charge and balance is right and the service's
    audit is clean; else `WRONG`, `USAGE`, `AWAY` or `INTERRUPTED`, with the reason on standard error. To
    replay a file again, whole or interrupted, changes nothing that is done already.
    """
    errors = Console(stderr=True)
    try:
        settings = _settings(url, speed, admin_token, gateway_token)
        trace = read_trace(file)
    except (TraceError, ValueError) as error:
        return _failed(errors, str(error), USAGE)
    try:
        tally = _replay_with_progress(trace, settings, errors)
    except ReplayStoppedError as stopped:
        return _failed(errors, str(stopped), AWAY)
    except KeyboardInterrupt:
        return _failed(errors, "interrupted; the same command goes on from here", INTERRUPTED)
    report(Console(), tally)
    if tally.stopped is not None:
        return AWAY
    return 0 if tally.ok else WRONG


def _settings(url: str, speed: float, admin_token: str, gateway_token: str) -> Settings:
    if not (math.isfinite(speed) and speed >= 0):
        raise ValueError("--speed is 0 (as fast as it can), 1 (the trace's own pace), or another positive number")
    for name, token in (("LEDGER_ADMIN_TOKEN", admin_token), ("LEDGER_GATEWAY_TOKEN", gateway_token)):
        if not token or not token.isascii() or not token.isprintable():
            raise ValueError(f"{name} should hold the token; it is empty, or holds what is none")
    return Settings(service_url(url), admin_token, gateway_token, speed)


def _replay_with_progress(trace: Trace, settings: Settings, console: Console) -> Tally:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(escape(trace.stem), total=len(trace.rows))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(replay(trace, settings, lambda: progress.advance(task)))


def _failed(console: Console, reason: str, code: int) -> int:
    console.print(f"[red]error:[/red] {escape(reason)}", highlight=False, soft_wrap=True)
    return code
