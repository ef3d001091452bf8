"""A level that rises by what is taken and drains evenly: what the buckets and GCRA have in common."""

from __future__ import annotations

from typing import NamedTuple

from penaltybox.producers.algorithms.counting import NEVER, Keys, onward


class _Level(NamedTuple):
    """A key's level at its time, and since when it has not been empty."""

    level: int
    time_ms: int
    since_ms: int


class Draining:
    """Room for `burst`, drains at `limit` per window.

    Levels are kept in cost x window_ms, of which `limit` drain in a millisecond: exact in integers.

    Args:
        limit: cost that drains per window.
        window_ms: how long that takes.
        max_keys: bound of live keys.
        burst: what fits at once into an empty one; `limit` by default.
    """

    def __init__(self, limit: int, window_ms: int, max_keys: int = 1_000_000, *, burst: int | None = None) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self.burst = burst or limit
        self._full = self.burst * window_ms
        self._keys: Keys[_Level] = Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _current(self, key: str, now_ms: int) -> _Level:
        state = self._keys.get(key)
        if state is None:
            return _Level(0, now_ms, now_ms)
        time_ms = onward(state.time_ms, now_ms, self.window_ms)
        if time_ms is None:
            return _Level(0, now_ms, now_ms)
        level = state.level - (time_ms - state.time_ms) * self.limit
        return _Level(level, time_ms, state.since_ms) if level > 0 else _Level(0, time_ms, time_ms)

    def _drained_ms(self, level: int) -> int:
        return -(-level // self.limit)

    def _put(self, key: str, state: _Level, now_ms: int) -> None:
        self._keys.put(key, state, state.time_ms + self._drained_ms(state.level), now_ms)

    def wait_ms(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        if cost > self.burst:
            return NEVER
        state = self._current(key, now_ms)
        excess = state.level + cost * self.window_ms - self._full
        return 0 if cost == 0 or excess <= 0 else self._drained_ms(excess) + state.time_ms - now_ms

    def take(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        state = self._current(key, now_ms)
        level = state.level + cost * self.window_ms
        if cost:
            self._put(key, _Level(level, state.time_ms, state.since_ms), now_ms)
        return (self._full - level) // self.window_ms

    def give(self, key: str, cost: int, taken_ms: int, now_ms: int) -> None:
        """See `Counting`; nothing when it has been empty since: then nothing of the cost is owed any more."""
        state = self._current(key, now_ms)
        if state.level == 0 or taken_ms < state.since_ms:
            return
        level = state.level - cost * self.window_ms
        if level > 0:
            self._put(key, _Level(level, state.time_ms, state.since_ms), now_ms)
        else:
            self._keys.drop(key)

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        return (self._full - self._current(key, now_ms).level) // self.window_ms

    def reset_ms(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        state = self._current(key, now_ms)
        return state.time_ms + self._drained_ms(state.level) - now_ms if state.level else 0
