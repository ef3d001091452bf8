"""Writing to ClickHouse so that an event is one row, whatever is delivered again.

Two lines of defence. In front a watermark per (topic incarnation, partition): what the table says it holds is dropped
before the insert. Behind it the tables themselves: their sorting keys end in the event id and queries read FINAL. The
second alone makes the numbers right; the first saves the work.

A row carries `stored_through`: with it in the table, every record of its partition up to that offset is stored. One
insert is one partition of one topic and one month, hence one part, hence all or nothing; where a batch touches several
months, only the insert that comes last claims the batch's end. So a crash between two inserts repeats, and never skips.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from penaltybox.sinks.clickhouse.columns import ColumnBuilder, Memo, Place, place_columns
from penaltybox.sinks.clickhouse.records import Batch, Decoded, decode

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.records import Record, Table

    Key = tuple[Table, str, int]

_DAY_MS: Final = 86_400_000
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()


class Prepared(NamedTuple):
    """A batch ready to insert: one Arrow table per month, in the order in which they must be inserted.

    Attributes:
        table: where they go.
        parts: rows by month.
        rows: how many in all.
        skipped: records that could not be judged, by reason.
        repeated: records that were stored already.
    """

    table: Table
    parts: list[pa.Table]
    rows: int
    skipped: Counter[str]
    repeated: int


class Writer:
    """Prepares and stores batches. `prepare` computes, `store` waits: each may have a thread of its own.

    Batches of a partition must be prepared, and stored, in the order of their offsets.

    Args:
        clickhouse: the database, migrated.
        canonicaliser: judges subjects as the publishers' settings say.
    """

    def __init__(self, clickhouse: ClickHouse, canonicaliser: Canonicaliser) -> None:
        self._clickhouse = clickhouse
        self._canonicaliser = canonicaliser
        self._builder = ColumnBuilder(canonicaliser)
        self._next: dict[Key, int] = {}
        self._stored: dict[Key, int] = {}
        self._months = Memo(_month_of_day)

    def prepare(self, batch: Batch) -> Prepared:
        """Drop what is stored, decode, cut by month, build columns.

        Raises:
            StoreUnavailable: the watermark cannot be read; nothing changed, prepare it again.
        """
        fresh = self._unstored(batch)
        decoded = decode(batch.table, fresh, self._canonicaliser)
        groups = self._by_month(decoded)
        parts = []
        for number, group in enumerate(groups, 1):
            last = number == len(groups)
            through = batch.records[-1].offset if last else batch.records[0].offset - 1
            parts.append(self._columns(batch, group, through))
        self._next[_key(batch)] = batch.records[-1].offset + 1 if batch.records else 0
        return Prepared(batch.table, parts, len(decoded.events), decoded.skipped, len(batch.records) - len(fresh))

    def store(self, prepared: Prepared) -> None:
        """Insert a prepared batch; what was inserted leaves `parts`, so that a retry goes on where it failed.

        Raises:
            StoreUnavailable: not everything is known to be stored; call again with the same batch.
        """
        while prepared.parts:
            self._clickhouse.insert(prepared.table, prepared.parts[0])
            del prepared.parts[0]

    def forget(self) -> None:
        """Read watermarks anew: partitions were taken or given away."""
        self._next.clear()
        self._stored.clear()

    def watermark(self, table: Table, incarnation: str, partition: int) -> int:
        """The offset up to which everything of a partition is stored, -1 when nothing is.

        Raises:
            StoreUnavailable: ClickHouse does not answer.
        """
        found = self._clickhouse.rows(
            f"SELECT max(stored_through) AS through FROM {table} "  # noqa: S608 - one of four names
            "WHERE incarnation = {incarnation:String} AND kafka_partition = {partition:Int32} "
            "GROUP BY incarnation, kafka_partition",
            {"incarnation": incarnation, "partition": partition},
        )
        return int(found[0]["through"]) if found else -1

    def _unstored(self, batch: Batch) -> Sequence[Record]:
        key = _key(batch)
        if not batch.records:
            return []
        if self._next.get(key) != batch.records[0].offset:  # not where we left off: assigned anew, or read again
            self._stored[key] = self.watermark(*key)
        through = self._stored[key]
        if batch.records[0].offset > through:
            return batch.records
        return [record for record in batch.records if record.offset > through]

    def _by_month(self, decoded: Decoded) -> list[Decoded]:
        days = [event.ts // _DAY_MS for event in decoded.events]
        if not days:
            return []
        months = self._months
        if months[min(days)] == months[max(days)]:
            return [decoded]
        groups: dict[tuple[int, int], Decoded] = {}
        for day, event, offset, logged_ms in zip(days, *decoded[:3], strict=True):
            group = groups.setdefault(months[day], Decoded([], [], [], decoded.skipped))
            group.events.append(event)
            group.offsets.append(offset)
            group.logged_ms.append(logged_ms)
        return list(groups.values())

    def _columns(self, batch: Batch, decoded: Decoded, stored_through: int) -> pa.Table:
        place = Place(batch.incarnation, batch.partition, stored_through)
        columns: dict[str, Any]
        match batch.table:
            case "decisions":
                columns = self._builder.decisions(decoded.events)
            case "outcomes":
                columns = self._builder.outcomes(decoded.events)
            case "penalties":
                columns = self._builder.penalties(decoded.events)
            case "dead_letters":
                columns = self._builder.dead_letters(decoded.events, batch.incarnation)
        return pa.table({**columns, **place_columns(place, decoded.offsets, decoded.logged_ms)})


def _key(batch: Batch) -> Key:
    return batch.table, batch.incarnation, batch.partition


def _month_of_day(day: int) -> tuple[int, int]:
    """Year and month (UTC) of a day since 1970: what PARTITION BY toYYYYMM cuts by."""
    date = dt.date.fromordinal(_EPOCH + day)
    return date.year, date.month
