"""The rules, by Prometheus' own tools: they are valid, each alert fires when it should and keeps quiet when not."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.dashboards import GRAFANA, RULES, alerts
from tests.support.prometheus import program

CASES = sorted((GRAFANA / "rules" / "tests").glob("*.yaml"))


def _promtool(*arguments: str | Path) -> None:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    _promtool("check", "rules", *RULES)


def test_the_configuration_is_valid() -> None:
    _promtool("check", "config", GRAFANA / "prometheus.yaml")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_alerts_do_what_their_cases_say(path: Path) -> None:
    _promtool("test", "rules", path)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    expected: dict[str, set[bool]] = defaultdict(set)
    for path in CASES:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for check in case["alert_rule_test"]:
                expected[check["alertname"]].add(bool(check["exp_alerts"]))
    assert expected == {name: {True, False} for name in alerts()}


@pytest.mark.parametrize("alert", alerts().values(), ids=alerts())
def test_every_alert_leads_to_its_runbook(alert: dict[str, Any]) -> None:
    readme = (GRAFANA / "README.md").read_text()
    sections = dict(re.findall(r"^### (Ledger\w+)\n(.*?)(?=^#|\Z)", readme, re.MULTILINE | re.DOTALL))
    assert alert["annotations"]["runbook_url"] == f"grafana/README.md#{alert['alert'].lower()}"
    assert alert["labels"]["severity"] in ("page", "ticket")
    section = sections[alert["alert"]]
    assert section.count("\n1. ") == section.count("\n2. ") == section.count("\n3. ") == 1, "first three things to do"
    assert f"({alert['labels']['severity']})" in section


def test_no_runbook_is_of_an_alert_that_is_gone() -> None:
    readme = (GRAFANA / "README.md").read_text()
    assert sorted(re.findall(r"^### (Ledger\w+)$", readme, re.MULTILINE)) == sorted(alerts())
