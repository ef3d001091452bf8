"""Kong's file-log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.producers.adapters.brief import told

CONSUMER = {"id": "3f0f3b0e", "username": "ann", "custom_id": "10086"}
MINUTE = {"x-ratelimit-limit-minute": "5", "X-RateLimit-Remaining-Minute": "0", "retry-after": "12"}


def _line(status: Any = 429, headers: dict[str, Any] | None = None, **fields: Any) -> str:
    given = {
        "client_ip": "203.0.113.7",
        "started_at": 1779012303123,
        "request": {"method": "POST", "uri": "/coupons/17/claim?c=1", "headers": {"x-forwarded-for": "198.51.100.1"}},
        "response": {"status": status, "size": "41", "headers": headers or {}},
        "latencies": {"kong": 2},
    }
    return json.dumps(given | fields)


USED_UP = "window_s=60 | remaining=0 | retry_after_s=12"
ROUTE = "POST /coupons/{n}/claim"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_line(headers=MINUTE),
         f"deny over_limit ip:minute | ip=203.0.113.7 | 429 | {ROUTE} | limit=5 | {USED_UP}"),
        (_line(headers=MINUTE, consumer=CONSUMER),
         f"deny over_limit user:minute | user=3f0f3b0e,ip=203.0.113.7 | 429 | {ROUTE} | limit=5 | {USED_UP}"),
        (_line(headers={"x-ratelimit-remaining-second": 0, "x-ratelimit-remaining-hour": ["0"]}),
         f"deny over_limit ip:hour ip:second | ip=203.0.113.7 | 429 | {ROUTE} | window_s=3600 | remaining=0"),
        (_line(headers={"ratelimit-limit": 5, "ratelimit-remaining": 0, "ratelimit-reset": 30}),
         f"deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | {ROUTE} | limit=5 | remaining=0 | retry_after_s=30"),
        (_line(), f"deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | {ROUTE}"),
        (_line(200, consumer=CONSUMER), f"allow | user=3f0f3b0e,ip=203.0.113.7 | 200 | {ROUTE}"),
        (_line(client_ip="2001:db8::7"), f"deny over_limit ip:status_429 | ip=2001:db8::7 | 429 | {ROUTE}"),
        (_line(consumer={"username": "ann"}), f"deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | {ROUTE}"),
        (_line(request=None), "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | -"),
        (_line(None), "passed: a request without an answer"),
        (_line(response=None), "passed: a request without an answer"),
        (_line(client_ip="unix:"), "unmatched: the client is no address"),
        (_line(started_at=-1), "unmatched: a time that does not exist"),
        ('{"message":"x"}', "unmatched: not a JSON line of Kong's log (client_ip, started_at, response)"),
        ('203.0.113.7 - - "GET /"', "unmatched: not a JSON line of Kong's log (client_ip, started_at, response)"),
    ],
)  # fmt: skip
def test_lines(line: str, expected: str) -> None:
    """The windows that are used up are the limits; they are the consumer's where there is one."""
    assert told("kong", line) == expected


def test_options_say_who_counts() -> None:
    """What of a consumer is the user, and by what Kong counts."""
    line = _line(consumer=CONSUMER, authenticated_entity={"id": "c62c1455"})
    assert "user:status_429 | user=ann," in told("kong", line, values={"consumer": "username"})
    by_key = told("kong", line, values={"keyed-by": "api_key"})
    assert by_key.startswith("deny over_limit api_key:status_429 | api_key=c62c1455,user=3f0f3b0e,ip=")
