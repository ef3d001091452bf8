"""Leaky bucket, as a meter: drains at a fixed rate, what would overflow is refused."""

from __future__ import annotations

from penaltybox.producers.algorithms.draining import Draining


class LeakyBucket(Draining):
    """Room for `burst`, drains evenly at `limit` per window. Allows exactly what a token bucket of that size does."""
