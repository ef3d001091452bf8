"""What the log hears of outages: whatever lasts, never a flood, each node for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.producers.outages import FailureCounts
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

PASSED = Verdict(action="allow", reason="fail_open")


class Told:
    """Outages of nodes played to a counter, ten moments a second, and what the log had of them, at which second."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.counts = FailureCounts()
        self._caplog = caplog
        self.lines: list[tuple[float, str]] = []

    def play(self, begin_s: float, end_s: float, away: Iterable[str] = (), there: Iterable[str] = ()) -> None:
        for tick in range(round(begin_s * 10), round(end_s * 10)):
            now_s = tick / 10
            for node in away:
                if tick % 10 == 0:  # a probe; the others are answered at once
                    self.counts.failed(StoreUnavailable(f"Redis at {node} is away."), now_s, node)
                self.counts.decided("s", PASSED, now_s, (node,))
            for node in there:
                self.counts.succeeded(now_s, (node,))
            self._collect(now_s)

    def _collect(self, now_s: float) -> None:
        self.lines += [(now_s, record.getMessage()) for record in self._caplog.records]
        self._caplog.clear()

    @property
    def seconds(self) -> list[float]:
        return [at for at, _ in self.lines]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_an_outage_is_told_at_once_every_minute_and_when_it_is_over(told: Told) -> None:
    """Its end is told when the node has answered for five seconds, with how long it lasted and what it cost."""
    told.play(0, 130, away=["a"])
    told.play(130, 140, there=["a"])
    assert told.seconds == [0, 60, 120, 135]
    assert "node a of Redis" in told.lines[0][1]
    assert "for 60 s now: Redis at a is away." in told.lines[1][1]
    assert told.lines[3][1] == "Redis node a answers again, after 130.0 s; 1300 decisions were made without it"


def test_an_outage_soon_after_another_is_told_when_it_lasts(told: Told) -> None:
    """One of four seconds within the same minute is not worth a line, one of six has two; the next minute counts it."""
    told.play(0, 2, away=["a"])
    told.play(2, 10, there=["a"])
    told.play(10, 14, away=["a"])
    told.play(14, 20, there=["a"])
    told.play(20, 26, away=["a"])
    told.play(26, 40, there=["a"])
    assert told.seconds == [0, 7, 25, 31]
    assert told.lines[2][1].endswith("(1 short outages since the last line)")


def test_a_node_that_comes_and_goes_makes_no_flood(told: Told) -> None:
    """Half a second away, half a second there: one outage, a line a minute, and one when it has been there for long."""
    for second in range(180):
        told.play(second, second + 0.5, away=["a"])
        told.play(second + 0.5, second + 1, there=["a"])
    told.play(180, 190, there=["a"])
    assert told.seconds == [0, 60, 120, 184.5]


def test_each_node_is_told_of_by_itself(told: Told) -> None:
    """A second node that fails a moment after the first has a line of its own, and so has its end."""
    told.play(0, 3, away=["a"], there=["b"])
    told.play(3, 10, away=["a", "b"])
    told.play(10, 20, away=["a"], there=["b"])
    assert told.seconds == [0, 3, 15]
    assert told.lines[2][1].startswith("Redis node b answers again, after 7.0 s")


def test_a_node_that_was_replaced_is_told_of_once_more(told: Told) -> None:
    """After a failover nobody asks it again: its outage ends there, and nothing of it is kept."""
    told.play(0, 4, away=["a"])
    told.counts.keep({"b", "c"}, 4.0)
    told.play(4, 70, there=["b"])
    (line,) = [text for _, text in told.lines][1:]
    assert line.startswith("Redis node a is no longer needed: its keys are on other nodes now, after 4.0 s; 40 decis")
    assert not told.counts.away
