"""HAProxy's HTTP log."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.producers.adapters.brief import told
from tests.producers.adapters.reading_of import reading


def _line(
    status: str = "429",
    state: str = "PR--",
    client: str = "203.0.113.7:33317",
    rest: str | None = None,
    cookies: str = "- -",
) -> str:
    rest = ' "POST /login?x=1 HTTP/1.1"' if rest is None else rest
    return (
        f"{client} [17/May/2026:10:05:03.655] shop~ shop/<NOSRV> 0/-1/-1/-1/0 {status} 190 {cookies} {state} "
        f"12/12/0/0/0 0/0{rest}"
    )  # fmt: skip


DENIED = "deny over_limit ip:shop | ip=203.0.113.7 | 429 | POST /login"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_line(), DENIED),
        (_line(rest=' {shop.example|curl/8} {} "POST /login HTTP/1.1"'), DENIED),
        (_line(rest=' {my "agent} "POST /login HTTP/1.1"'), DENIED),
        (_line(rest=' "POST /login HTTP/1.1" 0/0000000000000000/0/0/0 -/-/-'), DENIED),
        (_line(rest=' "POST /login HTT'), DENIED),
        (_line(rest=""), "deny over_limit ip:shop | ip=203.0.113.7 | 429 | -"),
        (_line(state="----"), DENIED),
        (_line(client="2001:db8::7:33317"), "deny over_limit ip:shop | ip=2001:db8::7 | 429 | POST /login"),
        (_line(client="::ffff:203.0.113.7:1"), "deny over_limit ip:shop | ip=::ffff:203.0.113.7 | 429 | POST /login"),
        (_line(client="<134>203.0.113.7:33317"), DENIED),
        (_line("500", "PT--"), "deny unknown | ip=203.0.113.7 | 500 | POST /login | tarpit=yes"),
        (_line("429", "PT--"), f"{DENIED} | tarpit=yes"),
        (_line("403"), "deny unknown | ip=203.0.113.7 | 403 | POST /login"),
        (_line("200", "----"), "allow | ip=203.0.113.7 | 200 | POST /login"),
        (_line("503", "SC--"), "allow | ip=203.0.113.7 | 503 | POST /login"),
        (_line("400", "----"), "allow | ip=203.0.113.7 | 400 | POST /login"),
        (_line(cookies='SID="a b" -'), DENIED),
        (_line("400", rest=' "<BADREQ>"'), "passed: a request that HAProxy could not read"),
        (_line("408", "cR--", rest=' "<BADREQ>"'), "passed: a request that HAProxy could not read"),
        (_line("-1", "CR--"), "passed: a connection that ended before an answer"),
        (_line(client="unix:1"), "unmatched: the client is no address"),
        (_line(client="host.example:80"), "unmatched: not a line of HAProxy's HTTP log"),
        (_line().replace("May", "Foo"), "unmatched: a time that does not exist"),
        (_line().replace("17/May", "31/Feb"), "unmatched: a time that does not exist"),
        ("203.0.113.7:1 [17/May/2026:10:05:03.655] shop shop/a 0/0/0 12 -- 1/1/0/0/0 0/0",
         "unmatched: not a line of HAProxy's HTTP log"),
        ("Proxy shop started.", "unmatched: not a line of HAProxy's HTTP log"),
    ],
)  # fmt: skip
def test_lines(line: str, expected: str) -> None:
    """429 is a limit's; other refusals of the proxy are refusals for an unknown reason; the rest passed."""
    assert told("haproxy", line) == expected


def test_what_a_client_captures_into_a_line_changes_no_subject() -> None:
    """A cookie in the form of the fields behind it spoils the state of its own line, and nothing before it."""
    forged = _line("403", cookies='SID="---- 1/1/1/1/0 0/0 "GET /x HTTP/1.1" -')
    assert "ip=203.0.113.7 | 403" in told("haproxy", forged)


def test_other_statuses_count_where_the_proxy_refused() -> None:
    """`--status 403` makes a deny rule's 403 a limit's, a server's own 403 not."""
    statuses = frozenset({403})
    assert told("haproxy", _line("403"), reject_statuses=statuses).startswith("deny over_limit ip:shop")
    assert told("haproxy", _line("403", "----"), reject_statuses=statuses).startswith("allow")


def test_times_are_local() -> None:
    """The log's times have no offset."""
    at_ms = int(datetime(2026, 5, 17, 8, 5, 3, 655_000, tzinfo=UTC).timestamp() * 1000)
    assert reading("haproxy", _line().encode(), zone=ZoneInfo("Europe/Berlin")).ts_ms == at_ms
