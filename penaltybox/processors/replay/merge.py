"""Partitions merged into one order: by the broker's time, then topic and partition, then offset. No I/O.

Timestamps of a partition may go back (a sender's clock); its clock, the latest timestamp so far, does not. So the
order is the same however the records came in, and within a partition it is that of the offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Placed = tuple[int, int, int, Any]
"""(clock, rank of the partition, offset, record)"""
MOST_WAITING: Final = 4_000
"""Records of a partition, about a fetch: of one that is ahead of the others no more is taken in."""
_stamp: Final = attrgetter("timestamp")
_offset: Final = attrgetter("offset")


def clocked(stamps: list[int], before: int) -> list[int]:
    """The latest timestamp so far, at each of them; `before` is the latest of those that came before."""
    if stamps and stamps[0] >= before and stamps == sorted(stamps):
        return stamps  # as it mostly is
    return list(accumulate(stamps, max, initial=before))[1:]


class Lane:
    """One partition on its way into the order.

    Attributes:
        rank: its place among all partitions; breaks ties of the clock.
        clock: the latest timestamp so far.
        records: those that wait, in order.
        done: no more will come.
    """

    def __init__(self, rank: int, *, until_ms: int | None = None) -> None:
        self.rank = rank
        self.clock = 0
        self.records: list[Placed] = []
        self.done = False
        self._until_ms = until_ms

    def take(self, records: Sequence[Any]) -> None:
        """Records (`offset`, `timestamp`) in the order of their offsets; the first not before `until_ms` ends it."""
        clocks = clocked(list(map(_stamp, records)), self.clock)
        if not clocks:
            return
        self.clock = clocks[-1]
        if self._until_ms is not None and self.clock >= self._until_ms:
            self.done = True
            clocks = clocks[: bisect_left(clocks, self._until_ms)]
        self.records += zip(clocks, repeat(self.rank), map(_offset, records), records, strict=False)

    @property
    def blocking(self) -> bool:
        """Whether nobody knows what comes next: nothing waits, and more will come."""
        return not self.records and not self.done

    @property
    def hungry(self) -> bool:
        """Whether more of it may be taken in: more will come, and not too much waits."""
        return not self.done and len(self.records) < MOST_WAITING


def released(lanes: Iterable[Lane]) -> list[Placed]:
    """All waiting records that nothing still to come can precede, in order; they wait no longer.

    Call it when no lane is blocking.
    """
    running = [lane.records[-1][:2] for lane in lanes if not lane.done]
    # What comes next comes behind the last record of its own lane, so nothing can precede the first of those.
    bound = (*min(running), _BEYOND) if running else None
    found: list[Placed] = []
    for lane in lanes:
        cut = len(lane.records) if bound is None else bisect_left(lane.records, bound)
        found += lane.records[:cut]
        lane.records = lane.records[cut:]
    found.sort()
    return found


_BEYOND: Final = 1 << 62
"""Beyond every offset."""
