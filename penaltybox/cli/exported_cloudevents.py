"""Records as CloudEvents 1.0 in JSON (structured mode)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from penaltybox.contracts.events import Decision, Outcome, Penalty
from penaltybox.contracts.subjects import most_specific
from penaltybox.producers.adapters.cloudevents import DECISION, PENALTY, REQUIRED

if TYPE_CHECKING:
    from penaltybox.contracts.subjects import Canonicaliser

OUTCOME: Final = "penaltybox.outcome.v1"
_SOURCE: Final = "/penaltybox"


def cloud_event(record: Decision | Outcome | Penalty, canonicaliser: Canonicaliser) -> dict[str, Any]:
    """The record as the data of an event. Its id is the record's, so an event that comes twice is the same event.

    ``partitionkey`` is the documented extension for brokers: all of a subject in one partition.
    """
    if isinstance(record, Penalty):
        kind, source, subject = PENALTY, _SOURCE, record.subject
    else:
        kind = DECISION if isinstance(record, Decision) else OUTCOME
        source = f"{_SOURCE}/{quote(record.source, safe='/:@-._~')}" if isinstance(record, Decision) else _SOURCE
        dimension = most_specific(record.subjects)
        subject = canonicaliser.subject(dimension, record.subjects[dimension])
    return {
        "specversion": "1.0",
        "id": record.id,
        "source": source,
        "type": kind,
        "subject": subject,
        "time": moment(record.ts),
        "datacontenttype": "application/json",
        "partitionkey": subject,
        "data": msgspec.to_builtins(record),
    }


def missing(event: dict[str, Any]) -> list[str]:
    """The attributes that CloudEvents requires and the event lacks."""
    return [name for name in REQUIRED if not isinstance(event.get(name), str) or not event[name]]


def moment(ts_ms: int) -> str:
    """``2026-05-17T10:05:03.123Z``."""
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
