"""Access logs of AWS API Gateway in JSON: throttled requests and used-up quotas.

The keys are whatever the stage's format says; read are the names of the $context variables and of AWS' own examples.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penaltybox.producers.adapters.choices import known, number, status_of
from penaltybox.producers.adapters.plain_json import object_of
from penaltybox.producers.adapters.reading import NO_ADDRESS, NO_TIME, Format, Passed, Unmatched
from penaltybox.producers.adapters.request_log import RequestLog
from penaltybox.producers.adapters.targets import Target
from penaltybox.producers.routes import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penaltybox.contracts.events import Reason
    from penaltybox.producers.adapters.reading import Read

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "ip": ("ip", "sourceIp", "identity.sourceIp"),
    "epoch": ("requestTimeEpoch",),
    "time": ("requestTime",),
    "method": ("httpMethod",),
    "template": ("resourcePath",),
    "route": ("routeKey",),
    "path": ("path",),
    "status": ("status",),
    "kind": ("responseType", "errorResponseType", "error.responseType"),
    "message": ("errorMessage", "error.message"),
    "key": ("apiKeyId", "identity.apiKeyId"),
}
_LIMITS: Final = {"THROTTLED": "throttle", "QUOTA_EXCEEDED": "quota"}
_MESSAGES: Final = {"Too Many Requests": "throttle", "Limit Exceeded": "quota"}
_TEMPLATE: Final = re.compile(r"/[A-Za-z0-9._~{}+/\-]{0,240}", re.ASCII)
_NO_JSON: Final = Unmatched("not a JSON object with ip, status and requestTime or requestTimeEpoch, each once")
_TWO: Final = Unmatched("a client's address, or an API key, under two names that differ")
_NO_ANSWER: Final = Passed("a request without an answer")


class AwsApiGateway(RequestLog):
    """Reads requests. A quota is an API key's; throttling is one too where there is a key, else the address'."""

    counts_by: ClassVar[str] = ""

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        found = object_of(line)
        if found is None or "status" not in found:
            return _NO_JSON
        status = status_of(found["status"])
        if status is None:
            return _NO_ANSWER
        ts_ms = self._time(found)
        if ts_ms is None:
            return NO_TIME
        if any(len({value for value in _values(found, name) if value != "-"}) > 1 for name in ("ip", "key")):
            return _TWO  # one of them may be a key that a client has added
        ip = self._options.address(_text(found, "ip"))
        if ip is None:
            return NO_ADDRESS
        kind = _text(found, "kind")
        limit = _LIMITS.get(kind) or (_MESSAGES.get(_text(found, "message")) if status in self._refusals else None)
        if limit is None and status in self._refusals and not kind.startswith("DEFAULT_"):
            limit = f"status_{status}"
        key = self._options.subject("api_key", _text(found, "key"))
        by_waf = kind == "WAF_FILTERED"
        target = self._target(found)
        subjects = ({"api_key": key} if key else {}) | {"ip": ip}
        dimension = self._keyed_by or ("api_key" if key else "ip")
        reason: Reason | None = "over_limit" if limit else "unknown" if by_waf else None
        return self._request(ts_ms, status, subjects, target, reason, limit or "", dimension)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        del line
        return f"keys that are read: {', '.join(name for names in _NAMES.values() for name in names)}"

    def _time(self, found: Mapping[str, Any]) -> int | None:
        epoch = _value(found, "epoch")
        if number(epoch) is not None:
            return self._times.millis(epoch)
        text = _text(found, "time")
        return self._times.apache(text) or self._times.rfc3339(text)

    def _target(self, found: Mapping[str, Any]) -> Target:
        method, template = _text(found, "method"), _text(found, "template")
        route, targets = _text(found, "route"), self._options.targets
        if route.count(" ") == 1:
            method, template = route.split(" ")
        if method in METHODS and _TEMPLATE.fullmatch(template):  # the API's own, not what was asked for
            return Target(f"{method} {template}", targets.of(method, template).scenario)
        path = _text(found, "path")
        return targets.of(method, path) if method and path else targets.unknown


def _value(found: Mapping[str, Any], field: str) -> Any:
    return next((value for value in _values(found, field) if value != "-"), None)


def _values(found: Mapping[str, Any], field: str) -> Iterator[Any]:
    """What stands under the names of a field, where it is a text or a number."""
    for name in _NAMES[field]:
        outer, dot, inner = name.partition(".")
        value = found.get(name)
        if value is None and dot and isinstance(found.get(outer), dict):
            value = found[outer].get(inner)
        if isinstance(value, str | int | float):
            yield value


def _text(found: Mapping[str, Any], field: str) -> str:
    value = _value(found, field)
    return known(value) if isinstance(value, str) else ""


FORMAT: Final = Format(
    "aws-apigateway",
    AwsApiGateway,
    (
        (
            b'{"requestId":"6f1","ip":"203.0.113.7","apiKeyId":"k3y1d","requestTime":"17/May/2026:10:05:03 +0000",'
            b'"httpMethod":"POST","resourcePath":"/coupons/{id}/claim","status":"429","protocol":"HTTP/1.1",'
            b'"responseType":"QUOTA_EXCEEDED","responseLength":"28"}'
        ),
        (
            b'{"requestId":"6f2","ip":"2001:db8::7","requestTimeEpoch":"1779012304000","httpMethod":"GET",'
            b'"resourcePath":"/cart","status":"429","errorMessage":"Too Many Requests"}'
        ),
        (
            b'{"requestId":"6f3","ip":"203.0.113.8","requestTimeEpoch":1779012305000,"routeKey":"GET /items/{id}",'
            b'"status":200}'
        ),
    ),
    {
        "keyed-by": (
            "the dimension that throttling and quotas count by: api_key where there is one and else ip (default), "
            "ip, shared (a stage's or an account's limit)"
        ),
    },
)
