"""Decisions put in the order of their times, as far as `lateness` reaches; and which way a log runs."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T", bound=Any)
MAX_HELD: Final = 100_000
"""Held for sorting at most; a log that brings more within `lateness` is passed on before."""
_FEWEST: Final = 3
_MOSTLY: Final = 4


class Ordering(Generic[T]):
    """Holds what has a `ts_ms`; gives it back sorted, equal times in the order in which they came.

    Args:
        lateness_ms: how far times may run backwards and are still put in order.
    """

    def __init__(self, lateness_ms: int) -> None:
        self.held: list[T] = []
        self.late = 0
        """Came later than that, and were passed on as they came."""
        self._lateness_ms = lateness_ms
        self._newest_ms = self._released_ms = 0

    def add(self, found: Sequence[T]) -> list[T]:
        """Takes a run of them; gives what nothing within `lateness` can come before any more."""
        if not found:
            return []
        held = self.held
        self.late += sum(one.ts_ms < self._released_ms for one in found)
        held.extend(found)
        held.sort(key=_ts_ms)  # nearly sorted already: this is close to one pass
        self._newest_ms = max(self._newest_ms, held[-1].ts_ms)
        count = bisect_left(held, self._newest_ms - self._lateness_ms, key=_ts_ms)
        return self._release(max(count, len(held) - MAX_HELD))

    def rest(self) -> list[T]:
        """All that is held."""
        return self._release(len(self.held))

    def _release(self, count: int) -> list[T]:
        released, self.held = self.held[:count], self.held[count:]
        if released:
            self._released_ms = max(self._released_ms, released[-1].ts_ms)
        return released


_ts_ms: Final = attrgetter("ts_ms")


def descends(times_ms: Sequence[int]) -> bool:
    """Whether a log runs backwards: its steps in time mostly do, from its first line to its last."""
    steps = [later - earlier for earlier, later in pairwise(times_ms)]
    backwards = sum(step < 0 for step in steps)
    forwards = sum(step > 0 for step in steps)
    return len(times_ms) >= _FEWEST and times_ms[0] > times_ms[-1] and backwards > _MOSTLY * forwards
