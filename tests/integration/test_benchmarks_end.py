"""A benchmark that is told to end leaves nothing running: not the service, nor PostgreSQL, nor what sends requests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.benchmarks.worker import ROOT

START_SECONDS_MAX = 60
END_SECONDS_MAX = 30
SENDERS = {"engine": "tests.benchmarks.engine", "http": "tests.benchmarks.load"}
"""The process that produces load, for each row."""


def started_in(folder: Path) -> list[str]:
    """Return the command lines of the processes that work in a folder, or were started to send to one that does."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder) or str(folder) in " ".join(process.cmdline()):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("row", SENDERS)
def test_a_benchmark_ends_with_all_that_it_started(tmp_path: Path, row: str, number: signal.Signals) -> None:
    tmp_path.chmod(0o711)
    options = ["--only", row, "--rounds", "1", "--seconds", "300", "--output", str(tmp_path / "bench.json")]
    bench = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.bench", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # As a shell does with `&`.
    )
    deadline = time.monotonic() + START_SECONDS_MAX
    while not any(SENDERS[row] in line for line in started_in(tmp_path)):
        assert bench.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    assert any("postgres" in line for line in started_in(tmp_path))
    bench.send_signal(number)
    assert bench.wait(END_SECONDS_MAX) != 0
    assert started_in(tmp_path) == []
    assert not (tmp_path / "bench.json").exists()
