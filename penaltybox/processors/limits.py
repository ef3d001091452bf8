"""Sizes and times of a worker."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Sizes and times of a worker.

    Attributes:
        subjects: states kept in memory.
        linger_s: how long changes wait for company before they are written; a new block does not wait.
        slice: records stepped before the event loop gets a turn.
        chunk: subjects in one write, which the store sends as several calls. The event loop gets to the answer only
            between two slices, so smaller ones have writing hold up stepping; what is urgent waits for one of them.
        records: most records in an open cycle; stepping waits behind it.
        sweep_age_ms: outboxes older than this are told by whoever finds them.
        sweep: most of them at a time; if there may be more, an idle worker goes on at once, another after a second.
    """

    subjects: int = 200_000
    linger_s: float = 0.05
    slice: int = 1000
    chunk: int = 2000
    records: int = 20_000
    sweep_age_ms: int = 2000
    sweep: int = 1000
