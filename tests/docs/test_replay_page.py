"""docs/replay.md names the figures that there are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.replay.comparison import Comparison
from penaltybox.processors.replay.conditions import failures, parse_condition
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.metrics import metrics_of
from penaltybox.processors.replay.observer import CANDIDATE
from penaltybox.processors.replay.report import Report

PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
POLICY = parse_policy(
    "rules: {NAME: {on: ip, count: 5, window: 10m, then: step}, u: {on: user, count: 5, window: 1m, then: step}}"
)
METRICS = metrics_of(report_of(Comparison({CANDIDATE: POLICY})))


def test_every_figure_of_the_table_exists_and_every_family_is_in_it() -> None:
    """Each name can be asked for; a family of figures that the page does not have would be unknown to its readers."""
    table = PAGE.partition("## As a gate")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([a-z.A-Z0-9…]+)`", row)]
    for name in names:
        assert name.endswith("…") or name == "new.shadow.NAME" or name in METRICS, name
    families = {name.split(".")[0] for name in names} | {"baseline"}
    assert {name.split(".")[0] for name in METRICS} == families


def test_the_conditions_of_the_examples_can_be_asked() -> None:
    """Of this page and of the command's help."""
    conditions = re.findall(r'--fail-if "([^"]+)"', PAGE)
    assert len(conditions) == 3
    assert failures([parse_condition(text) for text in conditions], METRICS) == []


def test_every_key_of_the_report_is_explained() -> None:
    """The first level of `diff` stands on the page, in one form or another."""
    known = {
        "first_ms",
        "last_ms",
        "decisions",
        "outcomes",
        "requests",
        "subjects",
        "maturity",
        "rates",
        "top",
        "remarks",
    }
    for field in msgspec.structs.fields(Report):
        assert field.name in known or f"`{field.encode_name}`" in PAGE, field.name
