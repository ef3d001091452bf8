"""Order of decisions by time."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.producers.logs import ordering
from penaltybox.producers.logs.ordering import Ordering, descends


class _At(NamedTuple):
    ts_ms: int
    number: int = 0


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 200), max_size=8), max_size=8))
def test_within_lateness_all_is_sorted(runs: list[list[int]]) -> None:
    """Nothing is lost; what is not late comes in order; equal times keep theirs."""
    number = iter(range(1000))
    given_runs = [[_At(ts_ms, next(number)) for ts_ms in run] for run in runs]
    order: Ordering[_At] = Ordering(50)
    out = [one for run in given_runs for one in order.add(run)] + order.rest()
    assert sorted(out) == sorted(one for run in given_runs for one in run)
    if not order.late:
        assert out == sorted(out)


def test_it_holds_no_more_than_it_may() -> None:
    """A log that brings more than fits within lateness is passed on before."""
    order: Ordering[_At] = Ordering(10**9)
    before = ordering.MAX_HELD
    released = order.add([_At(number + 1) for number in range(before + 7)])
    assert [one.ts_ms for one in released] == list(range(1, 8))
    assert len(order.held) == before


def test_which_way_a_log_runs() -> None:
    """Backwards is what mostly steps back, from its first line to its last."""
    assert descends([9, 8, 8, 7, 3])
    assert descends([90, 80, 81, 70, 60, 50, 40, 30])
    assert not descends([1, 2, 3, 4])
    assert not descends([4, 1, 3, 2])
    assert not descends([5, 5, 5])
    assert not descends([9, 1])
    assert not descends([])
