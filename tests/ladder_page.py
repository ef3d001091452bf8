"""docs/ladder.md: the ladder's definitions, each with timelines drawn from the scenarios that the tests run.

`python -m tests.ladder_page` writes the page; a test checks that it is current.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.oracle.scenario import START_MS, read_scenario, since, spoken

if TYPE_CHECKING:
    from tests.oracle.scenario import Line, Scenario

ROOT = Path(__file__).parent
BARS = {"": "  ", "warn": "░░", "challenge": "▒▒", "deny": "██"}


class Row(NamedTuple):
    """A line of a timeline."""

    at_ms: int
    rank: int
    decisions: str
    ladder: str


def timeline(scenario: Scenario, subject: str) -> str:
    """What happened to one subject: what came in, what stood, what was written."""
    shown = [line for line in scenario.expected if line["subject"] == subject]
    coming = [line for line in scenario.lines if subject in line.subjects or not line.subjects]
    in_order = coming == sorted(coming, key=lambda line: line.first_ms)
    rows = [
        Row(line.first_ms, 0, ("" if in_order else f"arrives #{number}: ") + line.words + _span(line), "")
        for number, line in enumerate(coming, 1)
    ]
    for line in shown:
        at_ms = START_MS + since(line["t"])
        rows.append(Row(at_ms, 1, "", _told(line)))
    rows += [Row(at_ms, 2, "", "released") for at_ms in _ends(shown)]
    rows.sort(key=lambda row: (row.at_ms, row.rank))
    width = max(len(row.decisions) for row in rows)
    lines = [f"{'time':<10} {'what comes in':<{width}}    {subject}"]
    lines += [
        f"{spoken(row.at_ms):<10} {row.decisions:<{width}} {BARS[_standing(shown, row)]} {row.ladder}".rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def _span(line: Line) -> str:
    return f", to {spoken(line.last_ms)}" if line.last_ms > line.first_ms else ""


def _told(line: dict[str, Any]) -> str:
    marks = "".join(f", {name}" for name in ("late", "shadow") if line.get(name))
    if line["action"] == "lift":
        return f"lifted by {line['rule']}: {line['from']} -> {line['to']}"
    until = "for good" if line["until"] == "never" else f"until {line['until']}"
    return f"{line['action']} {until} ({line['rule']}: {line['from']} -> {line['to']}{marks})"


def _until(line: dict[str, Any]) -> float:
    return float("inf") if line["until"] == "never" else START_MS + since(line["until"])


def _standing(shown: list[dict[str, Any]], row: Row) -> str:
    """What is in force after a row: the severest that neither ended nor was lifted or softened."""
    ends: dict[str, float] = {}
    for line in shown:
        at_ms = START_MS + since(line["t"])
        if at_ms > row.at_ms or (at_ms == row.at_ms and row.rank == 0) or line.get("shadow"):
            continue
        if line["action"] == "lift" or line["rule"] == "shared_ip":
            ends.clear()
        if line["action"] == "deny":
            ends.pop("warn", None)
        if line["action"] != "lift":
            ends[line["action"]] = max(_until(line), ends.get(line["action"], 0))
    return max((action for action, end in ends.items() if row.at_ms < end), key=list(BARS).index, default="")


def _ends(shown: list[dict[str, Any]]) -> list[int]:
    """When something in force ends by itself, with nothing of its kind after it."""
    ends = set()
    for number, line in enumerate(shown):
        end = _until(line)
        lifted = any(START_MS + since(other["t"]) < end for other in shown[number + 1 :])
        if line["action"] in ("deny", "challenge") and end < float("inf") and not lifted and not line.get("shadow"):
            ends.add(int(end))
    return sorted(ends)


def drawn(name: str, *subjects: str) -> str:
    """A scenario as Markdown: its sentence and a timeline for each subject."""
    scenario = read_scenario(ROOT / "scenarios" / name)
    parts = [f"**{scenario.title}** ([{name}](../tests/scenarios/{name}))\n", "```text"]
    parts.append("\n\n".join(timeline(scenario, subject) for subject in subjects))
    return "\n".join([*parts, "```"])


def every_scenario() -> str:
    """All scenarios with their sentences."""
    folders = sorted(path.parent for path in (ROOT / "scenarios").glob("*/policy.yaml"))
    return "\n".join(f"| [{one.name}](../tests/scenarios/{one.name}) | {read_scenario(one).title} |" for one in folders)


def page() -> str:
    """The text of docs/ladder.md."""
    text = (ROOT / "ladder_page.md").read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if line.startswith("{{draw "):
            lines.append(drawn(*line.removeprefix("{{draw ").removesuffix("}}").split()))
        elif line == "{{scenarios}}":
            lines.append(every_scenario())
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT.parent / "docs" / "ladder.md").write_text(page(), encoding="utf-8")
