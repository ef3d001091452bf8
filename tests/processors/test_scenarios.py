"""The recorded scenarios against the engine: what DESIGN forbids must not happen, what it promises must."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.scenario import line_of, read_scenario
from tests.processors.engine_driver import Drive

SCENARIOS = sorted(path.parent for path in (Path(__file__).parent.parent / "scenarios").glob("*/policy.yaml"))


@pytest.mark.parametrize("folder", SCENARIOS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("way", ["in_place", "stored", "pure"])
def test_engine_gives_what_the_scenario_expects(folder: Path, way: str) -> None:
    """The engine writes exactly the expected penalties, in place, through the codec, and as a pure function."""
    scenario = read_scenario(folder)
    drive = Drive(scenario.deliveries[0].policy, stored=way == "stored", pure=way == "pure")
    for delivery in scenario.deliveries:
        drive.switch(delivery.policy)
        drive.judge(delivery.event, delivery.broker_ms, late=delivery.late)
    found = [line_of(penalty) for penalty in drive.penalties]
    assert by_ladder(found) == by_ladder(scenario.expected)


def by_ladder(lines: list[dict[str, object]]) -> dict[tuple[object, object], list[dict[str, object]]]:
    """Lines per subject and ladder, in order: between two subjects no order is promised."""
    found: dict[tuple[object, object], list[dict[str, object]]] = {}
    for line in lines:
        found.setdefault((line["subject"], line.get("shadow", False)), []).append(line)
    return found
