"""Parquet files: a column of JSON, or a column for each field."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import encode
from tests.processors.replay.traffic import households, run, write

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = households(1500)
FIELDS = ("id", "ts", "source", "scenario", "action", "reason", "violated", "established", "route", "enforced", "count")

NOBODY = {"user": None, "device": None, "ip": None}


def rows() -> list[dict[str, Any]]:
    return [{name: getattr(event, name) for name in FIELDS} for event in EVENTS]


def saved(path: Path, columns: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    pq.write_table(pa.Table.from_pylist(columns, schema), path, row_group_size=400)
    return path


def test_the_same_as_lines(tmp_path: Path) -> None:
    """JSON in a column, a struct of subjects, a map of them, a column for each: all give what the lines give."""
    expected = run(write(tmp_path / "d.jsonl", EVENTS))
    subjects = [dict(event.subjects) for event in EVENTS]
    mapped = [row | {"subjects": list(one.items())} for row, one in zip(rows(), subjects, strict=True)]
    schema = pa.schema(
        [pa.field("subjects", pa.map_(pa.string(), pa.string()))]
        + [pa.Table.from_pylist(rows()).schema.field(name) for name in FIELDS]
    )
    files = [
        saved(tmp_path / "text", [{"value": encode(event).decode()} for event in EVENTS]),
        saved(tmp_path / "bytes", [{"raw": encode(event)} for event in EVENTS]),
        saved(tmp_path / "struct", [row | {"subjects": one} for row, one in zip(rows(), subjects, strict=True)]),
        saved(tmp_path / "map", mapped, schema),
        saved(tmp_path / "columns", [row | NOBODY | one for row, one in zip(rows(), subjects, strict=True)]),
    ]
    for file in files:
        result = run(file)
        assert (result.result_hash, result.decisions) == (expected.result_hash, expected.decisions), file.name
        assert result.refused == {}


def test_timestamps(tmp_path: Path) -> None:
    """A column of timestamps is UTC, with or without saying so."""
    expected = run(write(tmp_path / "d.jsonl", EVENTS))
    for zone in (UTC, None):
        made = [
            row
            | NOBODY
            | dict(event.subjects)
            | {"ts": datetime.fromtimestamp(event.ts / 1000, UTC).replace(tzinfo=zone)}
            for row, event in zip(rows(), EVENTS, strict=True)
        ]
        assert run(saved(tmp_path / "t.parquet", made)).result_hash == expected.result_hash


def test_other_files(tmp_path: Path) -> None:
    """Columns that say nothing, and damaged files, are sentences; a row that is no decision is counted."""
    with pytest.raises(ConfigurationError, match="got the columns a; wanted a column value, raw, json"):
        run(saved(tmp_path / "other", [{"a": 1}]))
    whole = saved(tmp_path / "whole", [{"value": encode(event)} for event in EVENTS]).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-3000])
    with pytest.raises(ConfigurationError, match="cut: cannot be read"):
        run(tmp_path / "cut")
    (tmp_path / "torn").write_bytes(whole[:2000] + bytes(3000) + whole[5000:])
    with pytest.raises(ConfigurationError, match="torn: cannot be read"):
        run(tmp_path / "torn")
    with pytest.raises(ConfigurationError, match="column value is int64, wanted text or bytes"):
        run(saved(tmp_path / "numbers", [{"value": 1}]))
    bad = [{"value": encode(EVENTS[0])}, {"value": msgspec.json.encode({"v": 1})}, {"value": None}]
    assert run(saved(tmp_path / "bad", bad)).refused == {"wrong_type": 1}


@pytest.mark.parametrize(
    "column",
    [
        {"subjects": "user"}, {"subjects": 3}, {"subjects": [1, 2]}, {"subjects": {"user": 3}}, {"ts": "now"},
        {"attrs": "x"}, {"attrs": [3]}, {"action": 1.5}, {"violated": {"a": 1}}, {"id": {"a": [1]}},
    ],
    ids=str,
)  # fmt: skip
def test_rows_that_nobody_would_write(tmp_path: Path, column: dict[str, Any]) -> None:
    """A column of another type than its field is refused, row by row, and ends nothing."""
    made = [row | {"subjects": dict(event.subjects)} | column for row, event in zip(rows()[:5], EVENTS, strict=False)]
    good = saved(tmp_path / "good", [{"value": encode(EVENTS[0])}])
    assert run(good).decisions == 1
    with pytest.raises(ConfigurationError, match="none of its 5 records can be judged"):
        run(saved(tmp_path / "bad", made))


def test_times_beyond_the_calendar_and_lines_within_json(tmp_path: Path) -> None:
    """A timestamp that Python has no date for is refused; JSON in a cell may have line ends."""
    far = [row | dict(event.subjects) for row, event in zip(rows()[:2], EVENTS, strict=False)]
    table = pa.Table.from_pylist(far)
    place = table.schema.get_field_index("ts")
    late = pa.array([10**15, far[1]["ts"]], pa.int64()).cast(pa.timestamp("ms"))
    pq.write_table(table.set_column(place, "ts", late), tmp_path / "far")
    assert (run(tmp_path / "far").decisions, run(tmp_path / "far").refused) != (2, {})
    pretty = [{"value": msgspec.json.format(encode(event), indent=2)} for event in EVENTS]
    expected = run(write(tmp_path / "d.jsonl", EVENTS))
    result = run(saved(tmp_path / "pretty", pretty))
    assert (result.result_hash, result.refused) == (expected.result_hash, {})
