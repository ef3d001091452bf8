"""Files of blocks: CSV with a header, or JSON lines."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from penaltybox.contracts.durations import LONGEST_MS
from penaltybox.contracts.errors import BadEvent, ConfigurationError, PenaltyboxError, cause, shown
from penaltybox.processors.replay.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from penaltybox.sinks.blocklist import Block

COLUMNS: Final = ("subject", "action", "until", "rung", "rule", "penalty")
MOST_LINE_CHARS: Final = 16_384
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_PERMANENT: Final = frozenset({"", "permanent", "never", "null", "none"})


class BlockLine(NamedTuple):
    """A line of a file: whom to deny, until when (ms; None is for good), on which rung (empty: not said)."""

    number: int
    subject: str
    until: int | None
    rung: str


class WrongLine(NamedTuple):
    """A line that is no block to import, and why."""

    number: int
    says: str


def write_csv(file: TextIO, blocks: Iterable[Block], end: Callable[[int | None], str]) -> None:
    """CSV with a header; no cell can be taken for a formula by a spreadsheet."""
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for one in blocks:
        cells = (one.subject, one.kind, end(one.until), one.rung, one.rule, one.penalty)
        writer.writerow(f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells)


def write_lines(file: TextIO, blocks: Iterable[Block]) -> None:
    """A JSON object a line; `until` in ms, null is permanent."""
    for one in blocks:
        values = (one.subject, one.kind, one.until, one.rung, one.rule, one.penalty)
        file.write(json.dumps(dict(zip(COLUMNS, values, strict=True))) + "\n")


def read_blocks(file: Path, name: Callable[[str], str], now_ms: int) -> Iterator[BlockLine | WrongLine]:
    """Every line of a file of blocks, in order. Which form it has, its first character says.

    Args:
        file: UTF-8 text.
        name: canonical name of a subject; raises what it thinks of it.
        now_ms: what ended before it is told as wrong.

    Raises:
        ConfigurationError: no text, or CSV without a header that has a column `subject`.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            first = opened.read(1)
            opened.seek(0)
            rows = _json_rows(opened) if first == "{" else _csv_rows(opened, str(file))
            for number, row in rows:
                yield _line(number, row, name, now_ms)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {cause(error)}") from error


def _line(number: int, row: Any, name: Callable[[str], str], now_ms: int) -> BlockLine | WrongLine:
    if isinstance(row, str):
        return WrongLine(number, row)
    if not isinstance(row, dict) or not isinstance(row.get("subject"), str):
        return WrongLine(number, "wanted a field subject, e.g. user:10086")
    action = row.get("action") or "deny"
    if action != "deny":
        return WrongLine(number, f"action {shown(action)}: only denials are imported; rules ask for challenges")
    try:
        until = _until(row.get("until"), now_ms)
        return BlockLine(number, name(_plain(row["subject"])), until, _plain(str(row.get("rung") or "")))
    except (PenaltyboxError, BadEvent) as error:
        return WrongLine(number, str(error))


def _until(value: Any, now_ms: int) -> int | None:
    text = str(value if value is not None else "").strip()
    if text.lower() in _PERMANENT:
        return None
    until = parse_time(text, "until", now_ms)
    if until <= now_ms:
        raise ConfigurationError(f"until: {text} has passed")
    if until > now_ms + LONGEST_MS:
        raise ConfigurationError(f"until: {shown(text)} is over ten years away; permanent, if that is meant")
    return until


def _plain(cell: str) -> str:
    """Without the quote that `write_csv` puts before what looks like a formula."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def _json_rows(file: TextIO) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if len(line) > MOST_LINE_CHARS:
            yield number, f"longer than {MOST_LINE_CHARS:,} characters"
        elif line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"no JSON object: {error}"


def _csv_rows(file: TextIO, name: str) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(file)
    try:
        header = [cell.strip().lower() for cell in next(reader, [])]
        if "subject" not in header:
            raise ConfigurationError(
                f"{name}: its first line is {shown(','.join(header))}, wanted a header with a column subject, such as "
                f"{','.join(COLUMNS)}; or JSON objects, one a line"
            )
        for row in reader:
            if row:
                yield reader.line_num, dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise ConfigurationError(f"{name}:{reader.line_num}: no CSV: {error}") from error
