"""Hours of steady traffic on the service as `serve` runs it: does it get slower or bigger with time (`make soak`)?

Sweeps run, and events are delivered to a receiver. After each window a sample is taken; the last quarter of the windows
is compared with the first, once the warm-up is over, in which the first holds come to expire.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg
import msgspec

from ledger.database import migrate
from ledger.tokens import Role
from tests.benchmarks import books, command, steady
from tests.benchmarks.aging import GOALS, Window, figures_of, take_sample
from tests.benchmarks.command import Measured
from tests.benchmarks.memory import MIB
from tests.benchmarks.server import Server
from tests.benchmarks.service import running_service
from tests.benchmarks.steady import SteadyTask
from tests.support.receiver import receiving
from tests.support.service import Service

DATABASE: Final = "ledger"
TRACE: Final = Path(__file__).parents[1] / "data" / "azure_llm_2023_conversation_head.csv"
WINDOWS_MIN: Final = 5
CONNECTIONS_MAX: Final = 32
"""At lower rates there are fewer: each is to be used so often that the service does not close it for idleness."""
ENDPOINT: Final = """
[endpoints.{environment}]
url = "{url}/ok"
environment = "{environment}"
secrets = ["whsec_of-nobody-but-the-soak"]
allow_private = true
"""
_SWEEPS: Final = "select name, finished_at::text, counts::text, error from ledger.sweeps order by name"


async def _measure(server: Server, folder: Path, options: argparse.Namespace) -> Measured:
    urls = await server.create_database(DATABASE)
    await migrate(urls.owner)
    accounts = steady.account_ids(options.accounts)
    await books.open_accounts(urls.service, accounts, books.BOTH_WIDE_OPEN)
    async with receiving() as receiver:
        webhooks = _endpoints(folder, receiver.url)
        async with running_service(folder / "service", urls.service, "--webhooks", str(webhooks)) as service:
            windows = await _soak(server, service, options)
    figures = figures_of(windows[options.warm_up :])
    command.told("audit")
    figures.note("audit.discrepancies", await books.discrepancies(urls.service, accounts), worst=True)
    remarks = await _sweeps(server)
    remarks["deliveries"] = f"{len(receiver.requests)} received"
    remarks["windows"] = f"{len(windows)} in {_windows_file(options)}"
    return Measured(figures, remarks)


def _endpoints(folder: Path, url: str) -> Path:
    file = folder / "endpoints.toml"
    file.write_text("".join(ENDPOINT.format(environment=each, url=url) for each in ("live", "test")))
    return file


async def _soak(server: Server, service: Service, options: argparse.Namespace) -> list[Window]:
    """Send, take a sample after each window, and write both down at once: a run that is broken off was not in vain."""
    assert server.postgres.pid is not None
    url = server.superuser_url(DATABASE)
    windows: list[Window] = []
    file = _windows_file(options)
    file.parent.mkdir(parents=True, exist_ok=True)
    async with contextlib.aclosing(steady.measure(_task(service, options))) as stream:
        with file.open("wb") as lines:
            async for traffic in stream:
                window = Window(traffic, await take_sample(service.process.pid, server.postgres.pid, url))
                lines.write(msgspec.json.encode(window) + b"\n")
                lines.flush()
                windows.append(window)
                command.told(_line(len(windows), window))
    return windows


def _task(service: Service, options: argparse.Namespace) -> SteadyTask:
    parts = urlsplit(service.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return SteadyTask(
        host=parts.hostname,
        port=parts.port,
        token=service.tokens[Role.GATEWAY],
        trace=str(options.trace),
        accounts=options.accounts,
        rate=options.rate,
        window_seconds=options.window * 60,
        windows=_count(options),
        connections=max(1, min(CONNECTIONS_MAX, int(options.rate))),
    )


def _line(number: int, window: Window) -> str:
    traffic, sample = window.traffic, window.sample
    return (
        f"window {number}: {traffic.requests:,} requests, {traffic.refused} refused, {traffic.pairs:,} pairs;"
        f" p50 {traffic.all.p50:.1f}, p99 {traffic.all.p99:.1f} ms; {sample.rss / MIB:.0f} MiB,"
        f" {sample.connections} connections, {sample.descriptors} descriptors; load {sample.load:.1f}"
    )


async def _sweeps(server: Server) -> dict[str, str]:
    """Say how the last run of each sweep ended."""
    connection = await asyncpg.connect(server.superuser_url(DATABASE))
    try:
        runs = await connection.fetch(_SWEEPS)
    finally:
        await connection.close()
    return {f"sweep {name}": f"{at}: {counts}{f', {error}' if error else ''}" for name, at, counts, error in runs}


def _windows_file(options: argparse.Namespace) -> Path:
    return Path(options.output).with_suffix(".windows.jsonl")


def _count(options: argparse.Namespace) -> int:
    return int(options.hours * 60 / options.window)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=60.0, help="jobs a second")
    parser.add_argument("--window", type=float, default=5.0, help="minutes from one sample to the next")
    parser.add_argument("--warm-up", type=int, default=4, help="windows that are not compared")
    parser.add_argument("--accounts", type=int, default=400, help="how many there are beside the busy one")
    parser.add_argument("--trace", type=Path, default=TRACE, help="whose jobs are sent, over and over")
    parser.add_argument("--output", type=Path, default=command.OUTPUT / "soak.json", help="where the JSON goes")
    options = parser.parse_args()
    if _count(options) - options.warm_up < WINDOWS_MIN:
        parser.error(f"there are fewer than {WINDOWS_MIN} windows after the warm-up: nothing to compare")
    options.seconds = options.window * 60 * _count(options)
    options.trace = options.trace.resolve()
    return options


def main() -> None:
    """Parse the options, measure, and print the table."""
    command.run(_options(), _measure, GOALS)


if __name__ == "__main__":
    main()
