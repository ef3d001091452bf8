"""Kong's `file-log` (and http-log, tcp-log, …): requests that `rate-limiting` refused, with consumer and windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from penaltybox.producers.adapters.choices import known, number, one_of, status_of
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_SUCH_TIME,
    Format,
    Passed,
    Reading,
    Unmatched,
    label,
)
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read

_WINDOWS: Final = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "month": 2_592_000,
    "year": 31_536_000,
}
_NO_JSON: Final = Unmatched("not a JSON line of Kong's log (client_ip, started_at, response)")
_NO_ANSWER: Final = Passed("a request without an answer")


class _Request(msgspec.Struct, frozen=True, gc=False):
    method: str | None = None
    uri: str | None = None


class _Response(msgspec.Struct, frozen=True, gc=False):
    status: int | str | None = None
    headers: dict[str, Any] | None = None


class _Consumer(msgspec.Struct, frozen=True, gc=False):
    id: str | None = None
    username: str | None = None
    custom_id: str | None = None


class _Entity(msgspec.Struct, frozen=True, gc=False):
    id: str | None = None


class _Line(msgspec.Struct, frozen=True, gc=False):
    client_ip: str
    started_at: int | float | str
    response: _Response | None
    request: _Request | None = None
    consumer: _Consumer | None = None
    authenticated_entity: _Entity | None = None


_decode = msgspec.json.Decoder(_Line).decode


class Kong(RequestLog):
    """Reads requests. Kong counts by consumer, or by address where nobody is authenticated, unless told otherwise."""

    counts_by: ClassVar[str] = ""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._user = one_of(options, "consumer", ("id", "username", "custom_id"))

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _NO_JSON
        answer = found.response
        status = None if answer is None else status_of(answer.status)
        if answer is None or status is None:
            return _NO_ANSWER
        ts_ms = self._times.millis(found.started_at)
        if ts_ms is None:
            return NO_SUCH_TIME
        ip = self._options.address(found.client_ip)
        if ip is None:
            return NO_ADDRESS
        subjects = self._subjects(found, ip)
        request = found.request or _Request()
        target = self._options.targets.of(known(request.method), known(request.uri))
        if status not in self._refusals:
            return self._request(ts_ms, status, subjects, target, None)
        dimension = self._keyed_by or ("user" if "user" in subjects else "ip")
        headers = {name.lower(): value for name, value in (answer.headers or {}).items()}
        limits = _exhausted(headers)
        window = limits[0] if limits else ""
        return Reading(
            ts_ms=ts_ms,
            action="deny",
            reason="over_limit",
            violated=tuple(label(f"{dimension}:{name}") for name in limits) or (f"{dimension}:status_{status}",),
            subjects=subjects,
            scenario=target.scenario,
            route=target.route,
            status=status,
            limit=number(headers.get(f"x-ratelimit-limit-{window}" if window else "ratelimit-limit")),
            window_s=_WINDOWS.get(window),
            remaining=number(headers.get(f"x-ratelimit-remaining-{window}" if window else "ratelimit-remaining")),
            retry_after_s=number(headers.get("retry-after", headers.get("ratelimit-reset"))),
        )

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        try:
            _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"JSON: {error}"
        return ""

    def _subjects(self, found: _Line, ip: str) -> dict[str, str]:
        subjects: dict[str, str] = {}
        entity, consumer = found.authenticated_entity, found.consumer
        if self._keyed_by == "api_key" and entity is not None:
            key = self._options.subject("api_key", known(entity.id))
            subjects |= {"api_key": key} if key else {}
        if consumer is not None:
            user = self._options.subject("user", known(getattr(consumer, self._user)))
            subjects |= {"user": user} if user else {}
        return subjects | {"ip": ip}


def _exhausted(headers: dict[str, Any]) -> list[str]:
    """The windows of which nothing is left, the longest first: ``X-RateLimit-Remaining-Minute: 0``."""
    return [name for name in reversed(_WINDOWS) if number(headers.get(f"x-ratelimit-remaining-{name}")) == 0]


FORMAT: Final = Format(
    "kong",
    Kong,
    (
        (
            b'{"client_ip":"203.0.113.7","started_at":1779012303123,"request":{"method":"POST",'
            b'"uri":"/coupons/17/claim?c=1","url":"http://shop.example:8000/coupons/17/claim","headers":{}},'
            b'"response":{"status":429,"size":41,"headers":{"x-ratelimit-limit-minute":"5",'
            b'"x-ratelimit-remaining-minute":"0","ratelimit-reset":"12","retry-after":"12"}},'
            b'"consumer":{"id":"3f0f3b0e-8f5e-4d0f-9a55-1d2a4d2a7c11","username":"ann","custom_id":"10086"},'
            b'"authenticated_entity":{"id":"c62c1455-9b1d-4f2d-8797-509ba83b8ae8"},"latencies":{"kong":2}}'
        ),
        (
            b'{"client_ip":"2001:db8::7","started_at":1779012304000,"request":{"method":"GET","uri":"/cart"},'
            b'"response":{"status":200,"size":"434","headers":{"x-ratelimit-remaining-minute":4}},'
            b'"upstream_uri":"/cart","tries":[{"ip":"10.0.0.5","port":80}]}'
        ),
        (
            b'{"client_ip":"203.0.113.8","started_at":1779012305000,"request":{"method":"GET","uri":"/"},'
            b'"response":{"status":429,"headers":{"x-ratelimit-remaining-second":"0",'
            b'"x-ratelimit-remaining-hour":"0"}}}'
        ),
    ),
    {
        "keyed-by": (
            "the dimension that Kong's limits count by: user where there is a consumer and else ip (default), "
            "ip, api_key (the credential's id), shared"
        ),
        "consumer": "what of a consumer is the user: id (default), username or custom_id",
    },
    programs=frozenset({"kong", "nginx"}),
)
