"""How many users share an address, by a sketch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.processors.replay.crowds import KEPT, Crowd


def test_equal_users_are_counted_exactly_until_the_sketch_is_full() -> None:
    """Ten equal users are ten; a hundred are at least sixteen, which is all that is told."""
    for users, expected in ((1, 1), (10, 10), (100, KEPT)):
        crowd = Crowd()
        for _ in range(3):
            for user in range(users):
                crowd.see(user, 2.0)
        assert crowd.effective == pytest.approx(expected, rel=0.05)
    assert Crowd().effective == 0


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1.0, 3.0, 10.0])), min_size=1, max_size=400))
def test_there_are_never_fewer_than_said(requests: list[tuple[int, float]]) -> None:
    """The sketch's N_eff is a lower bound of the true one."""
    crowd, true = Crowd(), Counter[int]()
    for user, amount in requests:
        crowd.see(user, amount)
        true[user] += int(amount)
    total = sum(true.values())
    assert crowd.effective <= total * total / sum(one * one for one in true.values()) + 1e-9
