"""Panels, variables and links that all dashboards are built of: one look, one way to ask ClickHouse and Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from grafana_foundation_sdk.builders import barchart, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLUGIN: Final = "grafana-clickhouse-datasource"
PLUGIN_VERSION: Final = "4.20.0"
CLICKHOUSE: Final = DataSourceRef(type_val=PLUGIN, uid="${clickhouse}")
PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="${prometheus}")
CLICKHOUSE_UID: Final = "penaltybox-clickhouse"
PROMETHEUS_UID: Final = "penaltybox-prometheus"
TAG: Final = "penaltybox"

PERIOD: Final = "from = ${__from:date:seconds}, to = ${__to:date:seconds}"
"""Arguments of the shipped views, which take seconds since the epoch."""
STEP: Final = "toIntervalSecond(greatest(60, $__interval_s))"
SCENARIO: Final = "$__conditionalAll(scenario IN (${scenario:singlequote}), $scenario)"
DIMENSION: Final = "$__conditionalAll(dimension IN (${dimension:singlequote}), $dimension)"
LIMIT: Final = "$__conditionalAll(limit_name IN (${limit:singlequote}), $limit)"


class Sql(Builder[Dataquery], Dataquery):
    """A query of the ClickHouse data source.

    Args:
        text: SQL with the data source's macros and the dashboard's variables.
        series: a column of times and figures over it; else rows.
    """

    def __init__(self, text: str, *, series: bool = False) -> None:
        self._text = text.strip()
        self._series = series

    def build(self) -> Dataquery:
        """Itself: it knows its JSON."""
        return self

    def to_json(self) -> dict[str, object]:
        """What the data source reads."""
        return {
            "refId": "A",
            "datasource": CLICKHOUSE,
            "editorType": "sql",
            "queryType": "timeseries" if self._series else "table",
            "format": 0 if self._series else 1,
            "rawSql": self._text,
            "pluginVersion": PLUGIN_VERSION,
        }


class Prom(NamedTuple):
    """PromQL and how its series are called."""

    expr: str
    legend: str = "__auto"


Query = Sql | Prom | list[Prom]


def _targets(query: Query) -> tuple[DataSourceRef, list[Any]]:
    if isinstance(query, Sql):
        return CLICKHOUSE, [query]
    made = []
    for letter, one in zip("ABCDEFG", [query] if isinstance(query, Prom) else query, strict=False):
        target = prometheus.Dataquery().expr(one.expr).legend_format(one.legend).ref_id(letter).range()
        made.append(target.datasource(PROMETHEUS))
    return PROMETHEUS, made


def _filled(panel: Any, title: str, says: str, query: Query, size: tuple[int, int]) -> Any:
    source, targets = _targets(query)
    panel = panel.title(title).description(says).datasource(source).span(size[0]).height(size[1])
    for target in targets:
        panel = panel.with_target(target)
    return panel


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> Any:
    found = [Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


def number(
    title: str,
    says: str,
    query: Query,
    unit: str,
    *,
    bad_above: float | None = None,
    size: tuple[int, int] = (4, 4),
) -> Any:
    """One figure; red above `bad_above`."""
    panel = _filled(stat.Panel(), title, says, query, size).unit(unit)
    panel = panel.graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.VALUE)
    steps: list[tuple[float | None, str]] = [(None, "text" if bad_above is None else "green")]
    if bad_above is not None:
        steps.append((bad_above, "red"))
    return panel.thresholds(_thresholds(steps))


def numbers(title: str, says: str, query: Sql, units: Mapping[str, str], *, size: tuple[int, int] = (24, 5)) -> Any:
    """Several figures of one row, named as its columns: one query costs less than several."""
    panel = _filled(stat.Panel(), title, says, query, size).unit("short")
    panel = panel.graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.VALUE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False).fields("/.*/"))
    for column, unit in units.items():
        panel = panel.override_by_name(column, [DynamicConfigValue(id_val="unit", value=unit)])
    return panel.thresholds(_thresholds([(None, "text")]))


def lines(
    title: str,
    says: str,
    query: Query,
    unit: str,
    *,
    stacked: bool = False,
    bars: bool = False,
    most: float | None = None,
    size: tuple[int, int] = (12, 8),
) -> Any:
    """Figures over time."""
    panel = _filled(timeseries.Panel(), title, says, query, size).unit(unit).min(0)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = panel.legend(legend.show_legend(show_legend=True))
    panel = panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI)).line_width(1)
    if most is not None:
        panel = panel.max(most)
    if bars:
        panel = panel.draw_style(GraphDrawStyle.BARS)
    if stacked or bars:
        panel = panel.fill_opacity(60 if bars else 25)
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return panel


def rows(
    title: str,
    says: str,
    query: Query,
    units: Mapping[str, str],
    *,
    unit: str = "short",
    links: Mapping[str, tuple[str, str]] | None = None,
    size: tuple[int, int] = (24, 9),
) -> Any:
    """A table.

    Args:
        title: as it is shown.
        says: what the panel shows, in a sentence.
        query: its rows.
        units: column -> unit, where it is not `unit`.
        unit: of the other columns.
        links: column -> (title, address) of what a cell leads to.
        size: columns of 24, and height.
    """
    panel = _filled(table.Panel(), title, says, query, size).unit(unit).filterable(filterable=True)
    columns: dict[str, list[DynamicConfigValue]] = {}
    for column, one in units.items():
        columns.setdefault(column, []).append(DynamicConfigValue(id_val="unit", value=one))
    for column, (label, address) in (links or {}).items():
        value = [{"title": label, "url": address}]
        columns.setdefault(column, []).append(DynamicConfigValue(id_val="links", value=value))
    for column, properties in columns.items():
        panel = panel.override_by_name(column, properties)
    return panel


def columns(
    title: str, says: str, query: Query, unit: str, x: str, *, stacked: bool = False, size: tuple[int, int] = (12, 8)
) -> Any:
    """Bars by the values of one column."""
    panel = _filled(barchart.Panel(), title, says, query, size).unit(unit).x_field(x).min(0)
    panel = panel.orientation(VizOrientation.HORIZONTAL)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = panel.legend(legend.show_legend(show_legend=True))
    return panel.stacking(StackingMode.NORMAL) if stacked else panel


def filter_variable(name: str, label: str, sql: str) -> Any:
    """Values that occur in the period; all of them at first."""
    every = VariableOption(text=["All"], value=["$__all"], selected=True)
    made = dashboard.QueryVariable(name).label(label).datasource(CLICKHOUSE).query(sql).current(every)
    made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return made.multi(multi=True).include_all(include_all=True)


def chosen(name: str, label: str, options: Mapping[str, str]) -> Any:
    """One of some values: text -> value; the first one at first."""
    text, value = next(iter(options.items()))
    listed = ",".join(f"{text} : {value}" for text, value in options.items())
    made = dashboard.CustomVariable(name).label(label).values(listed)
    made = made.options(
        [
            VariableOption(text=one, value=of_it, selected=number == 0)
            for number, (one, of_it) in enumerate(options.items())
        ]
    )
    return made.current(VariableOption(text=text, value=value, selected=True))


CHANGES: Final = """
SELECT min(ts) AS at, policy_version AS version
FROM
(
    SELECT ts, policy_version, lagInFrame(toString(policy_version)) OVER (ORDER BY ts, seq) AS before
    FROM penalties FINAL WHERE $__timeFilter(ts) AND origin = 'rule' AND policy_version != ''
)
WHERE before NOT IN ('', policy_version)
GROUP BY version, toStartOfMinute(ts)
"""
"""When another policy than before was first seen to punish anybody; rollbacks too. Workers switch within a second."""
SCENARIOS: Final = filter_variable(
    "scenario", "Scenario", f"SELECT DISTINCT scenario FROM decisions_per_minute({PERIOD}) WHERE scenario != ''"
)
DIMENSIONS: Final = filter_variable(
    "dimension", "Dimension", f"SELECT DISTINCT dimension FROM episodes({PERIOD}) WHERE dimension != ''"
)
LIMITS: Final = filter_variable(
    "limit", "Limit", f"SELECT DISTINCT limit_name FROM decisions_per_minute({PERIOD}) WHERE limit_name != ''"
)
MATURES: Final = chosen(
    "matures", "Labels are awaited for", {"each label's own time": "-1", "1 hour": "3600", "1 day": "86400"}
)


def _source(name: str, label: str, kind: str, uid: str) -> Any:
    current = VariableOption(text=uid, value=uid, selected=True)
    return dashboard.DatasourceVariable(name).label(label).type(kind).current(current)


def board(
    uid: str, title: str, says: str, variables: Sequence[Any], *, since: str = "now-24h", refresh: str = "1m"
) -> Any:
    """A dashboard without panels: its variables, links to the others, and notes where the policy changed."""
    made = dashboard.Dashboard(f"penaltybox: {title}").uid(uid).description(says).tags([TAG]).readonly()
    made = made.time(since, "now").refresh(refresh).timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    made = made.with_variable(_source("clickhouse", "ClickHouse", PLUGIN, CLICKHOUSE_UID))
    made = made.with_variable(_source("prometheus", "Prometheus", "prometheus", PROMETHEUS_UID))
    for variable in variables:
        made = made.with_variable(variable)
    link = dashboard.DashboardLink("penaltybox").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    link = link.keep_time(keep_time=True).include_vars(include_vars=True).as_dropdown(as_dropdown=False)
    return made.link(link).annotation(_policy_changes())


def _policy_changes() -> Any:
    sql = f"SELECT at AS time, concat('policy ', version) AS text, 'policy' AS tags FROM ({CHANGES}) ORDER BY time"
    note = dashboard.AnnotationQuery().name("Policy changes").datasource(CLICKHOUSE).enable(enable=True)
    return note.icon_color("purple").target(Sql(sql))


def address(uid: str, variables: str = "") -> str:
    """Where a dashboard is, for the same period and data sources."""
    kept = "${__url_time_range}&${clickhouse:queryparam}&${prometheus:queryparam}"
    return f"/d/{uid}?{kept}{variables and '&' + variables}"
