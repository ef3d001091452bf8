"""Fixed window: a count per window of the epoch."""

from __future__ import annotations

from penaltybox.producers.algorithms.counting import NEVER, Keys


class FixedWindow:
    """Counts per window of the epoch. Cheap, but twice the limit can pass around a window's edge."""

    def __init__(self, limit: int, window_ms: int, max_keys: int = 1_000_000) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self._keys: Keys[tuple[int, int]] = Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _current(self, key: str, now_ms: int) -> tuple[int, int]:
        """(start of the window that counts now, cost taken in it)."""
        start = now_ms - now_ms % self.window_ms
        start_seen, used = self._keys.get(key) or (start, 0)
        if start_seen == start + self.window_ms:
            return start_seen, used  # a little behind: counts in the key's newest window
        return start, used if start_seen == start else 0

    def wait_ms(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        if cost > self.limit:
            return NEVER
        start, used = self._current(key, now_ms)
        return 0 if cost == 0 or used + cost <= self.limit else start + self.window_ms - now_ms

    def take(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        start, used = self._current(key, now_ms)
        if cost:
            self._keys.put(key, (start, used + cost), start + self.window_ms, now_ms)
        return self.limit - used - cost

    def give(self, key: str, cost: int, taken_ms: int, now_ms: int) -> None:
        """See `Counting`; nothing when its window is over."""
        start, used = self._current(key, now_ms)
        if used and start == taken_ms - taken_ms % self.window_ms:
            self._keys.put(key, (start, max(0, used - cost)), start + self.window_ms, now_ms)

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        return self.limit - self._current(key, now_ms)[1]

    def reset_ms(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        start, used = self._current(key, now_ms)
        return start + self.window_ms - now_ms if used else 0
