"""Traefik's access log, JSON and common: requests refused with 429, by Traefik's `rateLimit` or by a service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.producers.adapters.choices import KEYED_BY, known, one_of, status_of
from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_ANSWER,
    NO_TIME,
    Format,
    Unmatched,
    decoded,
)
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read
    from penaltybox.producers.adapters.targets import Target

_COMMON: Final = Form(
    ("client address", r"(\S++) "),
    ("identity", r"- "),
    ("user", r".*? "),
    ("time", r"\[(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "),
    ("request", r'"(.*?)" '),  # the query as the client wrote it: quotes, and over HTTP/2 blanks, are not escaped
    ("status", r"(\d+|-) "),
    ("bytes", r"(?:\d+|-)"),
    # The last of them: what stands before is the client's, and not escaped either.
    ("referer, agent, number, router", r'(?: ".*" (?:\d+|-) "([^"]*)" "[^"]*" \d+ms)?.*'),
)
_ANSWER: Final = re.compile(r'" (\d{3}) (?:\d+|-) "', re.ASCII)
_NO_LINE: Final = Unmatched("not a line of Traefik's access log")
_NO_JSON: Final = Unmatched("not JSON with StartUTC, ClientAddr and DownstreamStatus")


class _Line(msgspec.Struct, frozen=True, gc=False):
    status: int | str = msgspec.field(name="DownstreamStatus")
    address: str | None = msgspec.field(name="ClientAddr", default=None)
    host: str | None = msgspec.field(name="ClientHost", default=None)
    start: str | None = msgspec.field(name="StartUTC", default=None)
    local: str | None = msgspec.field(name="StartLocal", default=None)
    method: str | None = msgspec.field(name="RequestMethod", default=None)
    path: str | None = msgspec.field(name="RequestPath", default=None)
    router: str | None = msgspec.field(name="RouterName", default=None)
    retry_after: Any = msgspec.field(name="downstream_Retry-After", default=None)


_decode = msgspec.json.Decoder(_Line).decode


class Traefik(RequestLog):
    """Reads requests. The log does not say which middleware refused, so the router stands for the limit."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._forwarded = one_of(options, "address", ("ClientAddr", "ClientHost")) == "ClientHost"

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        return self._json(line) if line.startswith(b"{") else self._text(line)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        if not line.startswith(b"{"):
            return _COMMON.explain(decoded(line))
        try:
            _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"JSON: {error}"
        return ""

    def _json(self, line: bytes) -> Read:
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _NO_JSON
        # ClientHost is the whole X-Forwarded-For where Traefik trusts the sender; the last of it is who that one saw.
        client = known(found.host).rpartition(",")[2].strip() if self._forwarded else known(found.address)
        target = self._options.targets.of(known(found.method), known(found.path))
        ts_ms = self._times.rfc3339(known(found.start) or known(found.local))
        return self._reading(client, ts_ms, status_of(found.status), known(found.router), target)

    def _text(self, line: bytes) -> Read:
        text = decoded(line)
        match = _COMMON.match(text)
        if match is None:
            return _NO_LINE
        client, time, request, code, router = match.groups()
        status = status_of(code)
        if status not in self._refusals:
            # A client may have written an answer into its request. It hides none of its own by that.
            others = map(int, _ANSWER.findall(text, match.start(4)))
            hidden = next((other for other in others if other in self._refusals), None)
            status, router = (status, router) if hidden is None else (hidden, "")
        target = self._options.targets.of_line(request)
        return self._reading(client, self._times.apache(time), status, known(router), target)

    def _reading(self, client: str, ts_ms: int | None, status: int | None, router: str, target: Target) -> Read:
        if status is None:
            return NO_ANSWER
        if ts_ms is None:
            return NO_TIME
        ip = self._options.endpoint(client)
        if ip is None:
            return NO_ADDRESS
        if status in self._refusals:
            return self._request(ts_ms, status, {"ip": ip}, target, "over_limit", router or f"status_{status}")
        return self._request(ts_ms, status, {"ip": ip}, target, None)


FORMAT: Final = Format(
    "traefik",
    Traefik,
    (
        (
            b'{"ClientAddr":"203.0.113.7:35172","ClientHost":"203.0.113.7","ClientPort":"35172","ClientUsername":"-",'
            b'"DownstreamStatus":429,"OriginStatus":0,"RequestMethod":"POST","RequestPath":"/login?next=%2F",'
            b'"RouterName":"shop@file","StartUTC":"2026-05-17T10:05:03.258878164Z","level":"info","msg":""}'
        ),
        (
            b'{"ClientAddr":"[2001:db8::7]:35170","ClientHost":"2001:db8::7","DownstreamStatus":200,'
            b'"OriginStatus":200,"RequestMethod":"GET","RequestPath":"/cart","RouterName":"shop@file",'
            b'"StartUTC":"2026-05-17T10:05:04.237585267Z","time":"2026-05-17T10:05:04Z"}'
        ),
        (
            b'203.0.113.8 - - [17/May/2026:10:05:05 +0000] "GET /cart?x=1 HTTP/1.1" 429 17 "-" "curl/8.5" 2 '
            b'"shop@file" "-" 0ms'
        ),
        (
            b'203.0.113.8 - ann [17/May/2026:10:05:06 +0000] "GET / HTTP/1.1" 200 5310 "-" "curl/8.5" 3 '
            b'"shop@file" "http://10.0.0.5:8080" 12ms'
        ),
    ),
    {
        "keyed-by": KEYED_BY,
        "address": "JSON: ClientAddr (default, the connection), or ClientHost behind a proxy in `trustedIPs`",
    },
    programs=frozenset({"traefik"}),
)
