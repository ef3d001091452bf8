"""How a limit counts: fixed window, sliding window (exact), token bucket. In memory, integers only, time an argument.

All three answer the same three questions about a key: how long until `cost` fits (zero: now), take it, what is left.
Asking changes nothing, so that a caller can ask every limit of a request before it takes from any of them.

A key's time never runs backwards: a request a little older than the key's newest counts at the newest's time. One
that is older by more than a window means that the clock itself was set back; then the key starts afresh.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Limit

NEVER: Final = -1
"""The wait for a cost above the limit: it fits at no time."""

_FIRST_SWEEP: Final = 1024

KeyState = TypeVar("KeyState")


class Counting(Protocol):
    """What a limit does with keys. Costs are >= 0; a cost of 0 always fits and takes nothing."""

    limit: int
    window_ms: int

    def wait_ms(self, key: str, cost: int, now_ms: int) -> int:
        """Milliseconds until `cost` fits if nobody else takes: 0 now, `NEVER` if it is above the limit."""

    def take(self, key: str, cost: int, now_ms: int) -> int:
        """Use up `cost`, to be called only when `wait_ms` said 0; returns what remains."""

    def remaining(self, key: str, now_ms: int) -> int:
        """The largest cost that fits now."""


class _Keys(Generic[KeyState]):
    """States by key with their expiry. Expired ones are swept when the table has doubled, so memory stays flat."""

    def __init__(self, max_keys: int) -> None:
        self._entries: dict[str, tuple[int, KeyState]] = {}
        self._max_keys = max_keys
        self._sweep_at = min(_FIRST_SWEEP, max_keys)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> KeyState | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: str, state: KeyState, expire_at_ms: int, now_ms: int) -> None:
        if key not in self._entries and len(self._entries) >= self._sweep_at:
            self._sweep(now_ms)
        self._entries[key] = (expire_at_ms, state)

    def _sweep(self, now_ms: int) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry[0] > now_ms}
        excess = len(self._entries) - self._max_keys + 1
        if excess > 0:  # more live keys than room: the ones put first are let go, their counts start again
            for key in list(self._entries)[: excess + self._max_keys // 16]:
                del self._entries[key]
        self._sweep_at = min(max(_FIRST_SWEEP, 2 * len(self._entries)), self._max_keys)


def _onward(latest_ms: int, now_ms: int, window_ms: int) -> int | None:
    """The key's time now; None when the clock was set back by more than a window."""
    if now_ms >= latest_ms:
        return now_ms
    return latest_ms if latest_ms - now_ms <= window_ms else None


class FixedWindow:
    """Counts per window of the epoch. Cheap, but twice the limit can pass around a window's edge."""

    def __init__(self, limit: int, window_ms: int, max_keys: int = 1_000_000) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self._keys: _Keys[tuple[int, int]] = _Keys(max_keys)

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

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        return self.limit - self._current(key, now_ms)[1]


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
        self._keys: _Keys[_Log] = _Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _pruned(self, key: str, now_ms: int) -> tuple[_Log | None, int]:
        """The key's log without what left the window, and the key's time. What is within is (now - window, now]."""
        log = self._keys.get(key)
        if log is None or not log.entries:
            return log, now_ms
        entries = log.entries
        time_ms = _onward(entries[-1][0], now_ms, self.window_ms)
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

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        log, _ = self._pruned(key, now_ms)
        return self.limit if log is None else self.limit - log.used


class TokenBucket:
    """Holds `limit` tokens, refilled evenly at `limit` per window: bursts up to the limit, then a steady rate.

    Levels are kept in tokens x window_ms, in which `limit` is the refill of one millisecond: exact in integers.
    """

    def __init__(self, limit: int, window_ms: int, max_keys: int = 1_000_000) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self._full = limit * window_ms
        self._keys: _Keys[tuple[int, int]] = _Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _level(self, key: str, now_ms: int) -> tuple[int, int]:
        """(level, the key's time)."""
        entry = self._keys.get(key)
        if entry is None:
            return self._full, now_ms
        level, latest_ms = entry
        time_ms = _onward(latest_ms, now_ms, self.window_ms)
        if time_ms is None:
            return self._full, now_ms
        return min(self._full, level + (time_ms - latest_ms) * self.limit), time_ms

    def wait_ms(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        if cost > self.limit:
            return NEVER
        level, time_ms = self._level(key, now_ms)
        missing = cost * self.window_ms - level
        return 0 if missing <= 0 else -(-missing // self.limit) + time_ms - now_ms

    def take(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        level, time_ms = self._level(key, now_ms)
        level -= cost * self.window_ms
        if cost:
            full_at = time_ms - (level - self._full) // self.limit
            self._keys.put(key, (level, time_ms), full_at, now_ms)
        return level // self.window_ms

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        return self._level(key, now_ms)[0] // self.window_ms


def counting(limit: Limit, max_keys: int = 1_000_000) -> FixedWindow | SlidingWindow | TokenBucket:
    """The counter that a limit of a policy asks for."""
    if limit.algorithm == "fixed_window":
        return FixedWindow(limit.limit, limit.window_ms, max_keys)
    if limit.algorithm == "token_bucket":
        return TokenBucket(limit.limit, limit.window_ms, max_keys)
    return SlidingWindow(limit.limit, limit.window_ms, max_keys)
