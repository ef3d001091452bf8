"""`--from` and `--to`: times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final

from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError, shown

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MILLIS: Final = re.compile(r"\d{12,14}", re.ASCII)
_WANTED: Final = (
    "wanted a time with its zone (2026-03-01T09:00:00Z, 2026-03-01T10:00+01:00), a date (2026-03-01, from midnight "
    "UTC), milliseconds since the epoch, now, or how long ago, up to ten years (-90m, -2h, -7d)"
)


def parse_time(text: str, where: str, now_ms: int) -> int:
    """Milliseconds since the epoch of a time as a person types it.

    Args:
        text: see the message below.
        where: the option, for the message.
        now_ms: wall clock, which relative times count back from.

    Raises:
        ConfigurationError: it is of no known form, or has no zone.
    """
    given = text.strip()
    if given == "now":
        return now_ms
    if given.startswith("-"):
        return now_ms - _ago(given[1:], where, text)
    if _MILLIS.fullmatch(given):
        return int(given)
    try:
        if _DATE.fullmatch(given):
            day = date.fromisoformat(given)
            when = datetime(day.year, day.month, day.day, tzinfo=UTC)
        else:
            when = datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigurationError(f"{where}: got {shown(text)}, {_WANTED}.") from error
    if when.tzinfo is None and ":" not in given:
        raise ConfigurationError(f"{where}: got {shown(text)}, {_WANTED}.")
    if when.tzinfo is None:
        raise ConfigurationError(
            f"{where}: got {shown(text)}, which has no zone. Add Z for UTC, or the zone's offset: {given}Z."
        )
    if _ms(when) < 0:
        raise ConfigurationError(f"{where}: got {shown(text)}, which is before 1970: nothing was recorded then.")
    return _ms(when)


def lie(first_ms: int, last_ms: int) -> str:
    """The sentence that says where the records of a source lie, when none of them lies in the range."""
    return f"Its records are from {iso(first_ms)} to {iso(last_ms)}."


def _ago(text: str, where: str, given: str) -> int:
    try:
        return parse_duration(text, where)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: got {shown(given)}, {_WANTED}.") from error


def _ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def iso(ts_ms: int) -> str:
    """A time for people, UTC: ``2026-03-01T09:00:00Z``; milliseconds where the calendar has no such year."""
    try:
        return f"{datetime.fromtimestamp(ts_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{ts_ms} ms"
