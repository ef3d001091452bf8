"""What every algorithm answers about a key, the table its states live in, and a key's time."""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

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

    def give(self, key: str, cost: int, taken_ms: int, now_ms: int) -> None:
        """Give back a cost that was taken at `taken_ms`: as much of it as still counts."""

    def remaining(self, key: str, now_ms: int) -> int:
        """The largest cost that fits now."""

    def reset_ms(self, key: str, now_ms: int) -> int:
        """Milliseconds until all of the quota is there again if nobody takes; 0 when it is."""

    def __len__(self) -> int:
        """How many keys are in memory."""


class Keys(Generic[KeyState]):
    """States by key with their expiry. Expired ones are swept when the table has doubled, so memory stays flat."""

    def __init__(self, max_keys: int) -> None:
        self._entries: dict[str, tuple[int, KeyState]] = {}
        self._max_keys = max_keys
        self._sweep_at = min(_FIRST_SWEEP, max_keys)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> KeyState | None:
        """The state that was put, expired or not."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: str, state: KeyState, expire_at_ms: int, now_ms: int) -> None:
        """Keep a state until `expire_at_ms` at least, unless there are too many live ones."""
        if key not in self._entries and len(self._entries) >= self._sweep_at:
            self._sweep(now_ms)
        self._entries[key] = (expire_at_ms, state)

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._entries.pop(key, None)

    def _sweep(self, now_ms: int) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry[0] > now_ms}
        excess = len(self._entries) - self._max_keys + 1
        if excess > 0:  # more live keys than room: the ones put first are let go, their counts start again
            for key in list(self._entries)[: excess + self._max_keys // 16]:
                del self._entries[key]
        self._sweep_at = min(max(_FIRST_SWEEP, 2 * len(self._entries)), self._max_keys)


def onward(latest_ms: int, now_ms: int, window_ms: int) -> int | None:
    """The key's time now; None when the clock was set back by more than a window."""
    if now_ms >= latest_ms:
        return now_ms
    return latest_ms if latest_ms - now_ms <= window_ms else None
