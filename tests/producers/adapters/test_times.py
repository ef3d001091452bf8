"""Times of logs: zones, clocks that go back and forward, years that are not written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.producers.adapters.times import Times

BERLIN = ZoneInfo("Europe/Berlin")
INSTANTS = st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1))  # noqa: DTZ001 - their zone is UTC, below
OFFSETS = st.integers(-23 * 60, 23 * 60)


def ms(text: str) -> int:
    """Milliseconds of a time with offset."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@settings(deadline=None)
@given(INSTANTS, OFFSETS)
def test_times_with_an_offset(instant: datetime, minutes: int) -> None:
    """Whatever offset a time is written with, it is the same instant; fractions count to the millisecond."""
    local = instant + timedelta(minutes=minutes)
    sign = "-" if minutes < 0 else "+"
    offset = f"{sign}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"
    whole = int(instant.replace(tzinfo=UTC, microsecond=0).timestamp()) * 1000
    times = Times(BERLIN)
    assert times.apache(f"{local:%d/%b/%Y:%H:%M:%S} {offset}") == whole
    for _ in range(2):  # also from what it remembers
        part = instant.microsecond // 1000
        assert times.rfc3339(f"{local:%Y-%m-%dT%H:%M:%S}{offset[:3]}:{offset[3:]}") == whole
        assert times.rfc3339(f"{local:%Y-%m-%d %H:%M:%S},{instant.microsecond:06}{offset}") == whole + part
        assert times.rfc3339(f"{instant:%Y-%m-%dT%H:%M:%S}.{part:03}Z") == whole + part
        assert times.rfc3339(f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond:06}Z") == whole + part
    assert times.seconds(f"{whole // 1000}.500") == times.millis(whole + 500) == times.seconds(whole / 1000 + 0.5)


def test_an_hour_that_comes_twice() -> None:
    """Clocks going back: of its two meanings a time has the one nearer to the line before, in either direction."""
    written = ["01:59:00", "02:00:10", "02:30:00", "02:59:50", "02:00:05", "02:30:00", "02:59:00", "03:00:10"]
    meant = [
        *("2026-10-25T01:59:00+02:00", "2026-10-25T02:00:10+02:00", "2026-10-25T02:30:00+02:00"),
        *("2026-10-25T02:59:50+02:00", "2026-10-25T02:00:05+01:00", "2026-10-25T02:30:00+01:00"),
        *("2026-10-25T02:59:00+01:00", "2026-10-25T03:00:10+01:00"),
    ]
    forwards, backwards = Times(BERLIN), Times(BERLIN)
    assert [forwards.nginx(f"2026/10/25 {clock}") for clock in written] == list(map(ms, meant))
    found = [backwards.rfc3339(f"2026-10-25T{clock}") for clock in reversed(written)]
    assert found == list(map(ms, reversed(meant)))
    assert Times(BERLIN).nginx("2026/10/25 02:30:00") == ms("2026-10-25T02:30:00+02:00")  # nothing before it


def test_an_hour_that_does_not_exist() -> None:
    """Clocks going forward: such a time counts as if they had not been moved yet."""
    assert Times(BERLIN).nginx("2026/03/29 02:30:00") == ms("2026-03-29T02:30:00+01:00")


def test_years_that_are_not_written() -> None:
    """A time of syslog is in the latest year that is not more than a day ahead."""
    new_year = Times(UTC, ms("2026-01-01T00:30:00+00:00"))
    assert new_year.syslog("Dec 31 23:59:59") == ms("2025-12-31T23:59:59+00:00")
    assert new_year.syslog("Jan  1 00:29:00") == ms("2026-01-01T00:29:00+00:00")
    assert new_year.syslog("Jan  1 23:29:00") == ms("2026-01-01T23:29:00+00:00")
    assert new_year.syslog("Jan  3 00:29:00") == ms("2025-01-03T00:29:00+00:00")
    assert new_year.syslog("Feb 29 12:00:00") == ms("2024-02-29T12:00:00+00:00")
    assert new_year.syslog("Feb 30 12:00:00") is None
    at_home = Times(BERLIN, ms("2026-07-01T00:00:00+02:00"))
    assert at_home.syslog("Jun 30 23:59:59") == ms("2026-06-30T23:59:59+02:00")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("apache", "17/May/2026:10:05:03"),
        ("apache", "17/Moy/2026:10:05:03 +0000"),
        ("apache", "32/May/2026:10:05:03 +0000"),
        ("apache", "17/May/2026:24:05:03 +0000"),
        ("apache", "17/May/2026:10:05:61 +0000"),
        ("apache", "17/May/2026:10:05:03 +2400"),
        ("apache", "17/May/2026:10:05:03 +0060"),
        ("apache", "01/Jan/1970:00:00:00 +0000"),
        ("nginx", "2026/02/29 10:05:03"),
        ("nginx", "2026/05/17 10:05:0"),
        ("nginx", "2026/05/17 10:05:0٣"),
        ("nginx", "2026-05-17 10:05:03"),
        ("nginx", "9999/05/17 10:05:03"),
        ("rfc3339", "2026-05-17T10:05"),
        ("rfc3339", "2026-13-17T10:05:03Z"),
        ("rfc3339", "2026-05-17T10:05:03ZZ"),
        ("rfc3339", "2026-05-17T10:05:03.Z"),
        ("rfc3339", ""),
        ("syslog", "May 17 25:00:00"),
        ("seconds", "1_779_012_303"),
        ("seconds", "nan"),
        ("seconds", "inf"),
        ("seconds", "1e400"),
        ("seconds", 0),
        ("seconds", -1.5),
        ("seconds", 1_779_012_303_000),  # milliseconds
        ("seconds", "yesterday"),
        ("millis", "1779012303000000"),
    ],
)
def test_what_is_no_time(kind: str, text: str) -> None:
    """Dates that do not exist, other shapes and other units are no times."""
    assert getattr(Times(UTC, ms("2026-05-17T10:05:45+00:00")), kind)(text) is None


def test_leap_seconds_count_as_the_second_after() -> None:
    """A minute may have a second 60."""
    assert Times().rfc3339("2016-12-31T23:59:60Z") == ms("2017-01-01T00:00:00+00:00")


def test_a_year_that_begins_while_a_log_is_followed() -> None:
    """Who follows a log for days gives a clock: lines of the next week, and of the next year, are not a year old."""
    clock = [ms("2026-11-30T12:00:00+00:00")]
    times = Times(now_ms=lambda: clock[0])
    assert times.syslog("Nov 30 12:00:00") == clock[0]
    for day, text in (("2026-12-09", "Dec  9"), ("2027-01-02", "Jan  2"), ("2028-02-29", "Feb 29")):
        clock[0] = ms(f"{day}T12:00:00+00:00")
        assert times.syslog(f"{text} 12:00:00") == clock[0]
