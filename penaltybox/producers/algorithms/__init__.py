"""How a limit counts: six algorithms, in memory, integers only, time an argument.

The same ones exist as Lua files for Redis (`producers/lua/`); these are what those are tested against, and what
judges while Redis does not answer. All answer the same questions about a key: how long until `cost` fits (zero: now),
take it, what is left, when all of it is there again. Asking changes nothing, so that a caller can ask every limit of a
request before it takes from any of them.

A key's time never runs backwards: a request a little older than the key's newest counts at the newest's time. One
that is older by more than a window means that the clock itself was set back; then the key starts afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penaltybox.producers.algorithms.counting import NEVER, Counting
from penaltybox.producers.algorithms.fixed_window import FixedWindow
from penaltybox.producers.algorithms.gcra import Gcra
from penaltybox.producers.algorithms.leaky_bucket import LeakyBucket
from penaltybox.producers.algorithms.sliding_window import SlidingWindow
from penaltybox.producers.algorithms.sliding_window_counter import SlidingWindowCounter
from penaltybox.producers.algorithms.token_bucket import TokenBucket

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Limit

__all__ = [
    "NEVER",
    "Counting",
    "FixedWindow",
    "Gcra",
    "LeakyBucket",
    "SlidingWindow",
    "SlidingWindowCounter",
    "TokenBucket",
    "counting",
]


def counting(limit: Limit, max_keys: int = 1_000_000) -> Counting:
    """The counter that a limit of a policy asks for; at most `max_keys` live keys, the oldest are let go."""
    quota, window_ms = limit.limit, limit.window_ms
    match limit.algorithm:
        case "fixed_window":
            return FixedWindow(quota, window_ms, max_keys)
        case "sliding_window":
            return SlidingWindow(quota, window_ms, max_keys)
        case "sliding_window_counter":
            return SlidingWindowCounter(quota, window_ms, max_keys, slots=limit.slots)
        case "token_bucket":
            return TokenBucket(quota, window_ms, max_keys, burst=limit.burst)
        case "leaky_bucket":
            return LeakyBucket(quota, window_ms, max_keys, burst=limit.burst)
        case "gcra":
            return Gcra(quota, window_ms, max_keys, burst=limit.burst)
