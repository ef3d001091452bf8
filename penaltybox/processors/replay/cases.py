"""The penalties in which both sides differ, with the decisions that led to them.

They are kept for the few subjects that a report shows: bounded, however many subjects differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.processors.replay.observer import BASELINE, CANDIDATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penaltybox.contracts.events import Decision, Penalty
    from penaltybox.processors.replay.observer import Side

SUBJECTS: Final = 2_000
PER_SIDE: Final = 3
_OTHER: Final[Mapping[Side, Side]] = {BASELINE: CANDIDATE, CANDIDATE: BASELINE}


class Case(NamedTuple):
    """A penalty that only one side has, or has in this form, and the decisions before it; the last is the trigger."""

    side: Side
    penalty: Penalty
    decisions: tuple[Decision, ...]


class Cases:
    """Cases by subject, the first `PER_SIDE` of each side, and as many of shadow rules.

    Args:
        rank: how much a subject matters; of too many those that matter least are dropped.
    """

    def __init__(self, rank: Callable[[str], tuple[float, ...]]) -> None:
        self._rank = rank
        self._kept: dict[str, list[Case]] = {}
        self._spare: dict[str, Case] = {}
        """Cases of the last trigger for which there was no room: the other side may yet meet them."""
        self.dropped = 0

    def add(self, case: Case) -> None:
        """Keep a case, unless the other side has met it already: then both did the same, and neither is one."""
        mine = self._kept.setdefault(case.penalty.subject, [])
        if not self._met(case, mine):
            kind = (case.side, case.penalty.shadow)
            if sum((one.side, one.penalty.shadow) == kind for one in mine) < PER_SIDE:
                mine.append(case)
            else:
                self._spare[case.penalty.id] = case
        if not mine:
            del self._kept[case.penalty.subject]
        if len(self._kept) > 2 * SUBJECTS:
            ranked = sorted(self._kept, key=self._rank, reverse=True)
            self.dropped += len(ranked) - SUBJECTS
            self._kept = {subject: self._kept[subject] for subject in ranked[:SUBJECTS]}

    def _met(self, case: Case, mine: list[Case]) -> bool:
        """Whether the other side has it; it is forgotten there."""
        for spare in self._spare.values():
            if spare.penalty.trigger_id != case.penalty.trigger_id:
                self._spare = {}
            break
        spare_one = self._spare.get(case.penalty.id)
        if spare_one is not None and _pair(spare_one, case):
            del self._spare[case.penalty.id]
            return True
        for known in mine:
            if _pair(known, case):
                mine.remove(known)
                return True
        return False

    def of(self, subject: str) -> list[Case]:
        """The cases of a subject in their order, those of shadow rules last."""
        return sorted(self._kept.get(subject, ()), key=lambda case: (case.penalty.shadow, case.penalty.ts, case.side))


def _pair(one: Case, other: Case) -> bool:
    return one.side == _OTHER[other.side] and same(one.penalty, other.penalty)


def same(one: Penalty, other: Penalty) -> bool:
    """Whether two penalties are the same step of the same subject, with the same end."""
    return one.id == other.id and one.ts == other.ts and one.action == other.action and one.until == other.until
