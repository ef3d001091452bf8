"""Decisions and outcomes from a Parquet file: a column of their JSON, or a column for each field.

The JSON is in a column `value`, `raw` or `json`. Else the columns are the fields of a decision by name, with `subjects`
a map or a struct, or the dimensions `user`, `device`, `ip`, `api_key`, `login_name` as columns of their own. A null is
an absent field; a timestamp in `ts` is taken as UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision
from penaltybox.processors.replay.records import SLICE
from penaltybox.processors.replay.sources.lines import Lines, unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.replay.records import Entry, Window

MAGIC: Final = b"PAR1"
_JSON: Final = ("value", "raw", "json")
_DIMENSIONS: Final = ("api_key", "user", "device", "login_name", "ip")
_FIELDS: Final = frozenset(Decision.__struct_fields__)
_encode = msgspec.json.Encoder().encode


class Parquet(Lines):
    """A Parquet file; its rows are read in their order as lines of JSON are.

    Args:
        path: the file.
        canonicaliser: judges the subjects.
        window: rows whose own `ts` lies outside are left out.
        engine: as for `TopicSource`.
    """

    unit = "records"

    def __init__(
        self, path: Path, canonicaliser: Canonicaliser, window: Window, *, engine: Engine | None = None
    ) -> None:
        super().__init__(path, canonicaliser, window, engine=engine)
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, error) from error
        names = self._file.schema_arrow.names
        self._column = next((name for name in _JSON if name in names), "")
        if not self._column and not {"id", "ts", "action"} <= set(names):
            raise ConfigurationError(
                f"--source {path}: got the columns {', '.join(names[:12])}; wanted a column {', '.join(_JSON)} with "
                "JSON, or the fields of a decision by name (at least id, ts, action and subjects)."
            )
        if self._column and not _is_text(kind := self._file.schema_arrow.field(self._column).type):
            raise ConfigurationError(
                f"--source {path}: column {self._column} is {kind}, wanted text or bytes with JSON."
            )
        self.total = self._file.metadata.num_rows

    async def slices(self) -> AsyncIterator[Sequence[Entry]]:
        """See `Reading.slices`."""
        try:
            for batch in self._file.iter_batches(batch_size=SLICE):
                entries = self._entries(self._lines(batch))
                self.done += batch.num_rows
                if entries:
                    yield entries
            if self._after:
                yield self._labels()
            self._tell_left_out()
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self.title, error) from error
        finally:
            self._file.close()

    def _lines(self, batch: Any) -> list[bytes]:
        if self._column:
            values = batch.column(self._column).to_pylist()
            return [value.encode() if isinstance(value, str) else value or b"" for value in values]
        return [_line(row) for row in _rows(batch)]


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests) or pa.types.is_null(kind)


def _rows(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch; a cell that Python has no value for (a time of the year 30000) is its text."""
    try:
        return batch.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        return [{name: _cell(batch.column(name)[at]) for name in batch.schema.names} for at in range(batch.num_rows)]


def _cell(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return str(getattr(scalar, "value", "unreadable"))


def _line(row: dict[str, Any]) -> bytes:
    """A row as a line; one that no decision can be made of is the text of why not, which is refused and counted."""
    try:
        return _encode(_event(row))
    except (TypeError, ValueError, OverflowError, OSError) as error:
        return _encode(str(error))


def _event(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the JSON object that it would be on the wire; what is no field is left out."""
    event = {"v": 1}
    event |= {name: row[name] for name in row if name in _FIELDS and row[name] not in (None, [], "")}
    subjects = row.get("subjects")
    if subjects is None:
        subjects = {name: row[name] for name in _DIMENSIONS if row.get(name)}
    for name, value in (("subjects", subjects), ("attrs", row.get("attrs"))):
        if value is not None:
            event[name] = {key: one for key, one in dict(value).items() if one is not None}  # type: ignore[assignment]
    when = row.get("ts")
    if isinstance(when, datetime):
        event["ts"] = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    return event
