"""Apache's access log (common, combined, also with the virtual host) and the error log of mod_evasive and mod_qos."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from penaltybox.producers.adapters.apache_errors import error_line
from penaltybox.producers.adapters.choices import KEYED_BY, number, status_of
from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_ANSWER,
    NO_SUCH_TIME,
    Format,
    Passed,
    Reading,
    Unmatched,
    decoded,
)
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.producers.adapters.apache_errors import ErrorLine
    from penaltybox.producers.adapters.reading import Read

_TEXT: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_ACCESS: Final = Form(
    ("virtual host", r"(?:[^ :\[\"]+:\d+ )?"),
    ("client address", r"(\S++) "),
    ("identity", r"\S++ "),
    ("user", r'(?:""|(?:[^"\\]|\\.)*?) '),  # Apache escapes quotes, so the time's bracket is not in it
    ("time", r"\[(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "),
    ("request", r'"([^"\\]*+(?:\\.[^"\\]*+)*+)" '),
    ("status", r"(\d\d\d|-) "),
    ("bytes", r"(?:\d++|-)"),
    ("referer, user agent, more fields", rf"(?: {_TEXT})?(?: .*)?"),
)
_EVASIVE: Final = ("client denied by server configuration: ", "Blacklisting address ")
# The rule's own text stands before, so the client is that of the head; of a connection there may be none but c=.
_QOS: Final = re.compile(
    r"mod_qos\((\d{3})\): access denied, (QS_\w+)\*? rule: (.*)",
    re.ASCII,
)
_QOS_OF_CONNECTION: Final = re.compile(
    r"max=(\d+), concurrent connections=\d+(?:, [a-z ]+=[\w.]+)*, c=([0-9a-fA-F:.]+)", re.ASCII
)
_QOS_BY_ADDRESS: Final = frozenset(
    {"QS_SrvMaxConnPerIP", "QS_ClientEventLimitCount", "QS_ClientEventBlockCount", "QS_ClientEventPerSecLimit"}
)
_NO_LINE: Final = Unmatched("not a line of Apache's access or error log")
_OTHER: Final = Passed("another message of Apache's error log")


class Apache(RequestLog):
    """Reads access and error logs, line by line whichever it is."""

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        text = decoded(line)
        match = _ACCESS.match(text)
        if match is None:
            error = error_line(text, self._times) if text.startswith("[") else None
            return _NO_LINE if error is None else self._error(error)
        client, time, request, code = match.groups()
        status = status_of(code)
        if status is None:
            return NO_ANSWER
        ts_ms = self._times.apache(time)
        ip = self._options.address(client)
        if ts_ms is None or ip is None:
            return NO_SUCH_TIME if ts_ms is None else NO_ADDRESS
        target = self._options.targets.of_line(request)
        if status in self._refusals:
            return self._request(ts_ms, status, {"ip": ip}, target, "over_limit", f"status_{status}")
        return self._request(ts_ms, status, {"ip": ip}, target, None)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        return _ACCESS.explain(decoded(line))

    def _error(self, line: ErrorLine) -> Read:
        if line.module.startswith("evasive") and line.message.startswith(_EVASIVE[0]):
            return self._refused(line, line.client, "ip:mod_evasive", None)
        match = _QOS.match(line.message)
        if match is None or line.module not in ("", "qos"):
            return _OTHER
        _, directive, rest = match.groups()
        connection = _QOS_OF_CONNECTION.match(rest)
        client = line.client or (connection[2] if connection else "")
        dimension = "ip" if directive in _QOS_BY_ADDRESS else "shared"
        limit = number(connection[1]) if connection else None
        return self._refused(line, client, f"{dimension}:{directive}", limit)

    def _refused(self, line: ErrorLine, client: str, violated: str, limit: int | None) -> Read:
        ip = self._options.endpoint(client) or self._port_behind(client)
        if line.ts_ms is None or ip is None:
            return NO_SUCH_TIME if line.ts_ms is None else NO_ADDRESS
        about: dict[str, Any] = {"limit": limit} if limit is not None else {}
        return Reading(
            ts_ms=line.ts_ms,
            action="deny",
            reason="over_limit",
            violated=(violated,),
            subjects={"ip": ip},
            scenario=self._options.targets.unknown.scenario,
            **about,
        )

    def _port_behind(self, client: str) -> str | None:
        """Apache writes IPv6 addresses without brackets, and always with the port."""
        host, _, port = client.rpartition(":")
        return self._options.address(host) if port.isdigit() else None


FORMAT: Final = Format(
    "apache",
    Apache,
    (
        b'203.0.113.7 - - [17/May/2026:10:05:03 +0000] "POST /login?x=1 HTTP/1.1" 429 227 "-" "Mozilla/5.0"',
        b'shop.example:443 2001:db8::7 - ann [17/May/2026:12:05:04 +0200] "GET /cart HTTP/1.1" 200 5316 "-" "curl"',
        (
            b"[Sun May 17 10:05:05.123456 2026] [evasive20:error] [pid 18884:tid 139] [client 203.0.113.8:58220] "
            b"client denied by server configuration: /var/www/html/"
        ),
        (
            b"[Sun May 17 10:05:06.000001 2026] [qos:error] [pid 7:tid 8] [client 203.0.113.9:5] mod_qos(031): "
            b"access denied, QS_SrvMaxConnPerIP rule: max=10, concurrent connections=11, c=203.0.113.9"
        ),
        b"[Sun May 17 10:05:07.000000 2026] [mpm_event:notice] [pid 1:tid 1] AH00489: Apache configured",
    ),
    {"keyed-by": KEYED_BY},
    programs=frozenset({"apache", "apache2", "httpd"}),
)
