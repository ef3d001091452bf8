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
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from penaltybox.contracts.errors import BadEvent
from penaltybox.sinks.clickhouse.columns import ColumnBuilder, Memo, claim, place_columns
from penaltybox.sinks.clickhouse.records import Batch, Decoded, decode, decode_fast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.records import Record, Table

    Key = tuple[Table, str, int]
    Month = tuple[int, int]

_DAY_MS: Final = 86_400_000
SLICE: Final = 2000
"""Records decoded and turned into columns at a time: so many fit into a processor's cache."""
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
        """Drop what is stored, decode, cut by month, build columns; the batch has at least one record.

        Raises:
            StoreUnavailable: the watermark cannot be read; nothing changed, prepare it again.
        """
        fresh = self._unstored(batch)
        skipped: Counter[str] = Counter()
        months: dict[Month, list[pa.Table]] = {}
        for start in range(0, len(fresh), SLICE):
            decoded, tables = self._slice(batch, fresh[start : start + SLICE])
            skipped.update(decoded.skipped)
            for month, table in tables:
                months.setdefault(month, []).append(table)
        parts = [pa.concat_tables(tables).combine_chunks() for tables in months.values()]
        before, end = batch.records[0].offset - 1, batch.records[-1].offset
        parts = [claim(part, before) for part in parts[:-1]] + [claim(part, end) for part in parts[-1:]]
        self._next[_key(batch)] = end + 1
        rows = sum(part.num_rows for part in parts)
        return Prepared(batch.table, parts, rows, skipped, len(batch.records) - len(fresh))

    def store(self, prepared: Prepared) -> None:
        """Insert a prepared batch; what was inserted leaves `parts`, so that a retry goes on where it failed.

        Raises:
            StoreUnavailable: not everything is known to be stored; call again with the same batch.
        """
        while prepared.parts:
            self._clickhouse.insert(prepared.table, prepared.parts[0])
            del prepared.parts[0]

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
        if self._next.get(key) != batch.records[0].offset:  # not where we left off: assigned anew, or read again
            self._stored[key] = self.watermark(*key)
        through = self._stored[key]
        if batch.records[0].offset > through:
            return batch.records
        return [record for record in batch.records if record.offset > through]

    def _slice(self, batch: Batch, records: Sequence[Record]) -> tuple[Decoded, list[tuple[Month, pa.Table]]]:
        """Some of a batch's records as rows by month."""
        decoded = decode_fast(batch.table, records)
        if decoded is not None:
            try:
                return decoded, self._tables(batch, decoded)
            except BadEvent:
                pass  # a subject that has no canonical form: find it
        decoded = decode(batch.table, records, self._canonicaliser)
        return decoded, self._tables(batch, decoded)

    def _tables(self, batch: Batch, decoded: Decoded) -> list[tuple[Month, pa.Table]]:
        return [(month, self._rows(batch, group)) for month, group in self._by_month(decoded)]

    def _by_month(self, decoded: Decoded) -> list[tuple[Month, Decoded]]:
        days = [event.ts // _DAY_MS for event in decoded.events]
        if not days:
            return []
        months = self._months
        if months[min(days)] == months[max(days)]:
            return [(months[days[0]], decoded)]
        groups: dict[Month, Decoded] = {}
        for day, event, offset, logged_ms in zip(days, *decoded[:3], strict=True):
            group = groups.setdefault(months[day], Decoded([], [], [], decoded.skipped))
            group.events.append(event)
            group.offsets.append(offset)
            group.logged_ms.append(logged_ms)
        return list(groups.items())

    def _rows(self, batch: Batch, decoded: Decoded) -> pa.Table:
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
        places = place_columns(batch.incarnation, batch.partition, decoded.offsets, decoded.logged_ms)
        return pa.table({**columns, **places})


def _key(batch: Batch) -> Key:
    return batch.table, batch.incarnation, batch.partition


def _month_of_day(day: int) -> Month:
    """Year and month (UTC) of a day since 1970: what PARTITION BY toYYYYMM cuts by."""
    date = dt.date.fromordinal(_EPOCH + day)
    return date.year, date.month
