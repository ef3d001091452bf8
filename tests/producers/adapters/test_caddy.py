"""Caddy's JSON logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.producers.adapters.brief import brief, told
from tests.producers.adapters.reading_of import adapter, reading

AT_MS = 1_779_012_303_702


def _access(status: Any = 429, request: dict[str, Any] | None = None, **fields: Any) -> str:
    asked = {"remote_ip": "203.0.113.7", "client_ip": "203.0.113.7", "method": "POST", "uri": "/login?x=1",
             "headers": {"X-Forwarded-For": ["198.51.100.1"]}}  # fmt: skip
    given = {"level": "info", "ts": 1779012303.7022, "logger": "http.log.access.log0", "msg": "handled request",
             "request": asked | (request or {}), "user_id": "", "status": status}  # fmt: skip
    return json.dumps(given | fields)


def _limited(**fields: Any) -> str:
    given = {"level": "info", "ts": 1779012303.7, "logger": "http.handlers.rate_limit", "msg": "rate limit exceeded",
             "zone": "per_ip", "wait": 11.047, "remote_ip": "203.0.113.7"}  # fmt: skip
    return json.dumps(given | fields)


DENIED = "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | POST /login"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_access(), DENIED),
        (_access(request={"client_ip": "2001:db8::7"}),
         "deny over_limit ip:status_429 | ip=2001:db8::7 | 429 | POST /login"),
        (_access(request={"client_ip": "", "remote_ip": "", "remote_addr": "203.0.113.7:5"}), DENIED),
        (_access(200, user_id="ann"), "allow | ip=203.0.113.7,user=ann | 200 | POST /login"),
        (_access(200, user_id="x" * 200), "allow | ip=203.0.113.7 | 200 | POST /login"),
        (_access(0), "passed: a connection that ended before an answer (status 0)"),
        (_limited(), "deny over_limit ip:per_ip | ip=203.0.113.7 | 429 | - | retry_after_s=12"),
        (_limited(wait="11s", key="secret"), "deny over_limit ip:per_ip | ip=203.0.113.7 | 429 | -"),
        (_limited(remote_ip="@"), "unmatched: the client is no address"),
        (_limited(ts="soon"), "unmatched: no time, or one that does not exist"),
        (_access(request={"client_ip": "unix"}), "unmatched: the client is no address"),
        (_access(msg="rate limit exceeded"), "passed: another message of Caddy"),
        ('{"level":"info","ts":1779012305.1,"logger":"tls","msg":"x"}', "passed: another message of Caddy"),
        ('{"level":"info"}', "unmatched: not a JSON line of Caddy's logs (ts, logger, msg)"),
        ("2026/05/17 10:05:03 INFO http.log.access handled request {}",
         "unmatched: not a JSON line of Caddy's logs (ts, logger, msg)"),
    ],
)  # fmt: skip
def test_lines(line: str, expected: str) -> None:
    """Both kinds of lines are decisions; other messages, and what headers claim, are not."""
    assert told("caddy", line) == expected


def test_a_request_that_both_logs_tell_counts_once() -> None:
    """The limiter's line comes first and names the zone; the access log's line of the same request is passed over."""
    log = adapter("caddy")
    lines = [_limited(), _limited(remote_ip="203.0.113.8"), _access(), _access()]
    told_of = [brief(log.read(line.encode())).split(" |")[0] for line in lines]
    assert told_of == [
        "deny over_limit ip:per_ip",
        "deny over_limit ip:per_ip",
        "passed: the rate limiter's own line has told this request",
        "deny over_limit ip:status_429",
    ]


def test_the_limiters_lines_can_be_skipped() -> None:
    """Behind a proxy they name the proxy, so the access log must tell."""
    assert told("caddy", _limited(), values={"rate-limit-lines": "skip"}).startswith("passed")


@pytest.mark.parametrize(
    ("ts", "expected"),
    [
        (1779012303.7022, AT_MS),
        (1779012303702.2, AT_MS),
        (1779012303702200000, AT_MS),
        ("2026-05-17T10:05:03.702Z", AT_MS),
        ("2026-05-17T12:05:03.702+0200", AT_MS),
        ("2026/05/17 10:05:03.702", AT_MS),
        ("17/May/2026:10:05:03 +0000", AT_MS - 702),
    ],
)
def test_every_form_of_time_is_read(ts: Any, expected: int) -> None:
    """Caddy's `time_format` has many values."""
    assert reading("caddy", _access(ts=ts).encode()).ts_ms == expected
