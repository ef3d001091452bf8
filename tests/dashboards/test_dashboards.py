"""Dashboards and alert rules: current, complete, and every query of them answers on demo data."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import __main__ as making
from dashboards.alerts import RULES
from dashboards.panels import CLICKHOUSE_UID, PLUGIN, PROMETHEUS_UID, TAG
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from tests.dashboards.asked import BOARDS, CHOICES, HERE, NOTES, PANELS, Asked, panels, targets, variables
from tests.dashboards.macros import UnknownMacroError, View
from tests.dashboards.world import LENGTH_MS, START_MS, store_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.embedded.clickhouse_server import ClickHouseServer

ROOT = Path(__file__).parents[2]
PROVISIONED = yaml.safe_load((HERE / "provisioning" / "alerting" / "penaltybox.yaml").read_text(encoding="utf-8"))
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
VARIABLES = variables(START_MS // 1000 + LENGTH_MS // 2000)
HEEDS = re.compile(r"\$\{(scenario|dimension|limit|rule|prefix|accounts):")
EVERYTHING = View(START_MS // 1000 - 3 * 86_400, START_MS // 1000 + 3600, 60, VARIABLES)
PROMQL = [(where, target["expr"]) for where, target in targets("expr")]
PROMQL += [(rule.uid, rule.query) for rule in RULES if not rule.is_sql]


@pytest.fixture(scope="module")
def clickhouse(clickhouse_server: ClickHouseServer) -> Iterator[ClickHouse]:
    """The demo's hour, stored."""
    # Planning nested views takes seconds of a busy machine.
    made = ClickHouse(clickhouse_server.url, "dashboards", answer_s=PATIENT_S)
    migrate(made)
    played = store_world(made)
    assert played.penalties
    yield made
    made.close()


def test_the_files_are_current() -> None:
    """What is committed is what `python -m dashboards` makes, and nothing else is there."""
    made = making.made()
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)} is not current: make docs"
    assert {path.stem for path in made if path.suffix == ".json"} == BOARDS.keys()


@pytest.mark.parametrize("name", BOARDS)
def test_grafana_reads_the_same(name: str) -> None:
    """The SDK's model of a dashboard reads a file and writes it back without a loss."""
    again = json.loads(json.dumps(Dashboard.from_json(BOARDS[name]), cls=JSONEncoder))
    assert set(again) == set(BOARDS[name])
    assert (again["uid"], again["title"], again["tags"]) == (f"pbx-{name}", BOARDS[name]["title"], [TAG])


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_says_what_it_shows(name: str) -> None:
    """Each panel has a title, a sentence, a unit, and a data source that can be chosen; titles are unique."""
    document = BOARDS[name]
    assert document["description"]
    titles = [(panel["type"], panel["title"]) for panel in panels(document)]
    assert len(titles) == len(set(titles))
    for panel in panels(document):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] in ("${clickhouse}", "${prometheus}")
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
    for variable in document["templating"]["list"]:
        assert variable["label"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    """The grid has 24 columns, and each panel a place of its own."""
    cells = set()
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        cells |= mine


def test_links_lead_to_dashboards() -> None:
    """Each dashboard links to all others by their tag, and each address in a table is one of them."""
    for document in BOARDS.values():
        (link,) = document["links"]
        assert (link["type"], link["tags"], link["keepTime"]) == ("dashboards", [TAG], True)
    text = json.dumps(BOARDS)
    assert set(re.findall(r'"/d/([\w-]+)\?', text)) <= {document["uid"] for document in BOARDS.values()}
    assert {rule.board for rule in RULES} <= {document["uid"] for document in BOARDS.values()}


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize("asked", [*PANELS, *NOTES], ids=lambda asked: asked.where)
def test_every_query_answers(clickhouse: ClickHouse, asked: Asked) -> None:
    """Macros and variables expanded, ClickHouse answers with rows; a chart over time has times and figures."""
    rows = clickhouse.rows(EVERYTHING.expanded(asked.sql))
    assert rows, asked.where
    if re.search(r"AS time\b", asked.sql):
        assert all(row["time"] is not None for row in rows)
        assert any(isinstance(value, (int, float)) or key == "text" for key, value in rows[0].items())


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize("asked", [one for one in PANELS if HEEDS.search(one.sql)], ids=lambda asked: asked.where)
def test_every_query_heeds_what_is_chosen(clickhouse: ClickHouse, asked: Asked) -> None:
    """With values chosen that nobody has, hostile ones too, it is still SQL, and no filtered row comes back."""
    strange: dict[str, str | list[str]] = {
        name: ["x') OR 1=1 --", "y"] for name in ("scenario", "dimension", "limit", "rule")
    }
    chosen = VARIABLES | strange | {"accounts": "1000000'); --", "prefix": "192.0.2.0/24"}
    rows = clickhouse.rows(EVERYTHING._replace(variables=chosen).expanded(asked.sql))
    filtered = any(f"${{{name}:" in asked.sql for name in strange)
    nothing = len(rows) == 1 and all(
        not value or name == "got through" or (isinstance(value, float) and math.isnan(value))
        for name, value in rows[0].items()
    )
    assert not filtered or not rows or nothing, rows[:3]


@pytest.mark.stack
@pytest.mark.parametrize("asked", CHOICES, ids=lambda asked: asked.where)
def test_every_variable_has_values(clickhouse: ClickHouse, asked: Asked) -> None:
    """The values come from the data; of two columns the first is the value, the second what is shown."""
    rows = clickhouse.rows(EVERYTHING.expanded(asked.sql))
    assert rows
    assert all(isinstance(value, str) for value in rows[0].values())
    assert len(rows[0]) == 1 or list(rows[0]) == ["value", "text"]


@pytest.mark.stack
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.is_sql], ids=lambda rule: rule.uid)
def test_alerts_ask_what_clickhouse_answers(clickhouse: ClickHouse, rule: Any) -> None:
    """SQL of alert rules runs as it is: nobody fills in variables there."""
    rows = clickhouse.rows(EVERYTHING.server_side(rule.query))
    assert all(sum(isinstance(value, float) for value in row.values()) == 1 for row in rows)


def documented() -> dict[str, tuple[str, set[str]]]:
    """Every metric of docs/metrics.md, which a test compares with real processes: name -> (type, labels)."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*)\|", METRICS, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


@pytest.mark.parametrize(("where", "expr"), PROMQL)
def test_promql_names_metrics_and_labels_that_exist(where: str, expr: str) -> None:
    """Names are those that workers and service expose, labels those they have; counters are rated, gauges are not."""
    known = documented()
    ours = re.findall(r"\b(penaltybox_[a-z_]+)\b", expr)
    others = set(re.findall(r"\b(up|process_[a-z_]+)\b", expr))
    assert ours or others, where
    assert others <= {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
    labels = {"le", "instance", "job"}
    for name in ours:
        plain = re.sub(r"_(bucket|count|sum)$", "", name)
        kind, its = known.get(name) or known[plain]
        assert (kind == "histogram") == (plain != name), name
        assert (kind in ("counter", "histogram")) == bool(re.search(rf"(rate|increase)\({name}\b", expr)), expr
        labels |= its
    asked = {label.strip() for inside in re.findall(r"\bby \(([^)]*)\)", expr) for label in inside.split(",")}
    assert asked <= labels, where
    assert expr.count("(") == expr.count(")")


def test_legends_name_labels_of_their_query() -> None:
    """`{{label}}` in a legend is one that the query keeps."""
    for where, target in targets("expr"):
        kept = {
            label.strip() for inside in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in inside.split(",")
        }
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, where


def test_alert_rules_are_whole() -> None:
    """Each rule asks a provisioned data source, compares its answer, and says what to do; no dollar is in the file."""
    (group,) = PROVISIONED["groups"]
    assert [rule["uid"] for rule in group["rules"]] == [rule.uid for rule in RULES]
    for rule in group["rules"]:
        question, comparison = rule["data"]
        assert question["datasourceUid"] in (CLICKHOUSE_UID, PROMETHEUS_UID)
        assert (comparison["datasourceUid"], comparison["model"]["expression"]) == ("__expr__", question["refId"])
        assert rule["condition"] == comparison["refId"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert len(rule["annotations"]["description"]) > 40
    assert "$" not in making.RULES.read_text(encoding="utf-8"), "Grafana would look for a variable of that name"


def test_data_sources_are_those_that_dashboards_and_rules_name() -> None:
    """Provisioned data sources have the types and uids that everything else goes by; passwords come from outside."""
    provisioned = yaml.safe_load(
        (HERE / "provisioning" / "datasources" / "penaltybox.yaml").read_text(encoding="utf-8")
    )
    found = {one["uid"]: one for one in provisioned["datasources"]}
    assert {uid: one["type"] for uid, one in found.items()} == {CLICKHOUSE_UID: PLUGIN, PROMETHEUS_UID: "prometheus"}
    assert found[CLICKHOUSE_UID]["secureJsonData"]["password"] == "${CLICKHOUSE_READER_PASSWORD}"  # noqa: S105 - a name
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["grafana"]
    text = (HERE / "provisioning" / "datasources" / "penaltybox.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", text)) <= compose["environment"].keys()
    folder = yaml.safe_load((HERE / "provisioning" / "dashboards" / "penaltybox.yaml").read_text(encoding="utf-8"))
    (provider,) = folder["providers"]
    assert f"./dashboards/json:{provider['options']['path']}:ro" in compose["volumes"]


def test_an_unknown_macro_is_an_error() -> None:
    """What Grafana would not expand fails the tests, not the dashboard."""
    for sql in ("SELECT $__adHocFilters('t')", "SELECT ${nobody}", "SELECT ${by:csv}"):
        with pytest.raises((UnknownMacroError, KeyError)):
            EVERYTHING.expanded(sql)
    assert EVERYTHING.expanded("$__timeInterval(f(a, b))") == (
        "toStartOfInterval(toDateTime(f(a, b)), INTERVAL 60 second)"
    )
