"""Counts over time in a bounded number of equal buckets, however long the time is."""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 120
_FIRST_MS: Final = 1_000


class Timeline:
    """Series of counts by time. The width of a bucket doubles whenever there would be too many.

    Args:
        series: their names.
    """

    def __init__(self, series: tuple[str, ...]) -> None:
        self.bucket_ms = _FIRST_MS
        self._counts: dict[str, dict[int, float]] = {name: {} for name in series}
        self._first: int | None = None
        self._last = 0

    def add(self, series: str, ts: int, amount: float) -> None:
        """Count `amount` at time `ts` (ms)."""
        if self._first is None:
            self._first = self._last = ts
        self._first, self._last = min(self._first, ts), max(self._last, ts)
        while self._last // self.bucket_ms - self._first // self.bucket_ms >= BUCKETS:
            self._widen()
        counts = self._counts[series]
        bucket = ts // self.bucket_ms
        counts[bucket] = counts.get(bucket, 0.0) + amount

    def _widen(self) -> None:
        self.bucket_ms *= 2
        for name, counts in self._counts.items():
            wider: dict[int, float] = {}
            for bucket, amount in counts.items():
                wider[bucket // 2] = wider.get(bucket // 2, 0.0) + amount
            self._counts[name] = wider

    @property
    def start_ms(self) -> int:
        """Where the first bucket begins."""
        return 0 if self._first is None else self._first // self.bucket_ms * self.bucket_ms

    def values(self, series: str) -> list[int]:
        """The counts of all buckets in their order."""
        if self._first is None:
            return []
        span = range(self._first // self.bucket_ms, self._last // self.bucket_ms + 1)
        return [round(self._counts[series].get(bucket, 0.0)) for bucket in span]
