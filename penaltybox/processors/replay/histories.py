"""What became of one subject on each side of a replay: how often, from when and how long each rule held it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.labels import ABUSE, KINDS, Standing, legitimacy
from penaltybox.processors.replay.episodes import Episodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.events import Outcome, Penalty
    from penaltybox.processors.replay.observer import Side

ENDLESS_MS: Final = 100 * 365 * 86_400_000
"""What a permanent penalty counts as when durations are compared."""
STEPS: Final = ("warn", "challenge", "deny")
"""Actions that penalise; `lift` and `note` don't."""


class Cell(NamedTuple):
    """What a subject met: a rule, the rung that it led to (`challenge`: no rung), as what, and whether for real."""

    rule: str
    rung: str
    action: str
    shadow: bool


class Stay:
    """How often, from when, and how long in all (ms) a subject was in a cell; `endless`: also without an end."""

    __slots__ = ("count", "endless", "first_ms", "held_ms")

    def __init__(self, first_ms: int) -> None:
        self.first_ms = first_ms
        self.count = self.held_ms = 0
        self.endless = False


class Course:
    """One subject on one side."""

    __slots__ = ("_holds", "episodes", "stays")

    def __init__(self) -> None:
        self.stays: dict[Cell, Stay] = {}
        self.episodes: Episodes | None = None
        self._holds: dict[tuple[str, str], tuple[int, Stay | None]] = {}
        """(action, shadow rule) -> end of what is in force, and the stay that it was added to. The real rules share one
        ladder, each shadow rule has one of its own."""

    def add(self, penalty: Penalty, *, counted: bool) -> None:
        """Take in a penalty; one that is not counted, or was given by hand, only holds."""
        if penalty.action == "lift":
            self._cut("challenge", penalty)
            if penalty.origin == "hand":
                self._cut("deny", penalty)
        if penalty.action not in STEPS:
            return
        if "softens" in penalty.evidence:
            self._cut("deny", penalty)
        until = penalty.until if penalty.until is not None else penalty.ts + ENDLESS_MS
        kind = (penalty.action, penalty.rule if penalty.shadow else "")
        held_until, holder = self._holds.get(kind, (0, None))
        stay = self._stay(penalty) if counted and penalty.origin == "rule" else None
        if stay is not None:
            stay.held_ms += max(0, until - max(penalty.ts, held_until))
        if until > held_until:
            held_until, holder = until, stay
        self._holds[kind] = (held_until, holder)

    def _stay(self, penalty: Penalty) -> Stay:
        cell = Cell(penalty.rule, rung_of(penalty), penalty.action, penalty.shadow)
        stay = self.stays.get(cell)
        if stay is None:
            stay = self.stays[cell] = Stay(penalty.ts)
        stay.count += 1
        stay.first_ms = min(stay.first_ms, penalty.ts)
        stay.endless = stay.endless or (penalty.until is None and penalty.action == "deny")
        return stay

    def _cut(self, action: str, penalty: Penalty) -> None:
        """What was in force ends here."""
        until, holder = self._holds.pop((action, penalty.rule if penalty.shadow else ""), (0, None))
        if holder is not None and until > penalty.ts:
            holder.held_ms -= until - penalty.ts


class History:
    """One subject on both sides, and what outcomes say of it."""

    __slots__ = ("abusive", "courses", "labels", "stopped")

    def __init__(self) -> None:
        self.courses: dict[Side, Course] = {}
        self.labels: dict[str, int] = {}
        """Kind of label -> when it came last (ms)."""
        self.abusive = False
        self.stopped: dict[Side, float] | None = None
        """Requests that this subject, their most specific one, was refused."""

    def label(self, outcome: Outcome, *, counted: bool) -> None:
        """An outcome about it. Abuse counts at any time, other labels not during the warm-up."""
        kind = outcome.label
        if kind in ABUSE:
            self.abusive = True
        elif counted and kind in KINDS:
            self.labels[kind] = max(self.labels.get(kind, 0), outcome.ts)
            for course in self.courses.values():
                if course.episodes is not None:
                    course.episodes.label(kind, outcome.ts)

    def penalty(self, side: Side, penalty: Penalty, horizons: Mapping[str, int], *, counted: bool) -> None:
        """A penalty of one side."""
        course = self.courses.get(side)
        if course is None:
            course = self.courses[side] = Course()
        course.add(penalty, counted=counted)
        if counted and limits(penalty):
            if course.episodes is None:
                course.episodes = Episodes(horizons)
            course.episodes.add(penalty, self.labels)

    @property
    def standing(self) -> Standing:
        """What is known of the subject."""
        if self.abusive:
            return "abusive"
        return "legitimate" if self.labels else "unknown"

    @property
    def good(self) -> float:
        """Probability that it is legitimate, by labels that come to subjects that were never limited, too."""
        if self.abusive:
            return 0.0
        return legitimacy(kind for kind in self.labels if not KINDS[kind].after_limit)

    def stop(self, side: Side, requests: float) -> None:
        """Requests of this subject were stopped by a deny in force."""
        if self.stopped is None:
            self.stopped = {}
        self.stopped[side] = self.stopped.get(side, 0.0) + requests


def limits(penalty: Penalty) -> bool:
    """Whether a penalty limits its subject for real, by a rule: what episodes are made of."""
    return penalty.origin == "rule" and not penalty.shadow and penalty.action in ("challenge", "deny")


def penalises(penalty: Penalty) -> bool:
    """Whether a penalty is one of a rule, a shadow rule's too: what the tables count."""
    return penalty.origin == "rule" and penalty.action in STEPS


def rung_of(penalty: Penalty) -> str:
    """The rung that a penalty led to; ``challenge`` for a challenge that is no step."""
    return "challenge" if penalty.action == "challenge" and penalty.to == penalty.from_ else penalty.to
