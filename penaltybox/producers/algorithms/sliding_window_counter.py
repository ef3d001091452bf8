"""Sliding window counter: the window cut into slots, one count each."""

from __future__ import annotations

from collections import deque

from penaltybox.producers.algorithms.counting import NEVER, Keys, onward


class _Slots:
    """What one key took: (number of the slot, cost) oldest first, and the sum."""

    __slots__ = ("counts", "used")

    def __init__(self) -> None:
        self.counts: deque[tuple[int, int]] = deque()
        self.used = 0


class SlidingWindowCounter:
    """At most `limit` within *every* window, as the log, in the memory of `slots` + 1 counts.

    The window is cut into slots of `width` = ceil(window_ms / slots) ms. A slot counts in full until its last
    millisecond has left the window. The error bound, where the log is exact:

    - *Nothing too much.* No window holds more than `limit`: whatever was taken in (now - window, now] is in a slot
      whose last millisecond is in it too, or after it, so it still counts.
    - *Late by less than a slot.* What was taken at t counts until (its slot's last millisecond) + window, which is at
      most t + window + width - 1: it is free at most width - 1 ms later than in the log. So a request is refused only
      if the log of a window of window + width - 1 ms would refuse it as well.
    - *Rate.* Who is refused all the time takes `limit` in each window + width - 1 ms. As width - 1 < window / slots,
      that is more than slots / (slots + 1) of the limit's rate.
    """

    def __init__(self, limit: int, window_ms: int, max_keys: int = 1_000_000, *, slots: int = 60) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self.width_ms = -(-window_ms // slots)
        self._keys: Keys[_Slots] = Keys(max_keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _current(self, key: str, now_ms: int) -> tuple[_Slots | None, int]:
        """The key's slots without those that left the window, and the number of the slot that counts now."""
        state = self._keys.get(key)
        if state is None or not state.counts:
            return state, now_ms // self.width_ms
        time_ms = onward(state.counts[-1][0] * self.width_ms, now_ms, self.window_ms)
        if time_ms is None:
            state.counts.clear()
            state.used = 0
            return state, now_ms // self.width_ms
        while state.counts and self._end_ms(state.counts[0][0]) <= time_ms:
            state.used -= state.counts.popleft()[1]
        return state, time_ms // self.width_ms

    def _end_ms(self, slot: int) -> int:
        """When a slot counts no longer: its last millisecond has left the window."""
        return (slot + 1) * self.width_ms - 1 + self.window_ms

    def wait_ms(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        if cost > self.limit:
            return NEVER
        state, _ = self._current(key, now_ms)
        excess = 0 if state is None or cost == 0 else state.used + cost - self.limit
        if state is None or excess <= 0:
            return 0
        freed_ms = now_ms
        for slot, taken in state.counts:
            excess -= taken
            if excess <= 0:
                freed_ms = self._end_ms(slot)
                break
        return freed_ms - now_ms

    def take(self, key: str, cost: int, now_ms: int) -> int:
        """See `Counting`."""
        state, slot = self._current(key, now_ms)
        if state is None:
            state = _Slots()
        if cost == 0:
            return self.limit - state.used
        if state.counts and state.counts[-1][0] == slot:
            state.counts[-1] = (slot, state.counts[-1][1] + cost)
        else:
            state.counts.append((slot, cost))
        state.used += cost
        self._keys.put(key, state, self._end_ms(slot), now_ms)
        return self.limit - state.used

    def give(self, key: str, cost: int, taken_ms: int, now_ms: int) -> None:
        """See `Counting`; nothing when its slot has left the window."""
        state, _ = self._current(key, now_ms)
        if state is None:
            return
        given = taken_ms // self.width_ms
        for at, (slot, taken) in enumerate(state.counts):
            if slot == given:
                state.used -= min(cost, taken)
                state.counts[at] = (slot, max(0, taken - cost))

    def remaining(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        state, _ = self._current(key, now_ms)
        return self.limit if state is None else self.limit - state.used

    def reset_ms(self, key: str, now_ms: int) -> int:
        """See `Counting`."""
        state, _ = self._current(key, now_ms)
        return self._end_ms(state.counts[-1][0]) - now_ms if state is not None and state.used else 0
