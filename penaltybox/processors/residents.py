"""States of subjects in a worker's memory: bounded, and safe to be stale, for every write checks the version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penaltybox.processors.state import SubjectState

Kept = tuple[Any, Any, Any, Any]
"""(plan of the engine, or None for an outcome; decision or outcome; its handling; names of a decision's subjects)"""

NONE: frozenset[str] = frozenset()


class Resident:
    """One subject's state here, and what is still open about it. There are hundreds of thousands: it owns little.

    Attributes:
        state: stepped in place; its number and nonce are those last read or written.
        verified_s: monotonic time at which the store was known to hold that version.
        kept: events stepped into `state` since it was last encoded; stepped again after a lost race.
        sent: events in the write that is under way.
        dirty: `state` has something to write.
        queued: in the open cycle.
        urgent: a block or its end waits to be written.
        remark: the keys beside the state change with the next write.
        telling: ids of penalties that are on their way to Kafka.
        confirmed: ids of penalties that Kafka has and the stored outbox still holds.
        seen_s: when the breaker counted it.
    """

    __slots__ = (
        "confirmed",
        "dirty",
        "kept",
        "queued",
        "remark",
        "seen_s",
        "sent",
        "state",
        "telling",
        "urgent",
        "verified_s",
    )

    def __init__(self, state: SubjectState, verified_s: float) -> None:
        self.state = state
        self.verified_s = verified_s
        self.kept: list[Kept] | tuple[()] = ()
        self.sent: list[Kept] | tuple[()] = ()
        self.dirty = False
        self.queued = False
        self.urgent = False
        self.remark = False
        self.telling: frozenset[str] = NONE
        self.confirmed: frozenset[str] = NONE
        self.seen_s = -1e9

    @property
    def busy(self) -> bool:
        """Whether anything is open about it, so that it must not be forgotten or read anew."""
        return bool(self.dirty or self.queued or self.kept or self.sent or self.urgent or self.telling)


class Residents:
    """Subjects in memory, in two generations: when the young one is half of the limit, the old one is forgotten."""

    def __init__(self, limit: int, busy: Callable[[], Iterable[Resident]]) -> None:
        """`busy` yields the residents of which something is open: they outlive every generation."""
        self._half = max(1, limit // 2)
        self._busy = busy
        self.young: dict[str, Resident] = {}
        self._old: dict[str, Resident] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def recall(self, subject: str) -> Resident | None:
        """The resident, made young if it was old."""
        resident = self.young.get(subject)
        if resident is None:
            resident = self._old.pop(subject, None)
            if resident is not None:
                self.young[subject] = resident
        return resident

    def settle(self, subject: str, resident: Resident) -> Resident:
        """Take a subject in; who came first stays."""
        return self.recall(subject) or self.young.setdefault(subject, resident)

    def replace(self, subject: str, resident: Resident) -> None:
        """Take a subject in, in place of what was known of it."""
        self._old.pop(subject, None)
        self.young[subject] = resident

    def age(self) -> None:
        """Forget the old generation if the young one has grown enough. Between slices only."""
        if len(self.young) >= self._half:
            self._old = self.young
            self.young = {resident.state.subject: resident for resident in self._busy()}
            for subject in self.young:
                self._old.pop(subject, None)

    def clear(self) -> None:
        """Forget everything: the partitions, and with them the subjects, may have gone to somebody else."""
        self.young.clear()
        self._old.clear()
