"""FDR and FPR of both sides per dimension, by the definitions of docs/analytics.md, over the episodes of rules.

Episodes of limits are left out: the limiter's answers are recorded, so both sides have the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penaltybox.contracts.labels import legitimacy
from penaltybox.contracts.rates import nothing, rate
from penaltybox.processors.replay.glimpses import missed
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
        self.glimpsed = self.glimpsed_squares = self.once = self.twice = 0.0
        """Of the legitimate subjects that nothing limited: those that a sample of their requests made known."""

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

    def see(self, good: float, *, limited: bool, glimpses: int) -> None:
        """Count a subject that is legitimate with probability `good`; `glimpses` as `Glimpses.of` says."""
        if limited or not glimpses:
            self.seen += good
            self.squares += good * good
            self.hurt += good if limited else 0.0
            return
        self.glimpsed += good
        self.glimpsed_squares += good * good
        self.once += good if glimpses == 1 else 0.0
        self.twice += good if glimpses == 2 else 0.0  # noqa: PLR2004 - twice

    def rates(self, unseen: float) -> SideRates:
        """The rates; legitimate subjects that no record names are `unseen`, so a sample missed no more than those."""
        gone = missed(self.once, self.twice, unseen) if self.glimpsed else 0.0
        weight = 1 + gone / self.glimpsed if self.glimpsed else 1.0
        seen = self.seen + self.glimpsed + gone
        squares = self.squares + weight * weight * self.glimpsed_squares
        n = seen * seen / squares if squares else 0.0
        untouched = not self.episodes and not self.immature
        return SideRates(
            fdr=nothing(0) if untouched else rate(self.good, self.episodes, self.episodes, labelled=self.labelled > 0),
            fpr=nothing(n) if untouched else rate(self.hurt, seen, n),
            episodes=self.episodes,
            immature=self.immature,
            labelled=self.labelled,
            legitimate=self.good,
            legitimate_seen=seen,
            legitimate_limited=self.hurt,
            legitimate_missed=gone,
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
    unseen: dict[str, float] = {}
    for subject, history in comparison.histories.items():
        dimension, first_ms = subject.partition(":")[0], comparison.seen.get(subject)
        if first_ms is None:
            unseen[dimension] = unseen.get(dimension, 0.0) + history.good
        good = history.good if first_ms is not None and first_ms < maturity.before_ms else 0.0
        if not history.courses and not good:
            continue
        for side, one in sums.setdefault(dimension, _both()).items():
            limited = one.judge(history, side, maturity.before_ms)
            one.see(good, limited=limited, glimpses=comparison.glimpses.of(subject))
    return {
        dimension: Rates(
            dimension=dimension,
            baseline=mine[BASELINE].rates(unseen.get(dimension, 0.0)),
            candidate=mine[CANDIDATE].rates(unseen.get(dimension, 0.0)),
        )
        for dimension, mine in sorted(sums.items())
    }
