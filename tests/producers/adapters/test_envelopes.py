"""Lines that others have wrapped: syslog, the journal, container runtimes."""

from __future__ import annotations

import json

import pytest

from penaltybox.producers.adapters.envelopes import ANY, OTHERS, Wrapped, inside, unwrapped
from penaltybox.producers.adapters.registry import load

INNER = load("nginx-error").examples[0]
TEXT = INNER.decode()
JOURNAL = {"MESSAGE": TEXT, "__REALTIME_TIMESTAMP": "1"}


@pytest.mark.parametrize(
    "line",
    [
        b"<187>May 17 10:05:03 web1 nginx: " + INNER,
        b"May  7 10:05:03 web1 nginx[1234]: " + INNER,
        b"<187>May 17 10:05:03 nginx: " + INNER,
        b"2026-05-17T10:05:03.123456+00:00 web1 nginx[31]: " + INNER,
        b"2026-05-17T10:05:03+0200 web1.shop.example nginx: " + INNER,
        b"<187>1 2026-05-17T10:05:03.000Z web1 nginx 31 - - " + INNER,
        b'<187>1 2026-05-17T10:05:03.000Z web1 nginx 31 ID47 [origin ip="198.51.100.66"] \xef\xbb\xbf' + INNER,
        b"2026-05-17T10:05:03.123456789Z stderr F " + INNER,
        json.dumps({"log": TEXT + "\n", "stream": "stderr", "time": "2026-05-17T10:05:03.1Z"}).encode(),
        json.dumps({"MESSAGE": TEXT, "__REALTIME_TIMESTAMP": "1779012303000000", "_COMM": "nginx"}).encode(),
    ],
)
def test_what_is_inside_is_read(line: bytes) -> None:
    """Each wrapping comes off, and leaves the line as it was; where there is a program's name, it is looked at."""
    found = unwrapped(line)
    assert found is not None
    assert found.line == INNER
    assert found.program in ("nginx", None)
    assert inside(line, {"nginx"}) == inside(line, {ANY}) == INNER
    assert inside(line, {"web1"}) == (INNER if found.program is None else OTHERS)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        INNER,
        b"203.0.113.7 - - [17/May/2026:10:05:03 +0000] May 17 10:05:03 web1 nginx: " + INNER,
        json.dumps({"log": TEXT}).encode(),  # an application's own key
        json.dumps({"message": TEXT, "stream": "stderr", "time": "x"}).encode(),
        json.dumps({"log": 7, "stream": "stderr", "time": "x"}).encode(),
        json.dumps({"MESSAGE": [110, 300], "__REALTIME_TIMESTAMP": "1"}).encode(),
        json.dumps({"MESSAGE": [110, -1], "__REALTIME_TIMESTAMP": "1"}).encode(),
        json.dumps({"MESSAGE": [[110], [103]], "__REALTIME_TIMESTAMP": "1"}).encode(),
        json.dumps({"MESSAGE": None, "__REALTIME_TIMESTAMP": "1"}).encode(),  # too long for the journal's JSON
        b'{"log":"' + INNER,
        b'{"log":"\\ud800","stream":"x","time":"y"',
    ],
)
def test_what_is_not_wrapped_stays(line: bytes) -> None:
    """Only the beginning of a line is looked at, and in JSON only keys that a runtime writes."""
    assert unwrapped(line) is None


def test_a_byte_that_no_text_has_hides_nobody_in_the_journal() -> None:
    """The journal writes a message as a list of bytes when it is no UTF-8, which a client's path can see to."""
    line = INNER.replace(b"POST /", b"POST /\xff\x1b", 1)
    assert line != INNER
    wrapped = json.dumps({"MESSAGE": list(line), "__REALTIME_TIMESTAMP": "1779012303000000"}).encode()
    assert unwrapped(wrapped) == Wrapped(line, "")


def test_a_long_line_that_was_cut_is_read_as_far_as_it_goes() -> None:
    """Container runtimes cut lines after 16 KiB: the first part, marked P, has what a format needs."""
    assert unwrapped(b"2026-05-17T10:05:03.123456789Z stderr P " + INNER[:40]) == Wrapped(INNER[:40], None)


@pytest.mark.parametrize(
    "line",
    [
        b"May 17 10:05:03 web1 shop[77]: " + INNER,
        b"May 17 10:05:03 web1 shop-nginx: " + INNER,
        b"<187>1 2026-05-17T10:05:03.000Z nginx shop nginx nginx - " + INNER,
        b"2026-05-17T10:05:03+02:00 nginx shop[77]: " + INNER,
        json.dumps(
            {"MESSAGE": TEXT, "__REALTIME_TIMESTAMP": "1", "SYSLOG_IDENTIFIER": "shop", "_COMM": "nginx"}
        ).encode(),
        json.dumps({**JOURNAL, "_COMM": "python3"}).encode(),
        json.dumps(JOURNAL).encode(),
    ],
)
def test_another_programs_line_is_not_taken(line: bytes) -> None:
    """What an application logs of its clients may look like any line; only who is named is believed."""
    assert inside(line, load("nginx-error").programs) is OTHERS
    assert inside(line, frozenset()) is OTHERS
