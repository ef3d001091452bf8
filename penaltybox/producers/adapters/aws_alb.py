"""Access logs of AWS' Application Load Balancer: 429, and what AWS WAF refused behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.producers.adapters.choices import KEYED_BY, status_of
from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_ANSWER,
    NO_SUCH_TIME,
    Format,
    Unmatched,
    decoded,
)
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Read

_TEXT: Final = r'"[^"]*"'
# All up to the request is the load balancer's own.
_LINE: Final = Form(
    ("type", r"(?:https?|h2|grpcs|wss?) "),
    ("time", r"(\d{4}-\d\d-\d\dT[\d:.]+Z) "),
    ("load balancer", r"[^ ]+ "),
    ("client address and port", r"([^ ]+) "),
    ("target", r"[^ ]+ "),
    ("times", r"(?:-?[\d.]+ ){3}"),
    ("status", r"(\d+|-) "),
    ("target's status", r"(\d+|-) "),
    ("bytes", r"(?:\d+|-) (?:\d+|-)"),
    ("request", r'(?: "([^"]*)"?)?'),
    ("the rest", r"(.*)"),
)
_REST: Final = Form(
    ("user agent", rf" {_TEXT}"),
    ("cipher, protocol, target group", r" [^ ]+ [^ ]+ [^ ]+"),
    ("trace, domain, certificate", rf" {_TEXT} {_TEXT} {_TEXT}"),
    ("priority of the rule, time of the request", r" [^ ]+ [^ ]+"),
    ("actions executed", r' "([^"]*)"'),
    ("more fields", r".*"),
)
_NO_LINE: Final = Unmatched("not a line of an Application Load Balancer's access log")


class AwsAlb(RequestLog):
    """Reads requests. The load balancer counts nothing itself: 429 is a rule's, WAF's or the target's."""

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        match = _LINE.match(decoded(line))
        if match is None:
            return _NO_LINE
        time, client, code, target_code, request, rest = match.groups()
        status = status_of(code)
        if status is None:
            return NO_ANSWER
        ts_ms = self._times.rfc3339(time)
        if ts_ms is None:
            return NO_SUCH_TIME
        ip = self._client(client)
        if ip is None:
            return NO_ADDRESS
        tail = _REST.match(rest)
        by_waf = tail is not None and tail[1].rpartition(",")[2] == "waf"
        refused = status in self._refusals
        who = "waf" if by_waf else "target" if status_of(target_code) == status else "load_balancer"
        targets = self._options.targets
        target = targets.of_line(request) if request is not None else targets.unknown
        if refused:
            return self._request(ts_ms, status, {"ip": ip}, target, "over_limit", who)
        return self._request(ts_ms, status, {"ip": ip}, target, "unknown" if by_waf else None)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        return _LINE.explain(decoded(line))

    def _client(self, text: str) -> str | None:
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit():
            return None
        return self._options.address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)


_ARN: Final = b"arn:aws:elasticloadbalancing:eu-west-1:111122223333:targetgroup/shop/73e2d6bc24d8a067"
FORMAT: Final = Format(
    "aws-alb",
    AwsAlb,
    (
        (
            b"https 2026-05-17T10:05:03.186641Z app/shop/50dc6c495c0c9188 203.0.113.7:2817 10.0.0.1:8080 0.000 0.002 "
            b'0.000 429 429 34 366 "POST https://shop.example:443/login?x=1 HTTP/1.1" "curl/8.5" '
            b"ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 " + _ARN + b' "Root=1-58337281-1d84f3d73c47ec4e58577259" '
            b'"shop.example" "arn:aws:acm:eu-west-1:111122223333:certificate/1" 1 2026-05-17T10:05:03.180000Z '
            b'"forward" "-" "-" "10.0.0.1:8080" "429" "-" "-" TID_1'
        ),
        (
            b"h2 2026-05-17T10:05:04.000000Z app/shop/50dc6c495c0c9188 203.0.113.8:40112 - -1 -1 -1 403 - 70 440 "
            b'"GET https://shop.example:443/ HTTP/2.0" "Mozilla/5.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 - '
            b'"Root=1-58337281-1d84f3d73c47ec4e58577260" "shop.example" "session-reused" 0 '
            b'2026-05-17T10:05:03.999000Z "waf" "-" "-" "-" "-" "-" "-"'
        ),
        (
            b"http 2026-05-17T10:05:05.000000Z app/shop/50dc6c495c0c9188 [2001:db8::7]:40112 10.0.0.1:80 0.000 0.001 "
            b'0.000 200 200 34 366 "GET http://shop.example:80/cart HTTP/1.1" "curl/8.5" - - ' + _ARN + b" "
            b'"Root=1-58337262-36d228ad5d99923122bbe354" "-" "-" 0 2026-05-17T10:05:04.900000Z "forward" "-" "-" '
            b'"10.0.0.1:80" "200" "-" "-"'
        ),
    ),
    {"keyed-by": KEYED_BY},
)
