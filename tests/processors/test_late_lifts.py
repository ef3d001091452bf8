"""A lift by an outcome is a step down, and is marked late like every other step that was handled late."""

from __future__ import annotations

import pytest

from penaltybox.contracts.events import Outcome
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.engine import Event, Handling, step
from penaltybox.processors.state import SubjectState
from tests.processors.worker_driver import T0, denials

POLICY = parse_policy("rules: {r: {on: user, count: 3, window: 10m, then: {challenge: 1h}}}")


@pytest.mark.parametrize("late", [True, False])
def test_a_lift_carries_the_mark(late: bool) -> None:
    """So that a replay of the record can repeat it."""
    state = SubjectState.fresh("user:u1")
    for decision in denials(3):
        state, _ = step(state, Event(decision, Handling(decision.ts)), POLICY)
    passed = Outcome(v=1, id="o1", ts=T0 + 9, label="challenge_passed", subjects={"user": "u1"})
    _, (lift,) = step(state, Event(passed, Handling(T0 + 9, late)), POLICY)
    assert (lift.action, lift.late) == ("lift", late)
