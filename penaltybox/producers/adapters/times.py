"""The times of logs, as milliseconds since the epoch. None: there is no such time.

A local time that exists twice (clocks going back) is the one nearer to the line before it; on the first line, the
earlier. That is right for logs in ascending and in descending order. A local time that does not exist (clocks going
forward) counts as if they had not been moved yet. Leap seconds count as the second after.
"""

from __future__ import annotations

import math
import re
from calendar import timegm
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MONTHS: Final = {
    name: number + 1
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    )
}
_LAST_MS: Final = 1 << 42
"""Year 2109: what is beyond is no time, and milliseconds taken for seconds are told apart."""
_MAX_CACHED: Final = 10_000
_FRACTIONS: Final = {
    f"{fraction}{end}": ms
    for end in ("Z", "+00:00")
    for fraction, ms in [("", 0), *((f".{ms:03}", ms) for ms in range(1000))]
}
_SECONDS: Final = {f"{second:02}": second * 1000 for second in range(61)}  # a leap second is one
_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000
_APACHE: Final = re.compile(r"(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d):(\d\d) ([+-])([01]\d|2[0-3])([0-5]\d)", re.ASCII)
_NGINX: Final = re.compile(r"(\d{4})/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)", re.ASCII)
_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:([Zz]| ?UTC| ?GMT)|([+-])([01]\d|2[0-3]):?([0-5]\d))?",
    re.ASCII,
)
_SYSLOG: Final = re.compile(r"([A-Z][a-z][a-z]) ([ \d]\d) (\d\d):(\d\d):(\d\d)", re.ASCII)


class Times:
    """Reads times of one log: it remembers the last one, for local times that exist twice.

    Args:
        zone: of times that have no offset.
        now_ms: for times that have no year: they are at most a day ahead of it. Who reads for days gives a clock.
    """

    def __init__(self, zone: tzinfo = UTC, now_ms: int | Callable[[], int] = 0) -> None:
        self._zone = zone
        self._now_ms = now_ms
        self._last_ms = 0
        self._hour, self._year = -1, 0
        """An hour, and the year that it is in."""
        self._text = ""
        self._text_ms: int | None = None
        """What `nginx` read last: many lines have one second."""
        self._minutes: dict[str, tuple[int, int]] = {}
        self._utc: dict[str, int] = {}
        """``2026-05-17T10:05:`` -> milliseconds, for times that end in Z or +00:00."""

    def apache(self, text: str) -> int | None:
        """``17/May/2015:10:05:03 +0000``."""
        match = _APACHE.fullmatch(text)
        if match is None:
            return None
        minute, second, sign, hours, minutes = match.groups()
        first, _ = self._minutes.get(minute) or self._minute(
            minute, minute[7:11], _MONTHS.get(minute[3:6], 0), minute[:2], minute[12:14], minute[15:17], UTC
        )
        return _whole(first, _SECONDS.get(second), _offset_ms(sign, hours, minutes))

    def nginx(self, text: str) -> int | None:
        """``2024/05/17 10:05:03`` in the log's zone."""
        if text == self._text:
            return self._text_ms
        minute = text[:17]
        known = self._minutes.get(minute)
        if known is None:
            match = _NGINX.fullmatch(text)
            if match is None:
                return None
            year, month, day, hour, of_hour, _ = match.groups()
            known = self._minute(minute, year, month, day, hour, of_hour, self._zone)
        second = _SECONDS.get(text[17:])
        self._text, self._text_ms = text, None if second is None else self._local(known, second)
        return self._text_ms

    def rfc3339(self, text: str) -> int | None:
        """``2026-05-17T10:05:03.123456Z``: also with a blank for the T, an offset, a comma, or in the log's zone."""
        known_ms = self._utc.get(text[:17])
        fraction_ms, second_ms = _FRACTIONS.get(text[19:]), _SECONDS.get(text[17:19])
        if known_ms and fraction_ms is not None and second_ms is not None:
            return known_ms + second_ms + fraction_ms
        match = _RFC3339.fullmatch(text)
        if match is None:
            return None
        minute, second, fraction, utc, sign, hours, minutes = match.groups()
        zone = UTC if utc or sign else self._zone
        key = minute if zone is self._zone else f"{minute}Z"
        known = self._minutes.get(key) or self._minute(
            key, minute[:4], minute[5:7], minute[8:10], minute[11:13], minute[14:16], zone
        )
        second_ms = _SECONDS.get(second)
        if (utc or hours == minutes == "00") and known[0]:
            if len(self._utc) >= _MAX_CACHED:
                self._utc.clear()
            self._utc[f"{minute}:"] = known[0]
        if zone is UTC or second_ms is None:
            whole = _whole(known[0], second_ms, _offset_ms(sign, hours, minutes) if sign else 0)
        else:
            whole = self._local(known, second_ms)
        return whole if whole is None or not fraction else whole + int(f"{fraction}00"[:3])

    def syslog(self, text: str) -> int | None:
        """``May  7 10:05:03`` in the log's zone, in the latest year that is not more than a day ahead."""
        match = _SYSLOG.fullmatch(text)
        if match is None:
            return None
        name, day, hour, minute, second = match.groups()
        month = _MONTHS.get(name, 0)
        now_ms = self._now_ms() if callable(self._now_ms) else self._now_ms
        current = now_ms // _HOUR_MS
        if current != self._hour:
            self._hour, self._year = current, datetime.fromtimestamp(now_ms / 1000, self._zone).year
        for year in range(self._year + 1, self._year - 9, -1):  # nine: the 29th of February is eight years off at most
            key = f"{year} {text[:12]}"
            known = self._minutes.get(key) or self._minute(
                key, str(year), month, day.strip() or "0", hour, minute, self._zone
            )
            if known[0] and min(known) <= now_ms + _DAY_MS:
                second_ms = _SECONDS.get(second)
                return None if second_ms is None else self._local(known, second_ms)
        return None

    def seconds(self, value: float | str) -> int | None:
        """Seconds since the epoch, as a number or as text."""
        return _epoch(value, 1000)

    def millis(self, value: float | str) -> int | None:
        """Milliseconds since the epoch, as a number or as text."""
        return _epoch(value, 1)

    def _local(self, known: tuple[int, int], second_ms: int) -> int | None:
        first, other = known
        if other != first and abs(other - self._last_ms) < abs(first - self._last_ms) and self._last_ms:
            first = other
        found = first + second_ms
        if not first or not 0 < found < _LAST_MS:
            return None
        self._last_ms = found
        return found

    def _minute(
        self, key: str, year: str, month: str | int, day: str, hour: str, minute: str, zone: tzinfo
    ) -> tuple[int, int]:
        """(ms, ms) of a minute, remembered: the earlier and the later meaning; (0, 0): there is none."""
        if len(self._minutes) >= _MAX_CACHED:
            self._minutes.clear()
        try:
            when = datetime(int(year), int(month), int(day), int(hour), int(minute), tzinfo=zone)
        except ValueError:
            found = (0, 0)
        else:
            found = (_utc_ms(when), _utc_ms(when.replace(fold=1)))
            # A time that does not exist has its meanings the other way round; as if the clock had not been moved yet.
            found = found if found[0] <= found[1] else (found[0], found[0])
        self._minutes[key] = found
        return found


def _whole(minute_ms: int, second_ms: int | None, offset_ms: int) -> int | None:
    if not minute_ms or second_ms is None:
        return None
    found = minute_ms + second_ms - offset_ms
    return found if 0 < found < _LAST_MS else None


def _utc_ms(when: datetime) -> int:
    offset = when.utcoffset() or timedelta()
    return (timegm(when.timetuple()) - round(offset.total_seconds())) * 1000


def _offset_ms(sign: str, hours: str, minutes: str) -> int:
    offset = (int(hours) * 60 + int(minutes)) * 60_000
    return offset if sign == "+" else -offset


def _epoch(value: float | str, factor: int) -> int | None:
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    found = round(number * factor)
    return found if 0 < found < _LAST_MS else None
