"""Decisions in their own wire form, carried inside of something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.decoding import decode_decision
from penaltybox.producers.adapters.reading import Reading

if TYPE_CHECKING:
    from penaltybox.contracts.subjects import Canonicaliser

_ANY_TIME: Final = 1 << 52
_SHARED: Final = (
    *("id", "action", "subjects", "reason", "violated", "scenario", "route", "status", "enforced", "established"),
    *("limit", "window_s", "remaining", "retry_after_s", "cost", "count", "cached", "sample_rate", "attrs"),
)


def carried(raw: bytes, canonicaliser: Canonicaliser) -> Reading:
    """The reading of a decision, known by its id; its source is that of whoever reads.

    Raises:
        BadEvent: it could not be judged, and why.
    """
    decision = decode_decision(raw, _ANY_TIME, canonicaliser)
    return Reading(ts_ms=decision.ts, **{name: getattr(decision, name) for name in _SHARED})
