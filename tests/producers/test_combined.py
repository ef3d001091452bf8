"""Access log lines, good ones and hostile ones."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.producers import routes as routes_module
from penaltybox.producers.combined import MAX_LINE_BYTES, CombinedLog, LogLine, shape
from penaltybox.producers.routes import INVALID, METHODS, Routes, segment, split_request

LOG = Path(__file__).parent.parent / "data" / "apache_access.log"
LINE = '192.0.2.7 - - [17/May/2015:10:05:03 +0200] "GET /a/17?x=1 HTTP/1.1" 200 12 "http://ref" "agent"'


def parse(text: str | bytes) -> LogLine | None:
    """The request of one line."""
    return CombinedLog().parse(text.encode() if isinstance(text, str) else text)


def test_combined_line() -> None:
    """Address, time with its zone, method, template, status and agent are read."""
    assert parse(LINE) == LogLine("192.0.2.7", 1431849903000, "GET", "/a/17", "GET /a/{n}", 200, "agent")


@pytest.mark.parametrize(
    "line",
    [
        '192.0.2.7 - - [17/May/2015:10:05:03 +0200] "GET /a/17 HTTP/1.0" 200 -',
        '192.0.2.7 - jo [x] "" doe [17/May/2015:10:05:03 +0200] "GET /a/17 HTTP/1.1" 200 1 "-" "-"'.replace('"" ', ""),
        '192.0.2.7 - "" [17/May/2015:10:05:03 +0200] "GET /a/17 HTTP/2.0" 200 1 "-" "x \\" y"',
        '192.0.2.7 - - [17/May/2015:08:05:03 +0000] "GET http://host/a/17#f HTTP/1.1" 200 1 "-" "cut off',
        '192.0.2.7 - - [17/May/2015:03:35:03 -0430] "GET /a/17" 200 1 "-" ""',
    ],
)
def test_variants(line: str) -> None:
    """Common format, users with spaces and brackets, escaped quotes, other zones, a cut-off end: the same request."""
    parsed = parse(line)
    assert parsed is not None
    assert (parsed.ip, parsed.ts_ms, parsed.route, parsed.status) == ("192.0.2.7", 1431849903000, "GET /a/{n}", 200)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-",
        "\x00\x01",
        LINE.replace("192.0.2.7", "evil.example"),
        LINE.replace("192.0.2.7", "300.0.2.7"),
        LINE.replace("17/May", "31/Feb"),
        LINE.replace("17/May", "17/Mai"),
        LINE.replace("10:05:03", "24:05:03"),
        LINE.replace("10:05:03", "10:60:03"),
        LINE.replace("10:05:03", "10:05:61"),
        LINE.replace("+0200", "+0260"),
        LINE.replace("2015", "0000"),
        LINE.replace("2015", "1960"),
        LINE.replace(" 200 ", " 999 "),
        LINE.replace(" 200 ", " \u0662\u0660\u0660 "),
        LINE + " trailing",
        LINE.replace("GET /a", 'GET "/a'),
        LINE * 2,
        "x" * (MAX_LINE_BYTES + 1),
    ],
)
def test_no_request(line: str) -> None:
    """What is no complete line of the format is counted by its shape and not guessed at."""
    log = CombinedLog()
    assert log.parse(line.encode()) is None
    assert (log.matched, log.unmatched, log.shapes.total()) == (0, 1, 1)


def test_invalid_utf8_is_kept_readable() -> None:
    """Bytes that are not UTF-8 become escapes in the agent and {text} in the route."""
    parsed = parse(LINE.encode().replace(b"/a/17", b"/\xff\xfe").replace(b"agent", b"a\xffb"))
    assert parsed is not None
    assert (parsed.route, parsed.agent) == ("GET /{text}", "a\\xffb")


@given(user=st.text(st.characters(codec="utf-8", exclude_characters='"\n\r')), agent=st.text())
def test_nobody_forges_another_subject(user: str, agent: str) -> None:
    """Whatever a client writes into user and agent, escaped as servers do: address, time, status stay the server's."""
    agent = agent.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    line = f'192.0.2.7 - {user or "-"} [17/May/2015:10:05:03 +0200] "GET / HTTP/1.1" 403 1 "-" "{agent}"'
    parsed = parse(line)
    if parsed is not None:
        assert (parsed.ip, parsed.ts_ms, parsed.status) == ("192.0.2.7", 1431849903000, 403)


FORGED = 'x [01/Jan/2030:00:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-" 198.51.100.9 - -'


@pytest.mark.parametrize("field", ["-", "192.0.2.7", "GET /a/17?x=1", "http://ref", "agent"])
def test_a_line_within_a_line(field: str) -> None:
    """A whole log line smuggled into a field never makes a request of another address."""
    for forged in (FORGED, FORGED.replace('"', '\\"'), "\n" + FORGED):
        parsed = parse(LINE.replace(field, forged, 1))
        assert parsed is None or parsed.ip == "192.0.2.7"


@given(raw=st.binary(max_size=300))
def test_any_bytes(raw: bytes) -> None:
    """No bytes make the parser fail, alone or in the place of the request line."""
    log = CombinedLog()
    log.parse(raw)
    parsed = log.parse(b'192.0.2.7 - - [17/May/2015:10:05:03 +0200] "' + raw + b'" 200 12')
    if parsed is not None:
        assert parsed.ip == "192.0.2.7"
        assert parsed.route.isascii()
        assert parsed.route.isprintable()
        assert len(parsed.route) <= 256
    assert log.matched + log.unmatched == 2


def test_shapes_are_bounded_and_tell_nothing() -> None:
    """Shapes hide letters and digits, and there are at most fifty and one of them."""
    assert shape("user=alice&token=s3cr3t é") == "a=a&a=a9a9a ?"
    log = CombinedLog()
    for number in range(200):
        log.parse(b"!" * number)
    assert len(log.shapes) <= 51
    assert log.shapes.total() == 200


def test_the_real_log() -> None:
    """The facts known of 10,000 real lines come out, and no two templates differ by an identifier."""
    log = CombinedLog()
    lines = [log.parse(raw) for raw in LOG.read_bytes().splitlines()]
    found = [line for line in lines if line is not None]
    assert (len(lines), log.matched, log.unmatched) == (10_000, 10_000, 0)
    addresses = Counter(line.ip for line in found)
    assert len(addresses) == 1_753
    assert addresses.most_common(1) == [("66.249.73.135", 482)]
    statuses = {200: 9_126, 304: 445, 404: 213, 301: 164, 206: 45, 500: 3, 416: 2, 403: 2}
    assert Counter(line.status for line in found) == statuses
    newest = behind = 0
    for line in found:
        newest = max(newest, line.ts_ms)
        behind = max(behind, newest - line.ts_ms)
    assert behind == 59_000
    assert len({line.route for line in found}) <= 600


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("coupons", "coupons"),
        ("17", "{n}"),
        ("0d9f8c1e-1c2b-4b5f-9a54-6f0a3e9d7c11", "{uuid}"),
        ("deadbeef01", "{hex}"),
        ("deadbeef", "deadbeef"),
        ("user123456", "{id}"),
        ("dGhpc0lzQVRva2Vu12", "{id}"),
        ("alice@example.org", "{text}"),
        ("a%20b", "{text}"),
        ("x" * 41, "{text}"),
        ("v1.2", "v1.2"),
        ("logo.PNG", "{file}.png"),
        ("..", ".."),
    ],
)
def test_segments(text: str, expected: str) -> None:
    """Words stay, identifiers are replaced."""
    assert segment(text) == expected


def test_routes_are_bounded() -> None:
    """However many paths come, there are few templates: first the group of the first segment, then none."""
    routes = Routes(max_routes=10)
    found = {
        routes.template("GET", f"/{'abcdefghij'[n % 10]}x{chr(97 + n % 26)}{n // 26}y/page-{n}") for n in range(5_000)
    }
    assert len(found) <= 10 + 100 + 1
    assert "GET /{other}" in found


@given(line=st.text(max_size=80))
def test_request_lines(line: str) -> None:
    """A request line is split into a known method and a path without query, or it is none."""
    method, path = split_request(line)
    assert (method, path) == ("", "") or (method in METHODS and "?" not in path)


def test_noise_has_one_route() -> None:
    """Everything that is no request line shares one route."""
    for noise in ("-", "\\x16\\x03\\x01", "GET", "get / HTTP/1.1", "FROB / HTTP/1.1"):
        assert Routes().template(*split_request(noise)) == INVALID


def test_what_is_kept_of_paths_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of paths of 60 KB next to nothing stays in memory, and of a deep one only the beginning is looked at."""
    looked_at: list[int] = []
    monkeypatch.setattr(routes_module, "segment", lambda text: looked_at.append(len(text)) or "x")
    routes = Routes()
    assert routes.template("GET", "/a" * 30_000) == "GET /x/x/x/x/x/{rest}"
    assert len(looked_at) == 5
    tracemalloc.start()
    try:
        for number in range(300):
            routes.template("GET", f"/{number}{'a' * 60_000}")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20
