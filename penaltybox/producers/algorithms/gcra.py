"""GCRA, the generic cell rate algorithm (ITU-T I.371): one moment per key, at which all that was taken is served."""

from __future__ import annotations

from typing import NamedTuple

from penaltybox.producers.algorithms.counting import NEVER, Keys, onward


class _Arrival(NamedTuple):
    """The theoretical arrival time in ms x limit, the key's time, and since when there has been a backlog."""

    tat: int
    time_ms: int
    since_ms: int


class Gcra:
    """One request of cost 1 per window / limit, `burst` of them early. Exact: times are in ms x limit.

    Allows exactly what a token bucket of the same size does. See `Draining` for the arguments.
    """

    def __init__(self, limit: int, window_ms: int, max_keys: int = 1_000_000, *, burst: int | None = None) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self.burst = burst or limit
        self._tolerance = self.burst * window_ms
        self._keys: Keys[_Arrival] = Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _current(self, key: str, now_ms: int) -> _Arrival:
        """The key's state; when there is no backlog the arrival time is now."""
        state = self._keys.get(key)
        time_ms = now_ms if state is None else onward(state.time_ms, now_ms, self.window_ms)
        if state is None or time_ms is None or state.tat <= time_ms * self.limit:
            time_ms = now_ms if time_ms is None else time_ms
            return _Arrival(time_ms * self.limit, time_ms, time_ms)
        return _Arrival(state.tat, time_ms, state.since_ms)

    def _put(self, key: str, state: _Arrival, now_ms: int) -> None:
        self._keys.put(key, state, -(-state.tat // self.limit), now_ms)

    def wait_ms(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        if cost > self.burst:
            return NEVER
        state = self._current(key, now_ms)
        allowed_at = state.tat + cost * self.window_ms - self._tolerance
        fits = cost == 0 or allowed_at <= state.time_ms * self.limit
        return 0 if fits else -(-allowed_at // self.limit) - now_ms

    def take(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        state = self._current(key, now_ms)
        state = state._replace(tat=state.tat + cost * self.window_ms)
        if cost:
            self._put(key, state, now_ms)
        return self._left(state)

    def _left(self, state: _Arrival) -> int:
        return (self._tolerance - state.tat + state.time_ms * self.limit) // self.window_ms

    def give(self, key: str, cost: int, taken_ms: int, now_ms: int) -> None:
        """See `Counting`; nothing when the backlog was gone since: then nothing of the cost is owed any more."""
        state = self._current(key, now_ms)
        backlog = state.tat - state.time_ms * self.limit
        if backlog == 0 or taken_ms < state.since_ms:
            return
        if backlog > cost * self.window_ms:
            self._put(key, state._replace(tat=state.tat - cost * self.window_ms), now_ms)
        else:
            self._keys.drop(key)

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        return self._left(self._current(key, now_ms))

    def reset_ms(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        state = self._current(key, now_ms)
        return max(0, -(-state.tat // self.limit) - now_ms) if state.tat > state.time_ms * self.limit else 0
