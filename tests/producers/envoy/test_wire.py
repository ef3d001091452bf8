"""Envoy's messages: as protocol buffers write them, and whatever else comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.producers.envoy.wire import (
    Question,
    Status,
    WrongMessage,
    read_answer,
    read_question,
    write_answer,
    write_question,
)

TEXT = st.text(max_size=20)


def test_a_question_as_protocol_buffers_write_it() -> None:
    """Bytes laid out by hand after the rules; an unknown field in between is skipped; no hits are one."""
    entry = b"\x0a\x0eremote_address\x12\x09192.0.2.1"
    descriptor = b"\x0a" + bytes([len(entry)]) + entry
    raw = b"\x0a\x03web" + b"\x48\x96\x01" + b"\x12" + bytes([len(descriptor)]) + descriptor
    assert read_question(raw) == Question("web", ((("remote_address", "192.0.2.1"),),), 1)
    assert read_question(raw + b"\x18\xac\x02").hits == 300
    assert read_question(b"") == Question("", (), 1)


@settings(deadline=None)
@given(
    TEXT,
    st.lists(st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple), max_size=3).map(tuple),
    st.integers(1, 2**32 - 1),
)
def test_what_is_written_is_read(domain: str, descriptors: tuple[tuple[tuple[str, str], ...], ...], hits: int) -> None:
    """A question comes back as it was."""
    question = Question(domain, descriptors, hits)
    assert read_question(write_question(question)) == question


def test_an_answer_comes_back() -> None:
    """Code and what is told of each descriptor."""
    statuses = (Status(True, 10, 60, 0, 12), Status(False))
    over, read = read_answer(write_answer(over=True, statuses=statuses, body=b"x", response_headers=[("a", "b")]))
    assert (over, [one[:4] for one in read]) == (True, [one[:4] for one in statuses])


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_can_crash_it(raw: bytes) -> None:
    """It is a message, or refused as none."""
    for read in (read_question, read_answer):
        try:
            read(raw)
        except WrongMessage:
            continue


@pytest.mark.parametrize("raw", [b"\x0a\x05ab", b"\x0a", b"\xff" * 12, b"\x0b", b"\x10\x01"])
def test_what_is_no_message(raw: bytes) -> None:
    """Broken off, a number without an end, a group, a number where a part is wanted."""
    with pytest.raises(WrongMessage):
        read_question(raw)
