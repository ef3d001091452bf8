"""States of subjects in a worker's memory: bounded, and safe to be stale, for every write checks the version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penaltybox.processors.engine import Engine
    from penaltybox.processors.intake import Decoded
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
        quiet_until: the state's, at hand for the hot loop.
        epoch: in which it is young; another one than the residents' says that it must be looked up.
    """

    __slots__ = (
        "confirmed",
        "dirty",
        "epoch",
        "kept",
        "queued",
        "quiet_until",
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
        self.quiet_until = state.quiet_until
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
        self.epoch = -1

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
        self.epoch = 0
        """Changes whenever residents stop being young."""
        self._old: dict[str, Resident] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def recall(self, subject: str) -> Resident | None:
        """The resident, made young if it was old."""
        resident = self.young.get(subject)
        if resident is None:
            resident = self._old.pop(subject, None)
            if resident is not None:
                self._take(subject, resident)
        return resident

    def _take(self, subject: str, resident: Resident) -> Resident:
        resident.epoch = self.epoch
        return self.young.setdefault(subject, resident)

    def missing(self, engine: Engine, decoded: Iterable[Decoded]) -> list[str]:
        """Subjects of events that are not here; those that are become young, and their names' hints are set."""
        recall, epoch = self.recall, self.epoch
        absent: dict[str, None] = {}
        for event, _, names, plans in decoded:
            if plans is None:
                absent.update(dict.fromkeys(name.text for name in names if recall(name.text) is None))
                continue
            known = names.hint
            if known is not None and known[0] is plans and known[1] == epoch:
                continue  # all of these were here when the same came last, and nobody has left since
            before = len(absent)
            for plan in plans:
                if plan.place < 0:
                    subject = engine.combination(plan, event)
                    if subject is not None and recall(subject) is None:
                        absent[subject] = None
                    continue
                name = names[plan.place]
                hint = name.hint
                if hint is None or hint.epoch != epoch:
                    name.hint = recall(name.text)
                    if name.hint is None:
                        absent[name.text] = None
            if len(absent) == before and all(plan.place >= 0 for plan in plans):
                names.hint = (plans, epoch)
        return list(absent)

    def settle(self, subject: str, resident: Resident) -> Resident:
        """Take a subject in; who came first stays."""
        return self.recall(subject) or self._take(subject, resident)

    def replace(self, subject: str, resident: Resident) -> None:
        """Take a subject in, in place of what was known of it."""
        for known in (self._old.pop(subject, None), self.young.pop(subject, None)):
            if known is not None:
                known.epoch = -1  # names may still hint at it
        self._take(subject, resident)

    def age(self) -> None:
        """Forget the old generation if the young one has grown enough. Between slices only."""
        if len(self.young) >= self._half:
            self._old, self.young = self.young, {}
            self.epoch += 1
            for resident in self._busy():
                self._old.pop(resident.state.subject, None)
                self._take(resident.state.subject, resident)

    def clear(self) -> None:
        """Forget everything: the partitions, and with them the subjects, may have gone to somebody else."""
        self.young.clear()
        self._old.clear()
        self.epoch += 1
