"""Every query that the committed dashboards ask ClickHouse, and what is chosen in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.dashboards.macros import ALL

HERE = Path(__file__).parents[2] / "dashboards"
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((HERE / "json").glob("*.json"))
}


class Asked(NamedTuple):
    """A query of a dashboard, and where it stands."""

    where: str
    sql: str


def variables(change_s: int) -> dict[str, str | list[str]]:
    """What a dashboard has chosen when it is opened; `change_s`: a policy change, seconds since the epoch."""
    return {
        "scenario": ALL,
        "dimension": ALL,
        "limit": ALL,
        "rule": ALL,
        "matures": "-1",
        "by": "ip",
        "prefix": "",
        "accounts": "4",
        "change": str(change_s),
    }


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a dashboard, without the rows that fold them."""
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def targets(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Queries of all panels by the field that they have."""
    return [
        (f"{name}: {panel['title']}", target)
        for name, document in BOARDS.items()
        for panel in panels(document)
        for target in panel["targets"]
        if kind in target
    ]


def once(found: list[Asked]) -> list[Asked]:
    """Each SQL once: dashboards share some."""
    return list({one.sql: one for one in reversed(found)}.values())


PANELS = once([Asked(where, target["rawSql"]) for where, target in targets("rawSql")])
NOTES = once(
    [
        Asked(f"{name}: {note['name']}", note["target"]["rawSql"])
        for name, document in BOARDS.items()
        for note in document["annotations"]["list"]
    ]
)
CHOICES = once(
    [
        Asked(f"{name}: {variable['name']}", variable["query"])
        for name, document in BOARDS.items()
        for variable in document["templating"]["list"]
        if variable["type"] == "query"
    ]
)
