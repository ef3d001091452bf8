"""nginx's access log: refused requests by their status, or all by what `$limit_req_status` says.

Text in the combined form (more fields may follow), or JSON whose keys are the names of nginx's variables, as
``log_format … escape=json`` writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.producers.adapters.choices import KEYED_BY, keyed_by, refusals
from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.plain_json import object_of
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_TIME,
    Adapter,
    Format,
    Passed,
    Reading,
    Unmatched,
    decoded,
    label,
)
from penaltybox.producers.adapters.times import Times

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read
    from penaltybox.producers.adapters.targets import Target

_TEXT: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_COMBINED: Final = Form(
    ("client address", r"(\S++) "),
    ("identity", r"\S++ "),
    ("user", r'(?:""|[^"]*?) '),  # may hold spaces and brackets, but no quote
    ("time", r"\[(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "),
    ("request", r'"([^"\\]*+(?:\\.[^"\\]*+)*+)" '),
    ("status", r"(\d\d\d) "),
    ("bytes", r"(?:\d++|-)"),
    ("referer", rf"(?: {_TEXT})?"),
    ("user agent", rf"(?: {_TEXT})?"),
    ("more fields", r"(?: .*?)??"),
    ("$limit_req_status", r"(?: (?:limit_req_status=)?(PASSED|DELAYED|REJECTED|DELAYED_DRY_RUN|REJECTED_DRY_RUN))?"),
)
_UNKNOWN: Final = frozenset({"", "-"})
_LIMITED: Final[dict[str, tuple[Any, bool]]] = {
    "PASSED": ("allow", True),
    "DELAYED": ("delay", True),
    "REJECTED": ("deny", True),
    "DELAYED_DRY_RUN": ("delay", False),
    "REJECTED_DRY_RUN": ("deny", False),
}
"""What nginx's variables say -> action, enforced."""
_TEXTS: Final = (
    "time_iso8601",
    "time_local",
    "request",
    "request_method",
    "request_uri",
    "uri",
    "limit_req_status",
    "limit_conn_status",
)
_NO_LINE: Final = Unmatched("not a line of nginx's access log")
_NO_JSON: Final = Unmatched("not JSON with $remote_addr and $status")
_NO_STATUS: Final = Unmatched("a status that is none")
_NO_WORD: Final = Unmatched("a $limit_req_status that nginx does not know")
_CUT_SHORT: Final = Passed("a connection that ended before a request (status 000)")
_STATUSES: Final = range(100, 600)
_NUMBERS: Final[dict[Any, int]] = {0: 0, "000": 0} | {of: n for n in _STATUSES for of in (n, str(n))}
"""Statuses as numbers and as text -> number."""


class NginxAccess(Adapter):
    """Reads text and JSON, line by line whichever it is."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._times = Times(options.zone, options.now_ms)
        self._refusals = refusals(options)
        zone = options.values.get("zone", "")
        dimension = keyed_by(options)
        self._by_requests = (label(f"{dimension}:{zone or 'limit_req'}"),)
        self._by_connections = (label(f"{dimension}:{zone or 'limit_conn'}"),)
        address = options.values.get("address", "remote_addr")
        self._decode = _decoder(address)
        self._address_key = msgspec.json.encode(address)

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        return self._json(line) if line.startswith(b"{") else self._text(line)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        if not line.startswith(b"{"):
            return _COMBINED.explain(decoded(line))
        try:
            self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"JSON: {error}"
        return ""

    def _text(self, line: bytes) -> Read:
        match = _COMBINED.match(decoded(line))
        if match is None:
            return _NO_LINE
        client, time, request, status, limited = match.groups()
        return self._reading(
            client, self._times.apache(time), int(status), limited or "", "", self._options.targets.of_line(request)
        )

    def _json(self, line: bytes) -> Read:
        try:
            found = self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _NO_JSON
        if line.count(self._address_key) > 1 and object_of(line) is None:
            return _NO_JSON  # escape=none: a client has added an address
        status = _NUMBERS.get(found.status)
        if status is None:
            return _NO_STATUS
        targets = self._options.targets
        if found.request_method:
            target = targets.of(found.request_method, found.request_uri or found.uri)
        else:
            target = targets.of_line(found.request) if found.request else targets.unknown
        return self._reading(
            found.remote_addr, self._time(found), status, found.limit_req_status, found.limit_conn_status, target
        )

    def _time(self, found: Any) -> int | None:
        if found.msec:
            return self._times.seconds(found.msec)
        if found.time_iso8601:
            return self._times.rfc3339(found.time_iso8601)
        return self._times.apache(found.time_local)

    def _reading(
        self, client: str, ts_ms: int | None, status: int, limited: str, connections: str, target: Target
    ) -> Read:
        if status not in _STATUSES:
            return _NO_STATUS if status else _CUT_SHORT
        if ts_ms is None:
            return NO_TIME
        ip = self._options.address(client)
        if ip is None:
            return NO_ADDRESS
        said, violated = limited, self._by_requests
        if connections not in _UNKNOWN and connections != "PASSED":
            said, violated = connections, self._by_connections
        if said in _UNKNOWN:
            said = "REJECTED" if status in self._refusals else "PASSED"
        known = _LIMITED.get(said)
        if known is None:
            return _NO_WORD
        action, enforced = known
        passed = action == "allow"
        return Reading(
            ts_ms=ts_ms,
            action=action,
            reason=None if passed else "over_limit",
            violated=() if passed else violated,
            subjects={"ip": ip},
            scenario=target.scenario,
            route=target.route,
            status=status,
            enforced=enforced,
        )


def _decoder(address: str) -> Any:
    """Of a JSON line; `address` is the key that holds the client's address."""
    text = [(name, str, "") for name in _TEXTS]
    fields: list[Any] = [("remote_addr", str), ("status", int | str), ("msec", float | str, ""), *text]
    rename = {"remote_addr": address}
    return msgspec.json.Decoder(msgspec.defstruct("NginxLine", fields, rename=rename, gc=False)).decode


FORMAT: Final = Format(
    "nginx-access",
    NginxAccess,
    (
        (
            b'203.0.113.7 - ann [17/May/2026:10:05:03 +0000] "POST /login HTTP/1.1" 429 162 '
            b'"https://shop.example/" "Mozilla/5.0"'
        ),
        b'203.0.113.8 - - [17/May/2026:12:05:04 +0200] "GET /cart?x=1 HTTP/2.0" 200 5316 "-" "curl/8.5.0" "-" DELAYED',
        (
            b'{"time_iso8601":"2026-05-17T10:05:05+00:00","remote_addr":"2001:db8::7","request":"GET / HTTP/1.1",'
            b'"status":"200","limit_req_status":"REJECTED_DRY_RUN"}'
        ),
        (
            b'{"msec":1779012306.123,"remote_addr":"203.0.113.9","request_method":"POST","request_uri":"/coupons?c=1",'
            b'"status":503,"limit_req_status":"REJECTED"}'
        ),
        b'203.0.113.10 - - [17/May/2026:10:05:07 +0000] "GET / HTTP/1.1" 200 5316 "-" "Mozilla/5.0"',
    ),
    {
        "zone": "the limit's name in `violated`; nginx does not log which zone refused (limit_req)",
        "address": "JSON: the key that holds the client's address (remote_addr)",
        "keyed-by": KEYED_BY,
    },
    programs=frozenset({"nginx", "openresty"}),
)
