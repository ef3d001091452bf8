"""Envoy's access log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penaltybox.contracts.errors import ConfigurationError
from tests.producers.adapters.brief import told
from tests.producers.adapters.reading_of import reading

ADDRESS = "203.0.113.7:59364"


def _line(**fields: Any) -> str:
    given = {
        "start_time": "2026-05-17T10:05:03.458Z",
        "method": "POST",
        "path": "/coupons/17/claim?c=1",
        "response_code": 429,
        "response_flags": "-",
        "response_code_details": "via_upstream",
        "downstream_remote_address": ADDRESS,
        "x_forwarded_for": "198.51.100.1",
        "user_agent": None,
    }
    return json.dumps({name: value for name, value in (given | fields).items() if value != "(none)"})


ROUTE = "POST /coupons/{n}/claim"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"response_flags": "RL", "response_code_details": "local_rate_limited"},
            f"deny over_limit ip:local_rate_limited | ip=203.0.113.7 | 429 | {ROUTE}",
        ),
        (
            {"response_code_details": "request_rate_limited"},
            f"deny over_limit ip:request_rate_limited | ip=203.0.113.7 | 429 | {ROUTE}",
        ),
        (
            {"response_flags": "RL", "response_code_details": None, "response_code": 200},  # gRPC answers 200
            f"deny over_limit ip:rate_limited | ip=203.0.113.7 | 200 | {ROUTE}",
        ),
        ({"response_flags": "RateLimited", "response_code_details": "-"},
         f"deny over_limit ip:rate_limited | ip=203.0.113.7 | 429 | {ROUTE}"),
        ({}, f"deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | {ROUTE}"),
        ({"response_code": "429"}, f"deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | {ROUTE}"),
        ({"response_flags": "RLSE", "response_code": 500, "response_code_details": "rate_limiter_error"},
         f"deny fail_closed | ip=203.0.113.7 | 500 | {ROUTE}"),
        ({"response_flags": "RLSE", "response_code": 200}, f"allow fail_open | ip=203.0.113.7 | 200 | {ROUTE}"),
        ({"response_flags": "UAEX", "response_code": 403, "response_code_details": "ext_authz_denied"},
         f"deny unknown | ip=203.0.113.7 | 403 | {ROUTE}"),
        ({"response_flags": "UAEX", "response_code": 403, "response_code_details": "ext_authz_error"},
         f"deny fail_closed | ip=203.0.113.7 | 403 | {ROUTE}"),
        ({"response_code": 200}, f"allow | ip=203.0.113.7 | 200 | {ROUTE}"),
        ({"response_code": 503, "response_flags": "UF,URX"}, f"allow | ip=203.0.113.7 | 503 | {ROUTE}"),
        ({"downstream_remote_address": "[2001:db8::7]:4711"},
         f"deny over_limit ip:status_429 | ip=2001:db8::7 | 429 | {ROUTE}"),
        ({"downstream_direct_remote_address": "203.0.113.9:5", "downstream_remote_address": "198.51.100.1:0"},
         f"deny over_limit ip:status_429 | ip=203.0.113.9 | 429 | {ROUTE}"),
        ({"path": "-", "x-envoy-origin-path": "/cart"},
         "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | POST /cart"),
        ({"path": None}, "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | -"),
    ],
)  # fmt: skip
def test_lines_are_decisions(fields: dict[str, Any], expected: str) -> None:
    """Flags, details and status say what happened; an outage of a limiter is nobody's offence."""
    assert told("envoy", _line(**fields)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_code": 0, "response_flags": "DC"}, "passed: a connection that ended before an answer (status 0)"),
        ({"response_code": "-"}, "passed: a connection that ended before an answer (status 0)"),
        ({"response_code": 404, "response_flags": "NR"}, "passed: answered by Envoy before any limit was asked"),
        ({"downstream_remote_address": "198.51.100.1:0"},
         "unmatched: Envoy took the address from X-Forwarded-For (its port is 0); see --option address"),
        ({"downstream_remote_address": "-"},
         "unmatched: no address of the client under a key that is known, or of --option address"),
        ({"downstream_remote_address": "(none)"},
         "unmatched: no address of the client under a key that is known, or of --option address"),
        ({"downstream_remote_address": "client.example:80"},
         "unmatched: no address of the client under a key that is known, or of --option address"),
        ({"start_time": "yesterday"}, "unmatched: no time, or one that does not exist"),
        ({"start_time": "(none)"}, "unmatched: no time, or one that does not exist"),
    ],
)  # fmt: skip
def test_what_says_nothing_is_left_out(fields: dict[str, Any], expected: str) -> None:
    """Neither an address that clients write, nor a line without an answer, becomes a decision."""
    assert told("envoy", _line(**fields)) == expected


def test_a_key_that_a_client_adds_spoils_the_line() -> None:
    """JSON put together by hand escapes nothing: an agent with quotes adds a key, and cannot remove the true one."""
    forged = 'x","downstream_remote_address":"198.51.100.1:5","z":"'
    for line in (_line(), _line(agent="plain")):
        by_hand = f'{line[:-1]}, "by_hand": "{forged}"}}'
        assert told("envoy", by_hand) == "unmatched: not JSON with response_code, each key once"
    direct = f'{_line()[:-1]}, "by_hand": "x","downstream_direct_remote_address":"198.51.100.1:5","z":""}}'
    assert told("envoy", direct).startswith("unmatched: two addresses of the client that differ")
    assert told("envoy", _line(downstream_direct_remote_address="203.0.113.7:5")).startswith("deny over_limit")
    spaced = _line()[:-1] + ', "downstream_\u0072emote_address" : "198.51.100.1:5"}'
    assert told("envoy", spaced) == "unmatched: not JSON with response_code, each key once"


def test_text_logs_are_not_read() -> None:
    """Envoy's default text has no address but X-Forwarded-For."""
    line = '[2026-05-17T10:05:03.458Z] "GET /b HTTP/1.1" 429 RL 0 18 0 - "198.51.100.1" "curl" "7fa8" "shop" "-"'
    assert told("envoy", line).startswith("unmatched: not JSON")


def test_options_say_what_the_log_does_not() -> None:
    """A key of the address that the operator trusts, who counts, and what external authorisation means."""
    line = _line(downstream_remote_address="198.51.100.1:0").encode()
    values = {"address": "downstream_remote_address", "keyed-by": "shared"}
    found = reading("envoy", line, values=values)
    assert (found.subjects, found.violated) == ({"ip": "198.51.100.1"}, ("shared:status_429",))
    found = reading("envoy", _line(client="203.0.113.99").encode(), values={"address": "client"})
    assert found.subjects == {"ip": "203.0.113.99"}
    denied = _line(response_flags="UAEX", response_code=429, response_code_details="ext_authz_denied").encode()
    assert reading("envoy", denied, values={"ext-authz": "over_limit"}).violated == ("ip:ext_authz",)
    for wrong in ({"ext-authz": "maybe"}, {"keyed-by": "Not A Name"}):
        with pytest.raises(ConfigurationError, match="wanted"):
            reading("envoy", line, values=wrong)
