"""The recorded scenarios against the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.judge import Oracle
from tests.oracle.scenario import line_of, read_scenario

SCENARIOS = sorted(path.parent for path in (Path(__file__).parent.parent / "scenarios").glob("*/policy.yaml"))


@pytest.mark.parametrize("folder", SCENARIOS, ids=lambda folder: folder.name)
def test_oracle_gives_what_the_scenario_expects(folder: Path) -> None:
    """The naive implementation agrees with every expected file, line by line."""
    scenario = read_scenario(folder)
    oracle = Oracle(scenario.deliveries[0].policy)
    for delivery in scenario.deliveries:
        oracle.policy = delivery.policy
        oracle.judge(delivery.event, delivery.broker_ms, late=delivery.late)
    assert [line_of(penalty) for penalty in oracle.penalties] == scenario.expected
