"""Subjects that are known from a sample of their allowed requests only, and how many others the sample has missed.

Every refusal is recorded, of the allowed requests perhaps one in ten: whoever was only allowed may have left no record.
Those who were recorded once, and those who were twice, tell how many were not at all (Chao's estimator; A. Chao,
Biometrics 43 (1987) 783-791). It is right where all ask about as often, else too low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container

    from penaltybox.contracts.subjects import Names

_CERTAIN: Final = 0


class Glimpses:
    """Who is known from sampled records only. It remembers nobody while nothing is sampled."""

    def __init__(self) -> None:
        self.sampled = False
        self._records: dict[str, int] = {}
        """Subject -> how many sampled records there are of it; `_CERTAIN` when another record names it, too."""

    def see(self, names: Names, seen: Container[str], *, share: float | None) -> None:
        """A record.

        Args:
            names: its subjects.
            seen: subjects that records before it named.
            share: of its kind that is recorded; None all.
        """
        records = self._records
        if share is not None and share < 1:
            self.sampled = True
            for name in names:
                known = records.get(name.text)
                if known is None:
                    records[name.text] = _CERTAIN if name.text in seen else 1
                elif known != _CERTAIN:
                    records[name.text] = known + 1
        elif self.sampled:
            for name in names:
                if name.text in records:
                    records[name.text] = _CERTAIN

    def of(self, subject: str) -> int:
        """How many records there are of a subject that is known from a sample only; 0 of any other."""
        return self._records.get(subject, _CERTAIN)


def missed(once: float, twice: float, most: float) -> float:
    """How many a sample missed of which it recorded so many once and twice; at most `most`."""
    return min(most, once * max(0.0, once - 1) / (2 * (twice + 1)))
