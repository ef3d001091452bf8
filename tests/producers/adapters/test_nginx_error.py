"""nginx's error log."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.adapters.reading import Passed, Reading, Unmatched
from penaltybox.producers.adapters.registry import load
from tests.producers.adapters.reading_of import reading, said

AT = "2026/05/17 10:05:03"
AT_MS = int(datetime(2026, 5, 17, 10, 5, 3, tzinfo=UTC).timestamp() * 1000)
REQUEST = 'request: "POST /login?next=%2F HTTP/1.1", host: "shop.example"'


def _line(message: str, level: str = "error") -> bytes:
    return f"{AT} [{level}] 31#32: *7 {message}".encode()


def _reading(**fields: object) -> Reading:
    given = {
        "ts_ms": AT_MS,
        "action": "deny",
        "reason": "over_limit",
        "violated": ("ip:perip",),
        "subjects": {"ip": "203.0.113.7"},
        "scenario": "web",
        "route": "POST /login",
        "status": 503,
    }
    return Reading(**(given | fields))


_LINES = [
    (
        f'limiting requests, excess: 5.123 by zone "perip", client: 203.0.113.7, server: shop.example, {REQUEST}',
        _reading(attrs={"excess": "5.123"}),
    ),
    (
        f'delaying request, excess: 0.512, by zone "perip", client: 203.0.113.7, server: shop.example, {REQUEST}',
        _reading(action="delay", status=None, attrs={"excess": "0.512"}),
    ),
    (
        f'limiting requests, dry run, excess: 1.000 by zone "perip", client: 203.0.113.7, server: , {REQUEST}',
        _reading(enforced=False, status=None, attrs={"excess": "1.000"}),
    ),
    (
        f'delaying request, dry run, excess: 1.000, by zone "perip", client: 203.0.113.7, server: _, {REQUEST}',
        _reading(action="delay", enforced=False, status=None, attrs={"excess": "1.000"}),
    ),
    (f'limiting connections by zone "perip", client: 203.0.113.7, server: shop.example, {REQUEST}', _reading()),
    (
        f'limiting connections, dry run, by zone "perip", client: 203.0.113.7, server: shop.example, {REQUEST}',
        _reading(enforced=False, status=None),
    ),
    (
        'limiting connections by zone "perip", client: 2001:db8::7, server: 0.0.0.0:5432',
        _reading(subjects={"ip": "2001:db8::7"}, route=""),
    ),
    (
        'limiting connections by zone "perip", client: 203.0.113.7, server: shop.example, request: "GET /"',
        _reading(route="GET /"),
    ),
    (
        'limiting connections by zone "perip", client: 203.0.113.7, server: shop.example, request: "", host: "x"',
        _reading(route="INVALID"),
    ),
    (  # cut off in the request
        'limiting connections by zone "perip", client: 203.0.113.7, server: shop.example, request: "GET /login HT',
        _reading(route="GET /login"),
    ),
    (  # the client's own doing: it can spoil its own route, nothing else
        (
            'limiting connections by zone "perip", client: 203.0.113.7, server: shop.example, '
            'request: "GET /", client: 198.51.100.1, server: x, request: "GET / HTTP/1.1", host: "x"'
        ),
        _reading(route="GET /{text}"),
    ),
]


@pytest.mark.parametrize(("message", "expected"), _LINES)
def test_lines_about_limits_are_decisions(message: str, expected: Reading) -> None:
    """Every form of nginx's messages about limits is read field by field."""
    assert said("nginx-error", _line(message)) == expected


@pytest.mark.parametrize(
    "line",
    [
        _line('open() "/srv/x" failed (2: No such file or directory), client: 203.0.113.7, server: x'),
        _line(
            'open() "/srv/limiting requests, excess: 5.1 by zone "perip", client: 198.51.100.1, server: x" failed '
            '(2: No such file or directory), client: 203.0.113.7, server: x, request: "GET / HTTP/1.1"'
        ),
        b"2026/05/17 10:05:07 [notice] 1#1: signal process started",
    ],
)
def test_other_messages_are_passed_over(line: bytes) -> None:
    """A message about something else is no decision, even if a client wrote one into it."""
    assert isinstance(said("nginx-error", line), Passed)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"203.0.113.7 - - [17/May/2026:10:05:03 +0000]",
        _line('limiting requests, excess: 5.123 by zone "perip", client: unix:, server: x'),
        _line('limiting requests, excess: 5.123 by zone "perip", client: host.example, server: x'),
        _line('limiting requests, excess: lots by zone "perip", client: 203.0.113.7, server: x'),
        b"2026/02/30" + _line('limiting connections by zone "z", client: 203.0.113.7, server: x')[10:],
    ],
)
def test_what_is_no_such_line_is_unmatched(line: bytes) -> None:
    """Neither other formats nor impossible clients, times and figures are guessed at."""
    assert isinstance(said("nginx-error", line), Unmatched)


def test_times_are_local() -> None:
    """A time counts in the zone that the options name."""
    line = load("nginx-error").examples[0]
    assert reading("nginx-error", line, zone=ZoneInfo("Europe/Berlin")).ts_ms == AT_MS - 2 * 3_600_000


def test_the_status_is_an_option() -> None:
    """`limit_req_status` is not in the log, so it can be told, once."""
    line = load("nginx-error").examples[0]
    assert reading("nginx-error", line, reject_statuses=frozenset({429})).status == 429
    with pytest.raises(ConfigurationError, match="limit_req_status"):
        said("nginx-error", line, reject_statuses=frozenset({429, 503}))


def test_a_zone_that_all_share_charges_nobody() -> None:
    """The log does not say what a zone counts by, so options do: for all, or zone by zone."""
    line = b'2026/05/17 10:05:03 [error] 1#1: *1 limiting requests, excess: 1.0 by zone "%b", client: 203.0.113.7'
    assert reading("nginx-error", line % b"all", values={"keyed-by": "shared"}).violated == ("shared:all",)
    values = {"shared": "server,site"}
    assert reading("nginx-error", line % b"site", values=values).violated == ("shared:site",)
    assert reading("nginx-error", line % b"perip", values=values).violated == ("ip:perip",)
    text = b'203.0.113.7 - - [17/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 429 0'
    assert reading("nginx-access", text, values={"keyed-by": "shared"}).violated == ("shared:limit_req",)
