"""HAProxy's HTTP log (``option httplog``): 429 and what the proxy itself denied or tarpitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penaltybox.producers.adapters.choices import KEYED_BY, STATUSES
from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.months import iso
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_ANSWER,
    NO_SUCH_TIME,
    Format,
    Passed,
    Reading,
    Unmatched,
    decoded,
    label,
)
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Read

# All up to the bytes is HAProxy's own: what a client puts into captured cookies can spoil its own state and request,
# no more. HAProxy encodes quotes and braces in captured headers.
_LINE: Final = Form(
    ("client address and port", r"(?:<\d{1,3}>)?([0-9a-fA-F.:]+|unix):(\d+) "),
    ("time", r"\[(\d\d)/([A-Z][a-z][a-z])/(\d{4}):(\d\d:\d\d:\d\d\.\d{3})\] "),
    ("frontend", r"([^ ~]+)~? "),
    ("backend and server", r"[^ /]+/[^ ]+ "),
    ("timers", r"(?:-?\+?\d+/){4}-?\+?\d+ "),
    ("status", r"(-?\d+) "),
    ("bytes", r"\+?\d+ "),
    ("captured cookies", r".*?"),
    ("state at the end", r"(?<= )([A-Zac-z-]{2})[A-Z-]{2} "),
    ("connections and queues", r"\d+/\d+/\d+/\d+/\+?\d+ \d+/\d+"),
    ("captured headers and request", r'(?: (?:\{[^}]*\} ){0,2}"([^"]*).*| .*)?'),
)
_DENIED: Final = ("PR", "PT")
_MALFORMED: Final = frozenset({400, 408, 411, 413, 414, 422, 425, 431})
_NO_LINE: Final = Unmatched("not a line of HAProxy's HTTP log")
_UNASKED: Final = Passed("a request that HAProxy could not read")


class HAProxy(RequestLog):
    """Reads requests. A status of ``--status`` other than 429 counts only where the proxy itself refused."""

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        match = _LINE.match(decoded(line))
        if match is None:
            return _NO_LINE
        client, _, day, month, year, time, frontend, code, state, request = match.groups()
        status = int(code) if len(code) == 3 else 0  # noqa: PLR2004 - digits
        if status not in STATUSES:
            return NO_ANSWER
        said = self._said(status, state)
        if isinstance(said, Passed):
            return said
        ts_ms = self._times.rfc3339(iso(year, month, day, time))
        if ts_ms is None:
            return NO_SUCH_TIME
        ip = self._options.address(client)
        if ip is None:
            return NO_ADDRESS
        action, reason = said
        targets = self._options.targets
        target = targets.of_line(request) if request is not None else targets.unknown
        return Reading(
            ts_ms=ts_ms,
            action=action,
            reason=reason,
            violated=(label(f"{self._keyed_by}:{frontend}"),) if reason == "over_limit" else (),
            subjects={"ip": ip},
            scenario=target.scenario,
            route=target.route,
            status=status,
            attrs={"tarpit": "yes"} if state == "PT" else {},
        )

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        return _LINE.explain(decoded(line))

    def _said(self, status: int, state: str) -> tuple[Any, Any] | Passed:
        denied = state in _DENIED
        if status in self._refusals and (denied or status == 429):  # noqa: PLR2004 - Too Many Requests
            return "deny", "over_limit"
        if state == "PT":
            return "deny", "unknown"
        if status in _MALFORMED and state[0] in "PCc":
            return _UNASKED
        return ("deny", "unknown") if denied else ("allow", None)


FORMAT: Final = Format(
    "haproxy",
    HAProxy,
    (
        (
            b"203.0.113.7:33317 [17/May/2026:10:05:03.655] shop~ shop/<NOSRV> 0/-1/-1/-1/0 429 190 - - PR-- "
            b'12/12/0/0/0 0/0 {shop.example} "POST /login HTTP/1.1"'
        ),
        (
            b"2001:db8::7:40112 [17/May/2026:10:05:04.001] shop shop/web1 10/0/30/69/109 200 2750 - - ---- "
            b'1/1/1/1/0 0/0 "GET /cart?x=1 HTTP/1.1"'
        ),
        (
            b"203.0.113.9:5 [17/May/2026:10:05:05.000] shop shop/<NOSRV> 0/-1/-1/-1/5001 500 0 - - PT-- "
            b'1/1/0/0/0 0/0 "GET /wp-login.php HTTP/1.1"'
        ),
        (
            b"203.0.113.9:6 [17/May/2026:10:05:06.000] shop shop/<NOSRV> -1/-1/-1/-1/0 400 0 - - PR-- "
            b'1/1/0/0/0 0/0 "<BADREQ>"'
        ),
    ),
    {"keyed-by": KEYED_BY},
    programs=frozenset({"haproxy"}),
)
