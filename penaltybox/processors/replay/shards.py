"""Subjects shared out between processes: each steps all records, but only on subjects of its own.

What an event changes about a subject follows from the event and that subject's state alone. So several processes find
together, to the penalty, what one finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.subjects import value_hash
from penaltybox.processors.visibility import Kind

if TYPE_CHECKING:
    from penaltybox.contracts.subjects import Names
    from penaltybox.processors.visibility import Plan

_MOST: Final = 50_000
"""Subjects, and kinds, that are remembered."""


class Shard:
    """The subjects of one process: those whose value's hash, modulo `of`, is `index`.

    Args:
        index: which, from 0 on.
        of: how many there are.
    """

    def __init__(self, index: int, of: int) -> None:
        self._index, self._of = index, of
        self._owned: dict[str, bool] = {}
        self._parts: dict[tuple[int, int], tuple[Kind, Kind]] = {}
        self._quick: dict[tuple[int, int], tuple[tuple[Plan, ...], tuple[Plan, ...]]] = {}

    def owns(self, subject: str) -> bool:
        """Whether a subject (canonical text) is one of them."""
        owned = self._owned.get(subject)
        if owned is None:
            if len(self._owned) >= _MOST:
                self._owned.clear()
            owned = self._owned[subject] = value_hash(subject.partition(":")[2]) % self._of == self._index
        return owned

    def mask(self, names: Names) -> int:
        """Bit n is set: the n-th name is one of them."""
        return sum(1 << place for place, name in enumerate(names) if name.hash % self._of == self._index)

    def part(self, kind: Kind, mask: int) -> Kind:
        """The plans of a kind that are about them; whether a combination is one is for `owns` to say.

        Args:
            kind: as the engine says.
            mask: as `mask` says.
        """
        known = self._parts.get((id(kind), mask))
        if known is None:
            if len(self._parts) >= _MOST:
                self._parts.clear()
                self._quick.clear()
            known = self._parts[id(kind), mask] = kind, self._cut(kind, mask)  # the first keeps its id its own
        return known[1]

    def _cut(self, kind: Kind, mask: int) -> Kind:
        def mine(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
            return tuple(plan for plan in plans if plan.place < 0 or mask >> plan.place & 1)

        quick = self._quick.setdefault((id(kind.quick), mask), (kind.quick, mine(kind.quick)))[1]
        return Kind(mine(kind.plans), quick, mine(kind.rest), kind.places & mask if kind.places >= 0 else -1)
