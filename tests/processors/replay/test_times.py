"""Times as people type them, and how far back a replay warms up."""

from __future__ import annotations

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.replay.horizons import horizon, window_of
from penaltybox.processors.replay.times import iso, parse_time

NOW = 1_766_400_000_000
DAY = 86_400_000
POLICY = """
rules:
  slow: {on: user, count: 3, window: 9d, then: step}
ladder: {rungs: [warn, 5m, 1d, permanent], warn: 10m, forgive: 8h, memory: 72h}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-12-22T10:40:00Z", NOW),
        ("2025-12-22T11:40:00+01:00", NOW),
        ("2025-12-22 10:40:00.250Z", NOW + 250),
        ("2025-12-22", NOW - (10 * 60 + 40) * 60_000),
        ("-2h", NOW - 7_200_000),
        ("-90m", NOW - 5_400_000),
        ("now", NOW),
        (" now ", NOW),
        ("1766400000000", NOW),
    ],
)
def test_times(text: str, expected: int) -> None:
    """ISO times with a zone, dates, milliseconds, now, and how long ago."""
    assert parse_time(text, "--from", NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2h", "-2", "-2y", "22.12.2025", "2025-13-01", "12:00", "17664", "20251222", "2025-W10-1"]
)
def test_unknown_forms(text: str) -> None:
    """Anything else says what it got and what is wanted."""
    with pytest.raises(ConfigurationError, match=r"--from: got '.*', wanted a time with its zone"):
        parse_time(text, "--from", NOW)


def test_a_time_needs_a_zone() -> None:
    """A time without a zone would be guessed at."""
    with pytest.raises(ConfigurationError, match=r"has no zone\. Add Z for UTC"):
        parse_time("2025-12-22T10:40:00", "--to", NOW)


@pytest.mark.parametrize("text", ["0001-01-01", "1969-12-31", "1066-10-14T09:00:00Z"])
def test_before_there_were_records(text: str) -> None:
    """A time before 1970 is a slip, and no failure of a calendar further on."""
    with pytest.raises(ConfigurationError, match=r"--from: got '.*', which is before 1970"):
        parse_time(text, "--from", NOW)


def test_times_beyond_the_calendar() -> None:
    """Records may have times that no calendar has; they are shown all the same."""
    assert iso(1 << 52) == "4503599627370496 ms"


def test_the_longest_horizon() -> None:
    """Windows, memory, trust and shared addresses of all policies: the longest one counts, and is named."""
    policy = parse_policy(POLICY)
    assert horizon([policy]).ms >= 9 * DAY
    bare = parse_policy(POLICY + "shared_ip: false\ntrust: {ttl: 1d}\n")
    assert horizon([bare]) == (9 * DAY, "the window of rule slow")
    assert horizon([bare, policy]) == horizon([policy])


def test_the_warm_up_is_told() -> None:
    """It says how long the warm-up is and why; a longer horizon than the bound says how to have it."""
    bare = parse_policy(POLICY + "shared_ip: false\ntrust: {ttl: 1d}\n")
    window, sentence = window_of(NOW, None, [bare], None)
    assert (window.start_ms, window.from_ms) == (NOW - 9 * DAY, NOW)
    assert sentence == f"Warm-up from {iso(NOW - 9 * DAY)}: 9d (the window of rule slow)."
    long = parse_policy(POLICY + "trust: {ttl: 90d}\n")
    window, sentence = window_of(NOW, None, [long], None)
    assert window.start_ms == NOW - 30 * DAY
    assert "trust.ttl is 90d: --warm-up 90d" in sentence
    assert window_of(NOW, None, [long], 1000)[0].start_ms == NOW - 1000
    assert window_of(None, NOW, [long], None) == ((None, None, NOW), "")
