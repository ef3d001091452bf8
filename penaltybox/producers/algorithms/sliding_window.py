"""Sliding window log: when each cost was taken, so that every window is exact."""

from __future__ import annotations

from collections import deque

from penaltybox.producers.algorithms.counting import NEVER, Keys, onward


class _Log:
    """What one key took: (time, cost) oldest first, at most one entry a millisecond, and the sum."""

    __slots__ = ("entries", "used")

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int]] = deque()
        self.used = 0


class SlidingWindow:
    """A log of what was taken: at most `limit` within *every* window, exact to the millisecond.

    Memory per key: one entry per request within the window, at most min(limit, window_ms).
    """

    def __init__(self, limit: int, window_ms: int, max_keys: int = 1_000_000) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self._keys: Keys[_Log] = Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _pruned(self, key: str, now_ms: int) -> tuple[_Log | None, int]:
        """The key's log without what left the window, and the key's time. What is within is (now - window, now]."""
        log = self._keys.get(key)
        if log is None or not log.entries:
            return log, now_ms
        entries = log.entries
        time_ms = onward(entries[-1][0], now_ms, self.window_ms)
        if time_ms is None:
            entries.clear()
            log.used = 0
            return log, now_ms
        horizon = time_ms - self.window_ms
        while entries and entries[0][0] <= horizon:
            log.used -= entries.popleft()[1]
        return log, time_ms

    def wait_ms(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        if cost > self.limit:
            return NEVER
        log, _ = self._pruned(key, now_ms)
        excess = 0 if log is None or cost == 0 else log.used + cost - self.limit
        if log is None or excess <= 0:
            return 0
        freed_ms = now_ms
        for taken_ms, taken in log.entries:
            excess -= taken
            if excess <= 0:
                freed_ms = taken_ms + self.window_ms
                break
        return freed_ms - now_ms

    def take(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        log, time_ms = self._pruned(key, now_ms)
        if log is None:
            log = _Log()
        if cost == 0:
            return self.limit - log.used
        if log.entries and log.entries[-1][0] == time_ms:
            log.entries[-1] = (time_ms, log.entries[-1][1] + cost)
        else:
            log.entries.append((time_ms, cost))
        log.used += cost
        self._keys.put(key, log, time_ms + self.window_ms, now_ms)
        return self.limit - log.used

    def give(self, key: str, cost: int, taken_ms: int, now_ms: int) -> None:
        """See `Counting`; nothing when it has left the window."""
        log, _ = self._pruned(key, now_ms)
        if log is None:
            return
        for at in range(len(log.entries) - 1, -1, -1):  # what is given back was mostly taken just now
            entry_ms, taken = log.entries[at]
            if entry_ms == taken_ms:
                log.used -= min(cost, taken)
                log.entries[at] = (entry_ms, max(0, taken - cost))
            if entry_ms <= taken_ms:
                break
        while log.entries and log.entries[-1][1] == 0:
            log.entries.pop()

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        log, _ = self._pruned(key, now_ms)
        return self.limit if log is None else self.limit - log.used

    def reset_ms(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        log, _ = self._pruned(key, now_ms)
        return log.entries[-1][0] + self.window_ms - now_ms if log is not None and log.entries else 0
