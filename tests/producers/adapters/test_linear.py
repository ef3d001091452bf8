"""Patterns that no line can make slow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.producers.adapters.linear import LONGEST, Refused, linear


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<time>\S+) login failed for (?P<name>.*) from (?P<ip>[0-9a-fA-F:.]+)",
        r"(?P<a>[^\"]*)\" (?P<b>\d+)(?: (?P<c>\d+))?",
        r"(?:\d{1,3}\.){3}\d{1,3}",
        r"(?:GET|POST|PUT) \S+ .*",
        r"[A-Za-z]+: \d+(?:\.\d+)?s",
        r".*+",
        r"(?>a+)a",
        r"^\d+\b-x$",
        r"é+x",
        r"[^é]+é",
    ],
)
def test_patterns_that_are_clear_are_admitted(pattern: str) -> None:
    """Ordinary patterns for lines of logs are fine as they are."""
    assert linear(pattern).pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (r"(a+)+b", "a group that repeats"),
        (r"(?:a|a)*b", "a group that repeats"),
        (r"(?:a|bc)*+d", "a group that repeats"),
        (r"(\w+\s?)*x", "a group that repeats"),
        (r".*a.*b", "ways"),
        (r"x*x*x*y", "ways"),
        (r"\d+\d+\d+x", "ways"),
        (r"(?:a?){30}a{30}", "ways"),
        (r"(?:a|ab|abc)(?:a|ab|abc)(?:.|.a)(?:.|.b).*x.?", "ways"),
        (r"(?P<q>['\"]).*(?P=q)", "back-reference"),
        (r"(?=x)x", "look-"),
        (r"(?<!x)x", "look-"),
        (r"(a)?(?(1)b|c)", "conditional"),
        (r"(?i)failed", "flags"),
        (r"(?i:failed)", "flags"),
        (r"(?:abc){1000}", "longer than"),
        (r"(", "not a pattern"),
        (r"[z-a]", "not a pattern"),
        (r"[[a]x", "not a pattern: Possible nested set"),
        (r"[a--b]x", "not a pattern: Possible set difference"),
    ],
)
def test_patterns_that_could_be_slow_are_refused(pattern: str, says: str) -> None:
    """The message says what is wrong with it."""
    with pytest.raises(Refused, match=re.escape(says)):
        linear(pattern)


_ATOM = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", "ab"])
_PIECE = st.tuples(_ATOM, st.sampled_from(["", "?", "*", "+", "{2}", "{1,3}", "*?", "*+"])).map(
    lambda parts: f"(?:{parts[0]}){parts[1]}" if len(parts[0]) == 2 and parts[0][0] != "\\" else "".join(parts)
)
_BRANCH = st.lists(_PIECE, min_size=2, max_size=3).map(lambda ways: f"(?:{'|'.join(ways)})")


@given(
    pieces=st.lists(st.one_of(_PIECE, _BRANCH), min_size=1, max_size=10),
    line=st.text(alphabet="ab1 é", max_size=6),
    times=st.integers(1, LONGEST),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_what_is_admitted_ends(pieces: list[str], line: str, times: int) -> None:
    """Whatever is admitted comes to an end on long lines that repeat; a slow one would run into the test's timeout."""
    try:
        pattern = linear("".join(pieces))
    except Refused:
        return
    pattern.fullmatch((line * times)[:LONGEST])
