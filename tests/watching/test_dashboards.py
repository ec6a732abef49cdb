"""The dashboards as files: what Grafana would refuse or show badly, and what nobody could use at night."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import yaml

from grafana.boards.panels import POSTGRES_UID, PROMETHEUS_UID
from grafana.build import dashboards
from ledger.metrics import DEFINITIONS
from tests.support.dashboards import DASHBOARDS, GRAFANA, RULES, asked, expressions, grouped, panels, rules, selected

EVERY_BOARD = pytest.mark.parametrize("uid", DASHBOARDS)

UNUSED = {
    "process_virtual_memory_bytes": "says nothing on Linux that resident memory does not say better",
    "process_open_fds": "bounded by the connections that are shown",
    "process_max_fds": "the same",
    "python_info": "the version that matters is the service's own",
}
"""Metrics that no dashboard and no rule asks for, and why."""


def test_the_files_are_what_the_program_writes() -> None:
    written = dict(dashboards())
    assert sorted(written) == sorted((GRAFANA / "dashboards").glob("*.json"))
    for path, text in written.items():
        assert path.read_text() == text, "run python -m grafana.build"


@EVERY_BOARD
def test_a_dashboard_is_named_by_its_file(uid: str) -> None:
    board = DASHBOARDS[uid]
    assert board["uid"] == uid
    assert board["timezone"] == "utc"
    assert board["schemaVersion"] > 30
    assert not board["editable"]


@EVERY_BOARD
def test_panels_have_numbers_of_their_own(uid: str) -> None:
    numbers = [panel["id"] for panel in DASHBOARDS[uid]["panels"]]
    assert len(numbers) == len(set(numbers)) > 10
    titles = [panel["title"] for panel in panels(DASHBOARDS[uid])]
    assert len(titles) == len(set(titles))


@EVERY_BOARD
def test_panels_lie_beside_each_other_and_none_over_another(uid: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARDS[uid]["panels"]:
        place = panel["gridPos"]
        assert place["w"] > 0
        assert place["x"] + place["w"] <= 24
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


@EVERY_BOARD
def test_every_panel_says_what_it_shows_and_what_to_do(uid: str) -> None:
    for panel in panels(DASHBOARDS[uid]):
        text = panel["description"]
        assert len(text) > 80, panel["title"]
        assert text.endswith((".", ")")), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["showLegend"]
            assert all(target.get("legendFormat", "") != "__auto" for target in panel["targets"]), panel["title"]


@EVERY_BOARD
def test_what_a_description_points_at_is_there(uid: str) -> None:
    titles = {panel["title"] for board in DASHBOARDS.values() for panel in board["panels"]}
    names = {board["title"].rpartition(" ")[2] for board in DASHBOARDS.values()}
    shortened = {title.split(",")[0] for title in titles} | {title.split(" of ")[0] for title in titles}
    for panel in panels(DASHBOARDS[uid]):
        for name in re.findall(r"(?<![*\w])\*([^*]+)\*", panel["description"]):
            assert name in titles | names | shortened or any(t.startswith(name) for t in titles), (panel["title"], name)


def _sources() -> dict[str, str]:
    provisioned = yaml.safe_load((GRAFANA / "provisioning/datasources/ledger.yaml").read_text())
    return {source["uid"]: source["type"] for source in provisioned["datasources"]}


@EVERY_BOARD
def test_data_sources_are_variables_that_begin_with_what_is_provisioned(uid: str) -> None:
    variables = {variable["name"]: variable for variable in DASHBOARDS[uid]["templating"]["list"]}
    for panel in panels(DASHBOARDS[uid]):
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            variable = variables[source["uid"].strip("${}")]
            assert variable["type"] == "datasource"
            assert variable["query"] == source["type"] == _sources()[variable["current"]["value"]]
    assert _sources() == {PROMETHEUS_UID: "prometheus", POSTGRES_UID: "grafana-postgresql-datasource"}


@EVERY_BOARD
def test_every_variable_is_used_and_every_one_used_is_there(uid: str) -> None:
    board = DASHBOARDS[uid]
    names = {variable["name"] for variable in board["templating"]["list"]}
    used: set[str] = set()
    for text in _texts(board["panels"]):
        used |= set(re.findall(r"\$\{?([a-z]+)\b", re.sub(r"\$\{?__\w+(\.\w+)?\}?", "", text)))
    assert used == names


def _texts(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [text for child in children for text in _texts(child)]


def test_a_dashboard_that_another_links_to_is_there() -> None:
    links = [text for text in _texts(list(DASHBOARDS.values())) if text.startswith("/d/")]
    assert links
    for link in links:
        uid, _, variable = link.removeprefix("/d/").partition("?var-")
        assert variable.partition("=")[0] in {v["name"] for v in DASHBOARDS[uid]["templating"]["list"]}


# -- metrics -------------------------------------------------------------------------------------------------------

LABELS = {definition.name: set(definition.labels) for definition in DEFINITIONS}
RECORDED: dict[str, set[str]] = {rule["record"]: set() for rule in rules() if "record" in rule}
OTHERS = {name: set[str]() for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", *UNUSED)} | {
    "process_start_time_seconds": set(),
    "up": {"job"},
    "ALERTS": {"alertname", "alertstate"},
}
PARTS = {
    f"{definition.name}_{part}": set(definition.labels) | ({"le"} if part == "bucket" else set())
    for definition in DEFINITIONS
    if definition.type == "histogram"
    for part in ("bucket", "sum", "count")
}
KNOWN = LABELS | PARTS | RECORDED | OTHERS


@pytest.mark.parametrize(("name", "expr"), expressions().items(), ids=expressions())
def test_every_metric_that_is_asked_for_is_defined(name: str, expr: str) -> None:
    metrics = selected(expr)
    assert metrics, name
    for metric, labels in metrics:
        assert metric in KNOWN, f"{name} asks for {metric}, which is not in ledger/metrics.py"
        assert labels <= KNOWN[metric] | {"instance"}, name
    everything = set[str]().union(*(KNOWN[metric] for metric, _ in metrics))
    assert grouped(expr) <= everything | {"instance"}, name


def test_every_metric_is_asked_for_or_said_not_to_be() -> None:
    used = {metric for expr in expressions().values() for metric, _ in selected(expr)}
    asked_for = {re.sub("_(bucket|sum|count)$", "", name) if name in PARTS else name for name in used}
    assert set(LABELS) - asked_for == set()
    assert not asked_for & set(UNUSED)


def test_every_metric_is_on_a_dashboard() -> None:
    """A rule alone tells that something is wrong, but neither how much nor since when."""
    asked_for = [expr for name, expr in expressions().items() if name.startswith("ledger-")]
    shown = {metric for expr in asked_for for metric, _ in selected(expr)}
    shown |= {re.sub("_(bucket|sum|count)$", "", name) for name in shown & set(PARTS)}
    assert set(LABELS) - shown == set()


def test_a_rule_is_recorded_to_be_used() -> None:
    used = {metric for expr in expressions().values() for metric, _ in selected(expr)}
    assert set(RECORDED) <= used


def test_a_metric_that_is_renamed_is_noticed() -> None:
    renamed = KNOWN.keys() - {"ledger_queue_commands"}
    missing = [name for name, expr in expressions().items() if not {m for m, _ in selected(expr)} <= renamed]
    assert {"LedgerQueueSaturated", "ledger-operations: Queue depth A"} <= set(missing)


def test_metrics_and_labels_are_read_out_of_an_expression() -> None:
    expr = 'sum by (le, route) (rate(ledger_x_bucket{le="0.5", route=~"/a{id}=b"}[5m])) / ledger:y_z:rate1h'
    assert selected(expr) == [("ledger_x_bucket", {"le", "route"}), ("ledger:y_z:rate1h", set())]
    assert grouped(expr) == {"le", "route"}


def test_every_panel_asks_something() -> None:
    assert len(asked("expr")) > 60
    assert len(asked("rawSql")) > 40
    assert len(RULES) == 2
