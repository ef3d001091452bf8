"""What points of trust are worth."""

from __future__ import annotations

import pytest

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.remedies import trust_of
from penaltybox.processors.state import SubjectState

POLICY = parse_policy("trust: {established: 4, multipliers: {-5: 80, -20: 25, 4: 150, 10: 200}}")


@pytest.mark.parametrize(
    ("points", "worth"),
    [
        (0, None),
        (3, None),
        (4, (150, True)),
        (9, (150, True)),
        (10, (200, True)),
        (1000, (200, True)),
        (-4, None),
        (-5, (80, False)),
        (-19, (80, False)),
        (-20, (25, False)),
        (-1000, (25, False)),
    ],
)
def test_points_raise_and_lower_the_quota(points: int, worth: tuple[int, bool] | None) -> None:
    """The threshold furthest from zero that was reached counts, upward and downward; only upward establishes."""
    state = SubjectState.fresh("user:u1")
    state.trust = ((1, 1, points),) if points else ()
    assert trust_of(POLICY, state) == worth
