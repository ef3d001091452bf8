"""From a raw path to a route template: no query, no identifiers, and a bounded number of them.

A raw path in an event would tell personal data, and would make every caller's path a route of its own.
"""

from __future__ import annotations

import re
from typing import Final

METHODS: Final = frozenset(
    (
        *("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"),
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT"),  # WebDAV
    )
)
INVALID: Final = "INVALID"
"""The route of a request line that is none: ``-``, TLS bytes on a plain port, a scanner's noise."""

_REQUEST: Final = re.compile(r"([A-Z]{3,16}) (\S+)(?: [^\r\n]*)?")
_ABSOLUTE: Final = re.compile(r"[a-z][a-z0-9+.\-]*://[^/?#]*", re.ASCII | re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Za-z0-9._~\-]{1,40}")
_IDENTIFIERS: Final = (
    (re.compile(r"[0-9]+"), "{n}"),
    (re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), "{uuid}"),
    (re.compile(r"(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}"), "{hex}"),
)
_DIGITS: Final = re.compile(r"[0-9]{5,}")
_TOKEN: Final = re.compile(r"(?=.*[0-9])(?=.*[A-Z])(?=.*[a-z])[A-Za-z0-9_\-]{16,}")
_FILE: Final = re.compile(
    r".*\.(png|jpe?g|gif|svg|ico|webp|avif|css|m?js|map|woff2?|ttf|otf|eot|mp[34]|webm|pdf|zip|t?gz|iso)", re.IGNORECASE
)
_MAX_SEGMENTS: Final = 6
_MAX_GROUPS: Final = 100
_MAX_CACHED: Final = 20_000
_MAX_CACHED_PATH: Final = 256


def split_request(line: str) -> tuple[str, str]:
    """(method, path without query) of a request line such as ``GET /a?b HTTP/1.1``; ``("", "")`` when it is none."""
    match = _REQUEST.fullmatch(line)
    if match is None or match[1] not in METHODS:
        return "", ""
    target = match[2]
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        target = target[absolute.end() :] or "/"
    return match[1], target.partition("?")[0].partition("#")[0]


class Routes:
    """Templates of paths. Beyond `max_routes` different ones, a new path is known by its first segment only."""

    def __init__(self, max_routes: int = 500) -> None:
        self._max_routes = max_routes
        self._known: set[str] = set()
        self._groups: set[str] = set()
        self._cached: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._groups)

    def template(self, method: str, path: str) -> str:
        """``POST /coupons/{n}/claim`` of ``POST`` and ``/coupons/17/claim``; printable ASCII, at most 256 long."""
        if len(path) > _MAX_CACHED_PATH:  # clients choose paths: what is kept of them must have a bound in bytes too
            return self._bounded(method, path)
        key = (method, path)
        route = self._cached.get(key)
        if route is None:
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            route = self._cached[key] = self._bounded(method, path)
        return route

    def _bounded(self, method: str, path: str) -> str:
        if not method:
            return INVALID
        if not path.startswith("/"):
            return f"{method} *"
        parts = [part for part in path.split("/") if part]
        deep = len(parts) > _MAX_SEGMENTS
        segments = [segment(part) for part in parts[: _MAX_SEGMENTS - 1 if deep else _MAX_SEGMENTS]]
        if deep:
            segments.append("{rest}")
        route = f"{method} /{'/'.join(segments)}"[:256]
        if route in self._known:
            return route
        if len(self._known) < self._max_routes:
            self._known.add(route)
            return route
        group = f"{method} /{segments[0]}/{{other}}" if segments else f"{method} /"
        if group not in self._groups and len(self._groups) >= _MAX_GROUPS:
            return f"{method} /{{other}}"
        self._groups.add(group)
        return group


def segment(text: str) -> str:
    """One segment as it stands in a template: a plain word stays, everything that could identify is replaced."""
    for form, name in _IDENTIFIERS:
        if form.fullmatch(text):
            return name
    file = _FILE.fullmatch(text)
    if file is not None:
        return f"{{file}}.{file[1].lower()}"
    if not _WORD.fullmatch(text):
        return "{text}"
    return "{id}" if _DIGITS.search(text) or _TOKEN.fullmatch(text) else text
