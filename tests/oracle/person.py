"""What the oracle keeps of a subject: plain lists of all that counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penaltybox.contracts.events import Hold
    from penaltybox.contracts.policy import Then


@dataclass
class Entry:
    """An event that one rule counted."""

    t: int
    id: int
    weight: int
    value: int | None
    granule_ms: int = 0
    """What a distinct rule keeps of `t`: that much of it."""


@dataclass
class Track:
    """A ladder: the real one of a subject, or the one of a shadow rule."""

    shadow: bool = False
    counted: dict[int, list[Entry]] = field(default_factory=dict)
    risk: list[tuple[int, int, int]] = field(default_factory=list)  # (t, key, points)
    rung: str | None = None
    rung_ms: int | None = 0
    at: int = 0
    end: int | None = 0
    deny: Hold | None = None
    challenge: Hold | None = None
    used: list[tuple[int, int, int]] = field(default_factory=list)  # (rule, value that a step used, for how long)
    asked: dict[str, int] = field(default_factory=dict)  # rule -> end of the challenge that it got last


@dataclass
class Person:
    """All that is known of one subject."""

    subject: str
    real: Track = field(default_factory=Track)
    shadows: dict[int, Track] = field(default_factory=dict)
    grace_until: int = 0
    pass_until: int = 0
    colleagues: list[tuple[int, int]] = field(default_factory=list)  # (t, hash of an established user)
    trust: dict[int, tuple[int, int]] = field(default_factory=dict)  # outcome -> (points, t)


@dataclass
class Trigger:
    """The event at hand."""

    id: str
    t: int
    broker_ms: int
    late: bool


@dataclass
class Case:
    """One ladder before one event."""

    person: Person
    track: Track
    trigger: Trigger


@dataclass
class Fired:
    """A rule, or a score threshold, that fired."""

    name: str
    then: Then
    key: int = 0
    """Under which the rule counts; a threshold counts nothing."""


def active(hold: Hold | None, t: int) -> bool:
    return hold is not None and (hold.until is None or t < hold.until)


def ends_later(one: Hold, other: Hold) -> bool:
    return other.until is not None and (one.until is None or one.until > other.until)
