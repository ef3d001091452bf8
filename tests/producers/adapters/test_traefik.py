"""Traefik's access log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.producers.adapters.brief import told


def _json(**fields: Any) -> str:
    given = {
        "ClientAddr": "203.0.113.7:35172",
        "ClientHost": "203.0.113.7",
        "ClientUsername": "-",
        "DownstreamStatus": 429,
        "OriginStatus": 0,
        "RequestMethod": "GET",
        "RequestPath": "/cart/9?x=1",
        "RouterName": "shop@file",
        "StartUTC": "2026-05-17T10:05:03.258878164Z",
        "request_X-Forwarded-For": "198.51.100.1",
    }
    return json.dumps(given | fields)


def _common(
    start: str = "203.0.113.7 - -", status: str = "429", agent: str = "curl/8.5", end: str = ' 2 "shop@file" "-" 0ms'
) -> str:
    request = '"GET /cart/9?x=1 HTTP/1.1"'
    return f'{start} [17/May/2026:10:05:05 +0000] {request} {status} 17 "-" "{agent}"{end}'  # fmt: skip


DENIED = "deny over_limit ip:shop@file | ip=203.0.113.7 | 429 | GET /cart/{n}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_json(), DENIED),
        (_json(DownstreamStatus="429"), DENIED),
        (_json(RouterName="-"), "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | GET /cart/{n}"),
        (_json(ClientAddr="[2001:db8::7]:1"), "deny over_limit ip:shop@file | ip=2001:db8::7 | 429 | GET /cart/{n}"),
        (_json(ClientHost="198.51.100.1"), DENIED),
        (_json(DownstreamStatus=200), "allow | ip=203.0.113.7 | 200 | GET /cart/{n}"),
        (_json(DownstreamStatus=0), "passed: a connection that ended before an answer"),
        (_json(StartUTC="-"), "unmatched: no time, or one that does not exist"),
        (_json(ClientAddr="@"), "unmatched: the client is no address"),
        ('{"level":"error","msg":"router not found"}',
         "unmatched: not JSON with StartUTC, ClientAddr and DownstreamStatus"),
        (_common(), DENIED),
        (_common("203.0.113.7 - a b] [c"), DENIED),
        (_common(agent='x\\" 1 \\"forged@file'), DENIED),
        (_common(end=""), "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | GET /cart/{n}"),
        (_common("2001:db8::7 - -", "200"), "allow | ip=2001:db8::7 | 200 | GET /cart/{n}"),
        (_common("203.0.113.7, 10.0.0.1 - -"), "unmatched: not a line of Traefik's access log"),
        (_common("host.example - -"), "unmatched: the client is no address"),
        (_common(status="-"), "passed: a connection that ended before an answer"),
        (_common().replace("?x=1", '?x="a"\\'), DENIED),  # Traefik escapes nothing of a query
        (_common().replace("?x=1", '?x=1 HTTP/2.0" 200 5 "-" "-" 1 "r" "-" 0ms'),
         "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | GET /cart/{n}"),
        (_common(agent='" 1 "r" "-" 0ms" 429 5 "-'), DENIED),
        (_common().replace("17/May", "32/May"), "unmatched: no time, or one that does not exist"),
    ],
)  # fmt: skip
def test_lines(line: str, expected: str) -> None:
    """Both forms say the same; the router stands for the limit."""
    assert told("traefik", line) == expected


def test_behind_a_trusted_proxy_its_last_word_counts() -> None:
    """ClientHost is the whole X-Forwarded-For then; what clients wrote stands before the proxy's own entry."""
    line = _json(ClientAddr="10.0.0.1:5", ClientHost="198.51.100.1, 203.0.113.7")
    assert told("traefik", line, values={"address": "ClientHost"}) == DENIED
