"""The one place that reads the wall clock. Everything else takes time as an argument."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Wall-clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - this is the named edge
