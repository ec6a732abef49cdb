"""The dashboards and rules as files, taken apart: panels, expressions, the metrics in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

GRAFANA = Path(__file__).parents[2] / "grafana"
RULES = sorted((GRAFANA / "rules").glob("*.yaml"))
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}


class Asked(NamedTuple):
    """A query of a panel: what is asked, and where it stands."""

    dashboard: str
    panel: str
    ref: str
    text: str
    panel_json: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What a test that fails is called by."""
        return f"{self.dashboard}: {self.panel} {self.ref}"


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return every panel that is no row."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel


def asked(field: str) -> list[Asked]:
    """Return every query of every panel: `expr` are those of Prometheus, `rawSql` those of PostgreSQL."""
    return [
        Asked(uid, panel["title"], target["refId"], target[field], panel)
        for uid, dashboard in DASHBOARDS.items()
        for panel in panels(dashboard)
        for target in panel["targets"]
        if field in target
    ]


def rules() -> list[dict[str, Any]]:
    """Return every rule, recording and alerting."""
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Return every alert by its name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def expressions() -> dict[str, str]:
    """Return every expression there is of Prometheus, by where it stands."""
    found = {query.name: query.text for query in asked("expr")}
    found |= {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()}
    for uid, dashboard in DASHBOARDS.items():
        for note in dashboard["annotations"]["list"]:
            found[f"{uid}: {note['name']}"] = note["expr"]
    return found


_METRIC = re.compile(r"\b((?:ledger|process|python)_[a-z0-9_]+|ledger:[a-z0-9_:]+|up|ALERTS)\b(\{[^}]*\})?")
_LABEL = re.compile(r"([a-z_]+) *(?:=~|!~|!=|=)")
_BY = re.compile(r"(?:by|on|without|group_left) *\(([a-z_, ]*)\)")


def selected(expr: str) -> list[tuple[str, set[str]]]:
    """Return the metrics that an expression selects, each with the labels that it is selected by."""
    outside = _BY.sub("", expr)
    bare = re.sub(r'"[^"]*"', '""', outside)
    return [(name, set(_LABEL.findall(labels))) for name, labels in _METRIC.findall(bare)]


def grouped(expr: str) -> set[str]:
    """Return the labels that an expression groups or matches by."""
    return {label.strip() for labels in _BY.findall(expr) for label in labels.split(",") if label.strip()}
