"""FDR and FPR of both sides per dimension, by the definitions of docs/analytics.md, over the episodes of rules.

Episodes of limits are left out: the limiter's answers are recorded, so both sides have the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penaltybox.contracts.labels import legitimacy
from penaltybox.contracts.rates import nothing, rate
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.report import Maturity, Rates, SideRates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.processors.replay.comparison import Comparison
    from penaltybox.processors.replay.histories import History
    from penaltybox.processors.replay.observer import Side


class _Sums:
    """One side of one dimension."""

    def __init__(self) -> None:
        self.episodes = self.immature = self.labelled = 0
        self.good = self.seen = self.squares = self.hurt = 0.0

    def judge(self, history: History, side: Side, before_ms: int) -> bool:
        """Count the episodes of a subject; whether any of them is mature."""
        course = history.courses.get(side)
        limited = False
        for episode in course.episodes or () if course is not None else ():
            if episode.ended >= before_ms:
                self.immature += 1
                continue
            limited = True
            self.episodes += 1
            self.labelled += bool(history.abusive or episode.kinds)
            self.good += 0.0 if history.abusive else legitimacy(episode.kinds)
        return limited

    def rates(self) -> SideRates:
        n = self.seen * self.seen / self.squares if self.squares else 0.0
        untouched = not self.episodes and not self.immature
        return SideRates(
            fdr=nothing(0) if untouched else rate(self.good, self.episodes, self.episodes, labelled=self.labelled > 0),
            fpr=nothing(n) if untouched else rate(self.hurt, self.seen, n),
            episodes=self.episodes,
            immature=self.immature,
            labelled=self.labelled,
            legitimate=self.good,
            legitimate_seen=self.seen,
            legitimate_limited=self.hurt,
        )


def _both() -> dict[Side, _Sums]:
    return {BASELINE: _Sums(), CANDIDATE: _Sums()}


def maturity_of(comparison: Comparison, as_of_ms: int) -> Maturity:
    """When episodes are old enough: labels of the slowest kind in use must have had their time."""
    kinds = comparison.labels_in_use if comparison.matures_ms is None else comparison.horizons
    longest_ms = max((comparison.horizons[kind] for kind in kinds), default=0)
    return Maturity(as_of_ms=as_of_ms, longest_ms=longest_ms, before_ms=as_of_ms - longest_ms)


def false_positives(comparison: Comparison, maturity: Maturity, dimensions: Iterable[str]) -> dict[str, Rates]:
    """Dimension -> rates, for all of `dimensions` and those with episodes."""
    sums: dict[str, dict[Side, _Sums]] = {dimension: _both() for dimension in dimensions}
    never = maturity.before_ms
    for subject, history in comparison.histories.items():
        good = history.good if comparison.seen.get(subject, never) < maturity.before_ms else 0.0
        if not history.courses and not good:
            continue
        for side, one in sums.setdefault(subject.partition(":")[0], _both()).items():
            limited = one.judge(history, side, maturity.before_ms)
            one.seen += good
            one.squares += good * good
            one.hurt += good if limited else 0.0
    return {
        dimension: Rates(dimension=dimension, baseline=mine[BASELINE].rates(), candidate=mine[CANDIDATE].rates())
        for dimension, mine in sorted(sums.items())
    }
