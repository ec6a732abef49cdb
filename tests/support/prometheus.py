"""A real Prometheus of one's own: what the rules and dashboards ask is asked of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.needed import lacking

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
_READY = re.compile(r'Listening on"? address=(\S+).*Server is ready to receive web requests', re.DOTALL)


def program(name: str) -> str:
    """Find `prometheus` or `promtool`. Where LEDGER_TESTS_NEED_SERVERS says so, there has to be one."""
    found = shutil.which(name)
    if found is None:
        lacking(f"no {name} on PATH: apt-get install --no-install-recommends prometheus")
    return found


class Prometheus:
    """A Prometheus that answers at `address`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **given: str) -> Any:
        """Return the data of an answer of the HTTP interface; fail where it is an error."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(given)}")
            answer = connection.getresponse()
            text = answer.read().decode()
        assert answer.status == 200, (given, text)
        return json.loads(text)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return what an expression is now: its series, each with labels and one value."""
        result: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return result


@contextlib.contextmanager
def running_prometheus(target: str, rules: list[Path]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes a service every second, and evaluates rules as often."""
    executable = program("prometheus")
    with tempfile.TemporaryDirectory(prefix="ledger-prometheus-") as name:
        folder = Path(name)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in _quick(rules, folder)],
            "scrape_configs": [{"job_name": "gateway-ledger", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        command = [
            executable,
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield Prometheus(_address(process, folder / "log"))
        finally:
            process.terminate()
            process.wait(STOP_SECONDS_MAX)


def _quick(rules: list[Path], folder: Path) -> Iterator[Path]:
    """Copy rules, to be evaluated as often as the rest."""
    for path in rules:
        text = re.sub(r"^( +interval:).*", r"\1 1s", path.read_text(), flags=re.MULTILINE)
        (folder / path.name).write_text(text)
        yield folder / path.name


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if found := _READY.search(log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start:\n{log.read_text()}")
