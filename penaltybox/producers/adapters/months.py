"""Dates whose month has a name, written so that `Times.rfc3339` reads them."""

from __future__ import annotations

from typing import Final

_NUMBERS: Final = {
    name: f"{number + 1:02}"
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    )
}


def iso(year: str, month: str, day: str, time: str) -> str:
    """``2026-05-17T10:05:03.655`` of 2026, May, 17, 10:05:03.655; no such date if the month is none."""
    return f"{year}-{_NUMBERS.get(month, '00')}-{day.strip():0>2}T{time}"
