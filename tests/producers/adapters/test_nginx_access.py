"""nginx's access log, text and JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from penaltybox.producers.adapters.reading import Passed, Reading, Unmatched
from tests.producers.adapters.reading_of import reading, said

NAME = "nginx-access"
AT_MS = int(datetime(2026, 5, 17, 10, 5, 3, tzinfo=UTC).timestamp() * 1000)
AGENT = '"https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64)"'


def _text(
    rest: str, address: str = "203.0.113.7", user: str = "-", request: str = "POST /login?next=%2F HTTP/1.1"
) -> bytes:
    return f'{address} - {user} [17/May/2026:10:05:03 +0000] "{request}" {rest}'.encode()


def _json(**fields: object) -> bytes:
    given = {
        "remote_addr": "203.0.113.7",
        "time_iso8601": "2026-05-17T10:05:03+00:00",
        "request": "POST /login?next=%2F HTTP/1.1",
        "status": "200",
    } | fields
    return json.dumps({key: value for key, value in given.items() if value is not None}).encode()


def _reading(**fields: object) -> Reading:
    given = {
        "ts_ms": AT_MS,
        "action": "deny",
        "reason": "over_limit",
        "violated": ("ip:limit_req",),
        "subjects": {"ip": "203.0.113.7"},
        "scenario": "web",
        "route": "POST /login",
        "status": 429,
    }
    return Reading(**(given | fields))


_ALLOWED = _reading(action="allow", reason=None, violated=(), status=200)
_LINES = [
    (_text(f"429 162 {AGENT}"), _reading()),
    (_text("503 0"), _reading(action="allow", reason=None, violated=(), status=503)),  # an outage of the upstream
    (_text(f"200 162 {AGENT}"), _ALLOWED),
    (_text(f'429 - {AGENT} "-" rt=0.001 uct="0.000"'), _reading()),
    (_text(f"200 162 {AGENT} PASSED"), _ALLOWED),
    (_text(f"200 162 {AGENT} DELAYED"), _reading(action="delay", status=200)),
    (_text(f"429 162 {AGENT} REJECTED"), _reading()),
    (_text(f'200 162 {AGENT} "-" limit_req_status=REJECTED_DRY_RUN'), _reading(status=200, enforced=False)),
    (_text(f"200 162 {AGENT} DELAYED_DRY_RUN"), _reading(action="delay", status=200, enforced=False)),
    # by nginx's own word it was not this limit, whatever the status
    (_text(f"503 162 {AGENT} PASSED"), _reading(action="allow", reason=None, violated=(), status=503)),
    (_text("429 162", address="2001:db8::7"), _reading(subjects={"ip": "2001:db8::7"})),
    (_text("429 162", user="ann [x] smith"), _reading()),
    (_text("429 162", user='""'), _reading()),
    (_text("429 162", request="-"), _reading(route="INVALID")),
    (_text("429 162", request=r"\x16\x03\x01\x02\x00"), _reading(route="INVALID")),
    (_text("429 162", request=r"GET /\x22 200 5 \x22-\x22 HTTP/1.1"), _reading(route="GET /{text}")),
    (_json(limit_req_status="REJECTED", status="429"), _reading()),
    (_json(limit_req_status="REJECTED", status=503), _reading(status=503)),
    (_json(limit_req_status="PASSED"), _ALLOWED),
    (_json(limit_req_status=""), _ALLOWED),
    (_json(limit_req_status="", status="429"), _reading()),
    (_json(limit_req_status="DELAYED"), _reading(action="delay", status=200)),
    (_json(limit_req_status="REJECTED_DRY_RUN"), _reading(status=200, enforced=False)),
    (
        _json(limit_req_status="PASSED", limit_conn_status="REJECTED", status=503),
        _reading(status=503, violated=("ip:limit_conn",)),
    ),
    (_json(limit_conn_status="REJECTED_DRY_RUN"), _reading(status=200, enforced=False, violated=("ip:limit_conn",))),
    (_json(time_iso8601=None, msec=1779012303.0, status=429), _reading()),
    (_json(time_iso8601=None, msec="1779012303.000", status=429), _reading()),
    (_json(time_iso8601=None, time_local="17/May/2026:12:05:03 +0200", status=429), _reading()),
    (_json(request=None, request_method="POST", uri="/login", status=429), _reading()),
    (_json(request=None, request_method="POST", request_uri="/login?a=b", uri="/index.php", status=429), _reading()),
    (_json(request=None, status=429), _reading(route="")),
    (_json(user_agent='","limit_req_status":"PASSED', status=429), _reading()),
]


@pytest.mark.parametrize(("line", "expected"), _LINES)
def test_lines_are_decisions(line: bytes, expected: Reading) -> None:
    """By status, or by what nginx says of its limit, text and JSON alike."""
    assert said(NAME, line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b'{"remote_addr":"203.0.113.7"',
        b"2026/05/17 10:05:07 [notice] 1#1: signal process started",
        _text("999 162"),
        _text("429"),
        _text("429 162", address="crawler.example"),
        _text("429 162", address="unix:"),
        _text("429 162").replace(b"17/May", b"31/Feb"),
        _text("429 162").replace(b"10:05:03", b"10:05:61"),
        _json(status="OK"),
        _json(status="\uff14\uff12\uff19"),
        _json(remote_addr="203.0.113.7:443", status=429),
        _json(remote_addr=7, status=429),
        _json(time_iso8601=None, status=429),
        _json(msec="nan", status=429),
        _json(msec=1779012303000, status=429),
        _json(limit_req_status="MAYBE"),
    ],
)
def test_what_is_no_such_line_is_unmatched(line: bytes) -> None:
    """Neither another shape nor an impossible client, time or status is guessed at."""
    assert isinstance(said(NAME, line), Unmatched)


def test_a_connection_without_a_request_is_passed_over() -> None:
    """nginx writes status 000 for it."""
    assert isinstance(said(NAME, _text("000 0", request="")), Passed)


def test_options() -> None:
    """Which statuses refuse, what the limit is called, which key has the address."""
    assert reading(NAME, _text("503 0"), reject_statuses=frozenset({429, 503})).action == "deny"
    assert reading(NAME, _text("403 0"), reject_statuses=frozenset({403})).action == "deny"
    assert reading(NAME, _text("429 0"), values={"zone": "login"}).violated == ("ip:login",)
    proxied = _json(status=429, remote_addr="10.0.0.1", real_ip="203.0.113.9")
    assert reading(NAME, proxied, values={"address": "real_ip"}).subjects == {"ip": "203.0.113.9"}


def test_an_address_that_a_client_adds_spoils_the_line() -> None:
    """With `escape=none` an agent with quotes adds keys; a text that only looks like the key does not matter."""
    line = _json(status=429, agent="remote_addr")
    assert reading(NAME, line).subjects == {"ip": "203.0.113.7"}
    forged = line[:-1] + b',"x":"","remote_addr":"198.51.100.1","y":""}'
    assert isinstance(said(NAME, forged), Unmatched)
