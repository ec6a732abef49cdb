"""What dashboards are made of: a panel of each kind, with a unit and a text for whoever is woken by it.

A thin layer over Grafana's own SDK, which knows what Grafana reads. Every panel takes a title, a description (what it
shows, and what to do when it looks wrong) and its queries; `board` places panels in rows and numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

WIDTH: Final = 24
"""The columns of Grafana's grid."""

TAG: Final = "gateway-ledger"
"""What the dashboards have in common; each links to those with the same tag."""

PROMETHEUS_UID: Final = "ledger-prometheus"
POSTGRES_UID: Final = "ledger-postgres"
"""The data sources as they are provisioned; dashboards take them from a variable, so another can be chosen."""

PROMETHEUS: Final = models.DataSourceRef(type_val="prometheus", uid="${prometheus}")
POSTGRES: Final = models.DataSourceRef(type_val="grafana-postgresql-datasource", uid="${postgres}")

CREDITS: Final = "locale"
"""The unit of credits: a whole number, with its thousands set apart."""

AnyPanel: TypeAlias = timeseries.Panel | stat.Panel | table.Panel
Query: TypeAlias = Builder[Dataquery]
_Panel = TypeVar("_Panel", timeseries.Panel, stat.Panel, table.Panel)


@dataclass(frozen=True)
class Limit:
    """Where a figure turns from good to bad: from `warn` (amber) and `bad` (red) on, or below them if `low`."""

    bad: float
    warn: float | None = None
    low: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a dashboard: a title, and panels from left to right."""

    title: str
    panels: Sequence[AnyPanel]


class SqlQuery(Dataquery):
    """A query in SQL, as the PostgreSQL data source takes it. A time series has the columns time, metric and value."""

    def __init__(self, sql: str, format: str, ref: str) -> None:
        self.sql = sql
        self.format = format
        self.ref = ref

    def to_json(self) -> dict[str, object]:
        """Return what Grafana keeps of it."""
        return {
            "refId": self.ref,
            "datasource": POSTGRES.to_json(),
            "editorMode": "code",
            "format": self.format,
            "rawQuery": True,
            "rawSql": self.sql,
        }


class _Sql(Builder[Dataquery]):
    def __init__(self, query: SqlQuery) -> None:
        self._query = query

    def build(self) -> Dataquery:
        return self._query


def prom(expr: str, legend: str = "", *, instant: bool = False) -> prometheus.Dataquery:
    """Return a query of Prometheus; an instant one is of the end of what is shown."""
    query = prometheus.Dataquery().expr(" ".join(expr.split())).legend_format(legend or "__auto")
    query = query.datasource(PROMETHEUS).format(PromQueryFormat.TIME_SERIES)
    return query.instant() if instant else query.range()


def sql(text: str, *, series: bool = False) -> Query:
    """Return a query of the views; a series has the columns time, metric and value."""
    return _Sql(SqlQuery(_dedented(text), "time_series" if series else "table", "A"))


def graph(
    title: str,
    unit: str,
    text: str,
    *queries: Query,
    limit: Limit | None = None,
    bars: bool = False,
    width: int = 8,
) -> timeseries.Panel:
    """Return a panel over time: lines, or `bars` that stand on each other."""
    legend = common.VizLegendOptions().display_mode(kinds.LegendDisplayMode.LIST).show_legend(True)
    panel = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(60 if bars else 8)
        .show_points(kinds.VisibilityMode.AUTO)
        .draw_style(kinds.GraphDrawStyle.BARS if bars else kinds.GraphDrawStyle.LINE)
        .axis_soft_min(0)
        .legend(legend.placement(kinds.LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    )
    if bars:
        panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
    if limit is not None:
        panel.thresholds(_thresholds(limit))
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED)  # A line at each.
        )
    return _filled(panel, title, unit, text, queries, width, 8)


def figure(
    title: str,
    unit: str,
    text: str,
    query: Query,
    *,
    limit: Limit | None = None,
    decimals: int | None = None,
    words: Mapping[str, str] | None = None,
    nothing: str = "–",
    width: int = 4,
) -> stat.Panel:
    """Return one figure, with `words` in place of values and `nothing` where there is none."""
    panel = (
        stat.Panel()
        .graph_mode(kinds.BigValueGraphMode.NONE)
        .color_mode(kinds.BigValueColorMode.VALUE if limit else kinds.BigValueColorMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
        .no_value(nothing)
    )
    if limit is not None:
        panel.thresholds(_thresholds(limit))
    if decimals is not None:
        panel.decimals(decimals)
    if words:
        options = {value: models.ValueMappingResult(text=word) for value, word in words.items()}
        panel.mappings([models.ValueMap(options=options)])
    return _filled(panel, title, unit, text, (query,), width, 4)


def listing(
    title: str,
    text: str,
    query: Query,
    *,
    units: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    width: int = 12,
) -> table.Panel:
    """Return a table; `units` are those of columns that need another than a plain number, `links` those to follow."""
    panel = table.Panel().cell_height(kinds.TableCellHeight.SM)
    for column, unit in (units or {}).items():
        panel.override_by_name(column, [models.DynamicConfigValue("unit", unit)])
    for column, url in (links or {}).items():
        link = {"title": "Show", "url": url}
        panel.override_by_name(column, [models.DynamicConfigValue("links", [link])])
    return _filled(panel, title, CREDITS, text, (query,), width, 9)


def board(
    uid: str,
    title: str,
    text: str,
    variables: Sequence[Builder[models.VariableModel]],
    rows: Sequence[Row],
    *,
    since: str,
    until: str = "now",
    refresh: str = "1m",
    annotations: Sequence[Builder[models.AnnotationQuery]] = (),
) -> models.Dashboard:
    """Return a dashboard: rows of panels, placed from left to right and numbered from 1 on."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags([TAG])
        .timezone("utc")
        .time(since, until)
        .refresh(refresh)
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_others())
        .variables(list(variables))
        .annotations(list(annotations))
        .readonly()
    )
    number = 0
    for row in rows:
        number += 1
        made.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made.with_panel(panel.id(number))
    return made.build()


def chosen_prometheus() -> dashboard.DatasourceVariable:
    """Return the variable that names the Prometheus to ask."""
    return _source("prometheus", "prometheus", "Prometheus", PROMETHEUS_UID)


def chosen_postgres() -> dashboard.DatasourceVariable:
    """Return the variable that names the PostgreSQL to ask."""
    return _source("postgres", "grafana-postgresql-datasource", "Ledger database", POSTGRES_UID)


def chosen_environment() -> dashboard.CustomVariable:
    """Return the variable of the environments: one, or both."""
    everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        dashboard.CustomVariable("environment")
        .label("Environment")
        .values("live,test")
        .multi(True)
        .include_all(True)
        .current(everything)
    )


def _others() -> dashboard.DashboardLink:
    kind = models.DashboardLinkType.DASHBOARDS
    return dashboard.DashboardLink("Gateway Ledger").type(kind).tags([TAG]).as_dropdown(True).keep_time(True)


def _source(name: str, kind: str, label: str, uid: str) -> dashboard.DatasourceVariable:
    current = models.VariableOption(selected=True, text=label, value=uid)
    return dashboard.DatasourceVariable(name).label(label).type(kind).current(current)


def _filled(
    panel: _Panel, title: str, unit: str, text: str, queries: Sequence[Query], width: int, height: int
) -> _Panel:
    """Give a panel what every one has; queries are named A, B, C."""
    source: models.DataSourceRef | None = None
    for name, query in zip(ascii_uppercase, queries, strict=False):
        if isinstance(query, prometheus.Dataquery):
            query.ref_id(name)
            source = PROMETHEUS
        else:
            source = POSTGRES
        panel.with_target(query)
    assert source is not None, title
    panel.title(title).description(" ".join(text.split())).unit(unit).datasource(source)
    return panel.span(width).height(height)


def _thresholds(limit: Limit) -> dashboard.ThresholdsConfig:
    green, amber, red = "green", "orange", "red"
    if limit.low:
        steps = [(None, red), (limit.bad, amber if limit.warn else green)]
        steps += [(limit.warn, green)] if limit.warn else []
    else:
        steps = [(None, green)]
        steps += [(limit.warn, amber)] if limit.warn else []
        steps += [(limit.bad, red)]
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


def _dedented(text: str) -> str:
    """Return SQL without the indentation that it has in a program."""
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    indent = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
    return "\n".join(line[indent:] for line in lines).strip()
