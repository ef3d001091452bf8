"""What stepping a slice of records did on one side, also when several processes stepped it, each its own subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Hold, Penalty


class Stepped(NamedTuple):
    """What a slice did: (position in the slice, penalty) in order, and position -> the deny that would have stopped.

    `penalty_places` and `stop_places` say which of the event's subjects each is about: that puts what several
    processes found into the order of one.
    """

    penalties: list[tuple[int, Penalty]]
    stopped: dict[int, Hold]
    penalty_places: list[int]
    stop_places: dict[int, int]

    @classmethod
    def empty(cls) -> Stepped:
        """Nothing yet."""
        return cls([], {}, [], {})


def ends_later(hold: Hold, other: Hold) -> bool:
    """Whether a block ends later than another one."""
    return other.until is not None and (hold.until is None or hold.until > other.until)


def together(parts: Sequence[Stepped]) -> Stepped:
    """What one process would have found, of what several (at least one) found on subjects of their own."""
    if len(parts) == 1:
        return parts[0]
    rows = [
        (at, place, penalty)
        for part in parts
        for (at, penalty), place in zip(part.penalties, part.penalty_places, strict=True)
    ]
    rows.sort(key=lambda row: row[:2])
    whole = Stepped([(at, penalty) for at, _, penalty in rows], {}, [place for _, place, _ in rows], {})
    for part in parts:
        for at, hold in part.stopped.items():
            place, other = part.stop_places[at], whole.stopped.get(at)
            first = other is not None and hold.until == other.until and place < whole.stop_places[at]
            if other is None or first or ends_later(hold, other):
                whole.stopped[at], whole.stop_places[at] = hold, place
    return whole
