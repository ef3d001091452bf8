"""Caddy's JSON logs: the access log, and the lines of the `rate_limit` module (mholt/caddy-ratelimit).

That module's line comes just before the access log's line of the same request. Where both are in one log, a request
that the first has told is not told again by the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.producers.adapters.choices import KEYED_BY, known, one_of, status_of
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_TIME,
    Format,
    Passed,
    Reading,
    Unmatched,
    label,
)
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read

_LIMITER: Final = "http.handlers.rate_limit"
_EXCEEDED: Final = "rate limit exceeded"
_HANDLED: Final = "handled request"
_MILLIS: Final = 1e11
"""A number from here on is milliseconds; seconds would be the year 5138."""
_NANOS: Final = 1e17
_MAX_TOLD: Final = 10_000
_NO_JSON: Final = Unmatched("not a JSON line of Caddy's logs (ts, logger, msg)")
_OTHER: Final = Passed("another message of Caddy")
_TOLD: Final = Passed("the rate limiter's own line has told this request")
_SKIPPED: Final = Passed("a line of the rate limiter (--option rate-limit-lines=skip)")
_NO_ANSWER: Final = Passed("a connection that ended before an answer (status 0)")


class _Request(msgspec.Struct, frozen=True, gc=False):
    method: str = ""
    uri: str = ""
    client_ip: str = ""
    remote_ip: str = ""
    remote_addr: str = ""


class _Line(msgspec.Struct, frozen=True, gc=False):
    ts: float | str
    msg: str
    logger: str = ""
    request: _Request | None = None
    status: int | str | None = None
    user_id: str = ""
    zone: str = ""
    wait: float | str | None = None
    remote_ip: str = ""


_decode = msgspec.json.Decoder(_Line).decode


class Caddy(RequestLog):
    """Reads both kinds of lines; others are passed over."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._skip = one_of(options, "rate-limit-lines", ("count", "skip")) == "skip"
        self._told: dict[str, int] = {}
        """Address of the connection -> requests that the rate limiter has told and the access log has not."""

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _NO_JSON
        if found.logger == _LIMITER and found.msg == _EXCEEDED:
            return _SKIPPED if self._skip else self._limited(found)
        if found.request is None or found.msg != _HANDLED:
            return _OTHER
        return self._handled(found, found.request)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        try:
            _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"JSON: {error}"
        return ""

    def _limited(self, found: _Line) -> Read:
        ts_ms = self._time(found.ts)
        ip = self._options.endpoint(found.remote_ip)
        if ts_ms is None:
            return NO_TIME
        if ip is None:
            return NO_ADDRESS
        if len(self._told) >= _MAX_TOLD:
            self._told.clear()
        self._told[found.remote_ip] = self._told.get(found.remote_ip, 0) + 1
        target = self._options.targets.unknown
        wait_s = found.wait if isinstance(found.wait, int | float) else None
        return Reading(
            ts_ms=ts_ms,
            action="deny",
            reason="over_limit",
            violated=(label(f"{self._keyed_by}:{found.zone or 'rate_limit'}"),),
            subjects={"ip": ip},
            scenario=target.scenario,
            status=429,
            retry_after_s=-int(-wait_s // 1) if wait_s is not None and 0 <= wait_s < _MILLIS else None,
        )

    def _handled(self, found: _Line, request: _Request) -> Read:
        status = status_of(found.status)
        if status is None:
            return _NO_ANSWER
        if status == 429 and self._was_told(request.remote_ip):  # noqa: PLR2004 - Too Many Requests
            return _TOLD
        ts_ms = self._time(found.ts)
        if ts_ms is None:
            return NO_TIME
        # client_ip is what `trusted_proxies` makes of it: without any, the connection's address.
        ip = self._options.endpoint(request.client_ip or request.remote_ip or request.remote_addr)
        if ip is None:
            return NO_ADDRESS
        target = self._options.targets.of(request.method, request.uri)
        user = self._options.subject("user", known(found.user_id))
        subjects = {"ip": ip, **({"user": user} if user else {})}
        if status in self._refusals:
            return self._request(ts_ms, status, subjects, target, "over_limit", f"status_{status}")
        return self._request(ts_ms, status, subjects, target, None)

    def _was_told(self, connection: str) -> bool:
        left = self._told.get(connection, 0)
        if left > 1:
            self._told[connection] = left - 1
        elif left:
            del self._told[connection]
        return left > 0

    def _time(self, ts: float | str) -> int | None:
        """Any of Caddy's `time_format`: seconds, milliseconds or nanoseconds, RFC 3339, wall, common log."""
        if isinstance(ts, int | float):
            return self._times.seconds(ts / 1e9 if ts >= _NANOS else ts / 1e3 if ts >= _MILLIS else ts)
        if ts[4:5] == "/" and ts[7:8] == "/":
            return self._times.rfc3339(f"{ts[:4]}-{ts[5:7]}-{ts[8:]}")
        return self._times.apache(ts) if ts[2:3] == "/" else self._times.rfc3339(ts)


FORMAT: Final = Format(
    "caddy",
    Caddy,
    (
        (
            b'{"level":"info","ts":1779012303.7022,"logger":"http.handlers.rate_limit","msg":"rate limit exceeded",'
            b'"zone":"per_ip","wait":11.047427378,"remote_ip":"203.0.113.7"}'
        ),
        (
            b'{"level":"error","ts":1779012303.7031,"logger":"http.log.access.log0","msg":"handled request",'
            b'"request":{"remote_ip":"203.0.113.7","remote_port":"41342","client_ip":"203.0.113.7",'
            b'"proto":"HTTP/2.0","method":"POST","host":"shop.example","uri":"/login?x=1","headers":{}},'
            b'"bytes_read":0,"duration":0.0002,"size":0,"status":429,"resp_headers":{}}'
        ),
        (
            b'{"level":"info","ts":"2026-05-17T10:05:04.120Z","logger":"http.log.access","msg":"handled request",'
            b'"request":{"remote_ip":"2001:db8::7","client_ip":"2001:db8::7","method":"GET","uri":"/cart"},'
            b'"user_id":"ann","status":200}'
        ),
        b'{"level":"info","ts":1779012305.1,"logger":"tls","msg":"cleaning storage unit"}',
    ),
    {
        "keyed-by": KEYED_BY,
        "rate-limit-lines": (
            "count (default) or skip: they name the connection's address, so behind a proxy of yours skip them"
        ),
    },
    programs=frozenset({"caddy"}),
)
