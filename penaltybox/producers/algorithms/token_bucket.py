"""Token bucket: bursts up to its size, then a steady rate."""

from __future__ import annotations

from penaltybox.producers.algorithms.draining import Draining


class TokenBucket(Draining):
    """Holds `burst` tokens, refilled evenly at `limit` per window. The level is what is missing."""
