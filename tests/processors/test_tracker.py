from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penaltybox.processors.tracker import Tracker


@dataclass(eq=False)
class Run:
    offset: int
    acked: bool = False


def test_commits_up_to_the_oldest_unacknowledged_run() -> None:
    """A later acknowledgement moves nothing until the older run is acknowledged too."""
    tracker, first, second = Tracker(), Run(9), Run(19)
    tracker.deliver("p", first)
    tracker.deliver("p", second)
    second.acked = True
    assert tracker.reached("p") is None
    first.acked = True
    assert tracker.reached("p") == 20


def test_a_commit_that_failed_is_offered_again() -> None:
    """The reached offset stays on offer until the partition is forgotten."""
    tracker, run = Tracker(), Run(4, acked=True)
    tracker.deliver("p", run)
    assert [tracker.reached("p"), tracker.reached("p")] == [5, 5]
    tracker.forget(["p"])
    assert tracker.reached("p") is None


def test_a_late_acknowledgement_from_before_a_rebalance_counts_for_nothing() -> None:
    """The same offset delivered again is another message: the old one's acknowledgement does not cover it."""
    tracker, old, new = Tracker(), Run(19), Run(19)
    tracker.deliver("p", old)
    tracker.forget(["p"])
    tracker.deliver("p", new)
    old.acked = True
    assert tracker.reached("p") is None


class Model:
    """Partition as a naive list of (last offset, acknowledged)."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.runs: list[Run] = []

    def safe(self) -> int:
        for index, run in enumerate(self.runs):
            if not run.acked:
                return self.runs[index - 1].offset + 1 if index else 0
        return self.runs[-1].offset + 1 if self.runs else 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(1, 50)),
        st.tuples(st.just("ack"), st.integers(0, 2), st.integers(0, 30)),
        st.tuples(st.just("commit"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("rebalance"), st.integers(0, 2), st.just(0)),
    ),
    max_size=120,
)


@given(ACTIONS)
def test_never_commits_past_an_unacknowledged_run(actions: list[tuple[str, int, int]]) -> None:
    """Whatever is delivered, acknowledged, committed and revoked in whatever order, a commit equals the naive rule."""
    tracker = Tracker()
    models = {partition: Model() for partition in range(3)}
    committed = dict.fromkeys(range(3), 0)
    for action, partition, figure in actions:
        model = models[partition]
        if action == "deliver":
            run = Run(model.next_offset + figure - 1)
            model.next_offset = run.offset + 1
            model.runs.append(run)
            tracker.deliver(partition, run)
        elif action == "ack" and model.runs:
            model.runs[figure % len(model.runs)].acked = True
        elif action == "commit":
            offset = tracker.reached(partition)
            assert (offset or committed[partition]) == max(model.safe(), committed[partition])
            committed[partition] = max(committed[partition], offset or 0)
        elif action == "rebalance":
            tracker.forget([partition])
            model.runs, model.next_offset = [], committed[partition]
    assert tracker.unacknowledged() == sum(not run.acked for model in models.values() for run in model.runs)


def test_a_long_backlog_is_tracked_in_linear_time() -> None:
    """A hundred thousand runs leave nothing behind once they are acknowledged and committed."""
    tracker = Tracker()
    for offset in range(100_000):
        run = Run(offset)
        tracker.deliver("p", run)
        run.acked = True
    assert tracker.reached("p") == 100_000
    assert tracker.unacknowledged() == 0
