"""Lines of a web server's access log (Apache/nginx, combined or common format) read as requests.

Whoever sends requests writes parts of these lines. So the address is what stands first and nothing else, quoted
fields end at the first quote that is not escaped, and a line of any other shape is counted, not guessed at.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections import Counter
from datetime import date
from typing import Final, NamedTuple

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.http.paths import written_path
from penaltybox.producers.routes import Routes, split_request

MAX_LINE_BYTES: Final = 32_768
_MAX_CACHED: Final = 10_000
_MAX_SHAPES: Final = 50
_SHAPE_LENGTH: Final = 60
_OTHER_SHAPES: Final = "(other shapes)"

_TEXT: Final = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)'
_LINE: Final = re.compile(
    r"(\S++) \S++ "  # address, identd
    r'(?:""|[^"]*?) '  # user: may hold spaces and brackets, as whoever logs in likes
    r"\[(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d):(\d\d) ([+-]\d{4})\] "
    rf'{_TEXT}" (\d\d\d) (?:\d++|-)'  # request line, status, bytes
    rf'(?: {_TEXT}" {_TEXT}"?)?',  # referer, user agent (whose end may have been cut off)
    re.ASCII,
)
_MONTHS: Final = {
    name: number + 1
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    )
}
_STATUS: Final = range(100, 600)
_LAST_MINUTE: Final = 59
_LAST_HOUR: Final = 23
_LEAP_SECOND: Final = 60


class LogLine(NamedTuple):
    """One request of the log. `path` has no query and stays inside; what is told of it is `route`, a template."""

    ip: str
    ts_ms: int
    method: str
    path: str
    route: str
    status: int
    agent: str


class CombinedLog:
    """Parses lines and counts those that are none, by shape (letters as ``a``, digits as ``9``)."""

    def __init__(self, routes: Routes | None = None, canonicaliser: Canonicaliser | None = None) -> None:
        self.matched = 0
        self.unmatched = 0
        self.shapes: Counter[str] = Counter()
        self._routes = routes or Routes()
        self._canonicaliser = canonicaliser or Canonicaliser()
        self._minutes: dict[tuple[str, str], int | None] = {}
        self._requests: dict[str, tuple[str, str, str]] = {}

    def parse(self, raw: bytes) -> LogLine | None:
        """The request of a line (without its newline); None, and counted, when it is no such line."""
        if len(raw) > MAX_LINE_BYTES:
            self._refuse(f"(a line over {MAX_LINE_BYTES} bytes)")
            return None
        text = raw.decode("utf-8", "backslashreplace")
        match = _LINE.fullmatch(text)
        if match is None:
            self._refuse(shape(text))
            return None
        ip, minute, second, zone, request, status, _, agent = match.groups()
        minute_ms = self._minute(minute, zone)
        if minute_ms is None or int(second) > _LEAP_SECOND or int(status) not in _STATUS:
            self._refuse("(a time or status that does not exist)")
            return None
        try:
            self._canonicaliser.subject("ip", ip)
        except BadEvent:
            self._refuse("(a host name or something else where the address should be)")
            return None
        method, path, route = self._request(request)
        self.matched += 1
        return LogLine(ip, minute_ms + int(second) * 1000, method, path, route, int(status), agent or "")

    def _refuse(self, kind: str) -> None:
        self.unmatched += 1
        self.shapes[kind if kind in self.shapes or len(self.shapes) < _MAX_SHAPES else _OTHER_SHAPES] += 1

    def _minute(self, text: str, zone: str) -> int | None:
        key = (text, zone)
        if key not in self._minutes:
            if len(self._minutes) >= _MAX_CACHED:
                self._minutes.clear()
            self._minutes[key] = _epoch_ms(text, zone)
        return self._minutes[key]

    def _request(self, line: str) -> tuple[str, str, str]:
        known = self._requests.get(line)
        if known is None:
            if len(self._requests) >= _MAX_CACHED:
                self._requests.clear()
            method, written = split_request(line)
            path = written_path(written)  # as servers read it: a disguised path is the path that it is
            known = self._requests[line] = (method, path, self._routes.template(method, path))
        return known


def _epoch_ms(text: str, zone: str) -> int | None:
    """Milliseconds of ``17/May/2015:10:05`` in a zone such as ``+0200``; None when there is no such minute."""
    day, month, year, hour, minute = text[:2], text[3:6], text[7:11], text[12:14], text[15:17]
    hours, minutes = int(zone[1:3]), int(zone[3:])
    if int(hour) > _LAST_HOUR or max(int(minute), minutes) > _LAST_MINUTE or hours > _LAST_HOUR:
        return None
    try:
        when = date(int(year), _MONTHS.get(month, 0), int(day))
    except ValueError:
        return None
    seconds = timegm((when.year, when.month, when.day, int(hour), int(minute), 0))
    offset = (hours * 60 + minutes) * 60
    ms = (seconds - (offset if zone[0] == "+" else -offset)) * 1000
    return ms if ms > 0 else None


_SHAPES: Final = (
    (re.compile(r"[^\x20-\x7e]+"), "?"),
    (re.compile(r"[A-Za-z]+"), "a"),
    (re.compile(r"[0-9]+"), "9"),
)


def shape(text: str) -> str:
    """What a line looks like without telling what it says: ``a.9.9.9 - - [9/a/9:9:9:9 +9] "a /``."""
    text = text[: _SHAPE_LENGTH * 4]
    for pattern, mark in _SHAPES:
        text = pattern.sub(mark, text)
    return text[:_SHAPE_LENGTH] or "(empty)"
