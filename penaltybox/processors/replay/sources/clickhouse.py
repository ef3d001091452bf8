"""Decisions and outcomes from ClickHouse, an hour of the broker's time at a query.

Subjects are stored in canonical form, so a value counts as it did; a dimension with an empty value was absent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.contracts.decoding import decode_decisions, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.subjects import decode_value
from penaltybox.processors.replay.records import SLICE, Refusals
from penaltybox.processors.replay.times import lie

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.replay.records import Entry, Window
    from penaltybox.sinks.clickhouse.client import ClickHouse

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
_DECISIONS: Final = """
SELECT toUnixTimestamp64Milli(logged_at) AS logged, id, toUnixTimestamp64Milli(ts) AS ts_ms, source, scenario, route,
       action, reason, violated, user, device, ip, api_key, others, established, status, cost, enforced, count, cached,
       sample_weight, attrs
FROM decisions FINAL
WHERE logged_at >= fromUnixTimestamp64Milli({a:Int64}) AND logged_at < fromUnixTimestamp64Milli({b:Int64})
ORDER BY logged, incarnation, kafka_partition, kafka_offset
"""
_OUTCOMES: Final = """
SELECT toUnixTimestamp64Milli(logged_at) AS logged, id, toUnixTimestamp64Milli(ts) AS ts_ms, label, subjects, ref
FROM outcomes FINAL
WHERE logged_at >= fromUnixTimestamp64Milli({a:Int64}) AND logged_at < fromUnixTimestamp64Milli({b:Int64})
ORDER BY logged, incarnation, kafka_partition, kafka_offset
"""
_SPAN: Final = """
SELECT toUnixTimestamp64Milli(min(logged_at)) AS first, toUnixTimestamp64Milli(max(logged_at)) AS last, count() AS rows
FROM (SELECT logged_at FROM decisions UNION ALL SELECT logged_at FROM outcomes)
"""
_OWN: Final = ("api_key", "user", "device", "ip")
_encode = msgspec.json.Encoder().encode


class StoredEvents:
    """What ClickHouse has of decisions and outcomes, by the broker's time, then partition and offset.

    Args:
        clickhouse: asked in a thread, and closed at the end.
        canonicaliser: judges the subjects.
        window: what the broker stamped outside of it is left out.
        labels: outcomes from after the window, too: they say who of those in it was legitimate.
    """

    unit = "records"

    def __init__(
        self, clickhouse: ClickHouse, canonicaliser: Canonicaliser, window: Window, *, labels: bool = False
    ) -> None:
        self._labels = labels
        self.title = f"ClickHouse, database {clickhouse.database}"
        self.done = 0
        self.total: int | None = None
        self.refused = Refusals()
        self.remarks: list[str] = []
        self._clickhouse = clickhouse
        self._canonicaliser = canonicaliser
        self._window = window

    async def slices(self) -> AsyncIterator[Sequence[Entry]]:
        """See `Reading.slices`."""
        try:
            (span,) = await asyncio.to_thread(self._clickhouse.rows, _SPAN)
            if not span["rows"]:
                return
            window = self._window
            first = max(span["first"], window.start_ms if window.start_ms is not None else 0)
            end = min(span["last"] + 1, window.to_ms if window.to_ms is not None else span["last"] + 1)
            if first >= end:
                self.remarks.append(lie(span["first"], span["last"]))
            self.total = max(0, end - first)
            for start in range(first, end, HOUR_MS):
                bounds = {"a": start, "b": min(end, start + HOUR_MS)}
                decisions = await asyncio.to_thread(self._clickhouse.rows, _DECISIONS, bounds)
                outcomes = await asyncio.to_thread(self._clickhouse.rows, _OUTCOMES, bounds)
                entries = sorted([*self._decisions(decisions), *self._outcomes(outcomes)], key=lambda one: one[:3])
                self.done = bounds["b"] - first
                for number in range(0, len(entries), SLICE):
                    yield entries[number : number + SLICE]
            for start in range(end, span["last"] + 1, DAY_MS) if self._labels else ():
                bounds = {"a": start, "b": start + DAY_MS}
                later = list(self._outcomes(await asyncio.to_thread(self._clickhouse.rows, _OUTCOMES, bounds)))
                if later:
                    yield later
        finally:
            await asyncio.to_thread(self._clickhouse.close)

    def _decisions(self, rows: Sequence[dict[str, Any]]) -> Iterator[Entry]:
        raws = [_encode(_decision(row)) for row in rows]
        for start in range(0, len(raws), SLICE):
            part = rows[start : start + SLICE]
            stamps = [row["logged"] for row in part]
            judged = decode_decisions(raws[start : start + SLICE], stamps, self._canonicaliser)
            for number, (row, one) in enumerate(zip(part, judged, strict=True), start):
                if isinstance(one, BadEvent):
                    self.refused.note(one, f"decision {row['id']}")
                else:
                    yield (row["logged"], 0, number, *one, row["logged"])

    def _outcomes(self, rows: Sequence[dict[str, Any]]) -> Iterator[Entry]:
        for number, row in enumerate(rows):
            subjects = dict(_subject(one) for one in row["subjects"])
            fields = {"v": 1, "id": row["id"], "ts": row["ts_ms"], "label": row["label"], "subjects": subjects}
            try:
                outcome = decode_outcome(_encode(fields), row["logged"], self._canonicaliser)
                names = self._canonicaliser.names(outcome.subjects)
            except BadEvent as error:
                self.refused.note(error, f"outcome {row['id']}")
                continue
            yield (row["logged"], 1, number, outcome, names, row["logged"])


def _subject(text: str) -> tuple[str, str]:
    """(dimension, value) of a canonical subject; an address stays as it is."""
    dimension, _, value = text.partition(":")
    return dimension, value if dimension == "ip" else decode_value(value)


def _decision(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the JSON object that it was on the wire."""
    stored = {name: row[name] for name in _OWN if row[name]} | row["others"]
    fields: dict[str, Any] = {"v": 1, "id": row["id"], "ts": row["ts_ms"]}
    fields |= {name: row[name] for name in ("source", "scenario", "action", "reason") if row[name]}
    fields |= {"violated": row["violated"], "subjects": dict(_subject(f"{one}:{stored[one]}") for one in stored)}
    fields |= {name: row[name] for name in ("established", "status", "attrs", "route") if row[name] not in (None, "")}
    fields |= {name: row[name] for name in ("cost", "enforced", "count", "cached")}
    if row["sample_weight"] > 1:
        fields["sample_rate"] = 1 / row["sample_weight"]
    return fields
