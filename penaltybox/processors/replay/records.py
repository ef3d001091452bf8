"""What sources yield: decoded events in the order of their replay, a slice at a time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penaltybox.contracts.errors import BadEvent
    from penaltybox.contracts.events import Command, Decision, Outcome
    from penaltybox.contracts.recognition import Sighting
    from penaltybox.contracts.subjects import Names
    from penaltybox.processors.replay.listed import ListChange

SLICE: Final = 1000
"""Records in a slice: few enough to stay near the core, enough to be decoded in one call."""

Entry = tuple[int, int, int, "Decision | Sighting | Outcome | Command | ListChange", "Names", int]
"""(clock, rank of the partition, offset, event, names of its subjects, the broker's timestamp).

The first three are the order. `clock` is the latest timestamp of the partition so far, so that it never goes back
although timestamps may; of a source without a broker it is the latest `ts` so far, and stands for the broker's too.
Where nobody observes a replay, decisions may come as they were recognised, with their kind.
"""
CLOCK: Final = 0
EVENT: Final = 3


class Window(NamedTuple):
    """Which part of the record is replayed, in ms; None is open.

    Attributes:
        start_ms: where the warm-up begins.
        from_ms: from here on results count.
        to_ms: and before this.
    """

    start_ms: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None


class Refusals:
    """Records that could not be judged, by reason, and what the first one was.

    Args:
        wanted: what a record is, for who has none of it.
    """

    def __init__(self, wanted: str = "decisions as docs/events.md describes them") -> None:
        self.reasons: Counter[str] = Counter()
        self.first = ""
        self.wanted = wanted

    def note(self, error: BadEvent, where: str) -> None:
        """Count one; `where` it was is kept of the first."""
        if not self.reasons:
            self.first = f"{where}: {error.detail}"
        self.reasons[error.reason] += 1


class Reading(Protocol):
    """A source that is being read."""

    title: str
    """What is read, for people."""
    unit: str
    """What `done` and `total` count: ``bytes`` or ``records``."""
    done: int
    total: int | None
    """None when nobody knows."""
    refused: Refusals
    remarks: list[str]
    """Sentences about what was found: a topic that begins late, and so on."""

    def slices(self) -> AsyncIterator[Sequence[Entry]]:
        """Slices in order, each of at most a few thousand entries.

        Raises:
            ConfigurationError: it cannot be read.
            StoreUnavailable: a server does not answer.
        """
