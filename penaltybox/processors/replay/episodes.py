"""Episodes of one subject on one side of a replay, and which labels belong to them.

An episode is one (rule, subject): penalties that deny or challenge, merged while the gap is at most the longer of the
rung's duration and ten minutes, because what happens within a burst is not independent. The same definition as the
view `episodes` of ClickHouse, met as the penalties come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.labels import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penaltybox.contracts.events import Penalty

LEAST_GAP_MS: Final = 600_000
ENDLESS_MS: Final = 10**12
"""The gap after a permanent penalty."""


class Episode:
    """Penalties that belong together: from when to when (ms), and the kinds of labels that came in time."""

    __slots__ = ("ended", "gap_ms", "kinds", "started")

    def __init__(self, at: int, gap_ms: int) -> None:
        self.started = self.ended = at
        self.gap_ms = gap_ms
        self.kinds: frozenset[str] = frozenset()


class Episodes:
    """All episodes of a subject on one side.

    Args:
        horizons: kind of label -> how long after an episode's end it may still come (ms).
    """

    __slots__ = ("_by_rule", "_horizons")

    def __init__(self, horizons: Mapping[str, int]) -> None:
        self._horizons = horizons
        self._by_rule: dict[str, list[Episode]] = {}

    def __iter__(self) -> Iterator[Episode]:
        for episodes in self._by_rule.values():
            yield from episodes

    def add(self, penalty: Penalty, labels: Mapping[str, int]) -> None:
        """Take in a penalty of a rule; `labels` says when each kind of label came last (ms)."""
        gap_ms = ENDLESS_MS if penalty.to_ms is None else max(penalty.to_ms, LEAST_GAP_MS)
        mine = self._by_rule.setdefault(penalty.rule, [])
        if not mine or penalty.ts - mine[-1].ended > mine[-1].gap_ms:
            mine.append(Episode(penalty.ts, gap_ms))
        episode = mine[-1]
        episode.ended, episode.gap_ms = max(episode.ended, penalty.ts), gap_ms
        for kind, ts in labels.items():
            self._belongs(episode, kind, ts)

    def label(self, kind: str, ts: int) -> None:
        """A label of the subject came."""
        for episode in self:
            self._belongs(episode, kind, ts)

    def _belongs(self, episode: Episode, kind: str, ts: int) -> None:
        if episode.started <= ts <= episode.ended + self._horizons[kind]:
            episode.kinds |= {kind}


def horizons(matures_ms: int | None = None) -> dict[str, int]:
    """Kind of label -> how long it may take to come; `matures_ms` replaces all of these times."""
    return {kind: one.matures_ms if matures_ms is None else matures_ms for kind, one in KINDS.items()}
