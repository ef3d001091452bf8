"""States of subjects in a worker's memory: bounded, and safe to be stale, for every write checks the version."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from penaltybox.contracts.recognition import decode_recognised
from penaltybox.processors.state import FOREVER, NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penaltybox.contracts.subjects import Names
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.intake import Decoded
    from penaltybox.processors.state import SubjectState
    from penaltybox.processors.visibility import Kind, Plan

Kept = tuple[Any, Any, Any, Any]
"""(plan of the engine, or None for an outcome; decision or outcome; its handling; names of a decision's subjects)"""

NONE: frozenset[str] = frozenset()
TRUSTED_S: Final = 12 * 3600.0
"""What was last verified longer ago is read again."""
LOOK_S: Final = 3600.0
FOREVER_S: Final = float("inf")


@lru_cache(1024)
def shared(ms: int) -> int:
    """The same time as the same object: whoever compares with it finds it in the processor's cache."""
    return ms


class _Looked:
    """What the hot loop looks at in every resident: slots of a base come first, so they share a cache line or two."""

    __slots__ = ("epoch", "kept", "quiet_until", "renew", "seen_s", "sent", "verified_s")


class Resident(_Looked):
    """One subject's state here, and what is still open about it. There are hundreds of thousands: it owns little.

    Attributes:
        state: stepped in place; its number and nonce are those last read or written.
        verified_s: monotonic time at which the store was known to hold that version.
        kept: events stepped into `state` since it was last encoded; stepped again after a lost race.
        sent: events in the write that is under way.
        dirty: `state` has something to write.
        renew: its version is looked at before it is too old to trust; queued or being written for that.
        queued: in the open cycle.
        urgent: a block or its end waits to be written.
        remark: the keys beside the state change with the next write.
        telling: ids of penalties that are on their way to Kafka.
        confirmed: ids of penalties that Kafka has and the stored outbox still holds.
        seen_s: when the breaker counted it.
        quiet_until: the state's, rounded down to a second or so, at hand for the hot loop.
        proved: names rely on it to stay as it is.
        epoch: in which it is young; another one than the residents' says that it must be looked up.
    """

    __slots__ = (
        "confirmed",
        "dirty",
        "proved",
        "queued",
        "remark",
        "state",
        "telling",
        "urgent",
    )

    def __init__(self, state: SubjectState, verified_s: float) -> None:
        self.state = state
        self.hush()
        self.verified_s = verified_s
        self.kept: list[Kept] | tuple[()] = ()
        self.sent: list[Kept] | tuple[()] = ()
        self.dirty = False
        self.renew = False
        self.queued = False
        self.urgent = False
        self.remark = False
        self.telling: frozenset[str] = NONE
        self.confirmed: frozenset[str] = NONE
        self.seen_s = -1e9
        self.epoch = -1
        self.proved = False

    def hush(self) -> None:
        """Take over the state's `quiet_until`, rounded down; whoever changes a block, a fence or grace calls it."""
        self.quiet_until = shared(self.state.quiet_until & -1024)

    @property
    def busy(self) -> bool:
        """Whether anything is open about it, so that it must not be forgotten or read anew."""
        return bool(self.dirty or self.queued or self.renew or self.kept or self.sent or self.urgent or self.telling)


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
        self._next_look_s = time.monotonic() + LOOK_S
        self._proofs: dict[Resident, dict[int, Names]] = {}
        """What relies on residents to stay as they are. Not in the residents: no cycle shall outlive them."""

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

    def missing(self, engine: Engine, decoded: Decoded) -> list[str]:
        """Subjects of events that are not here; those that are become young, and their names' hints are set."""
        recall, epoch = self.recall, self.epoch
        absent: dict[str, None] = {}
        for event, names, kind in decoded.subjects():
            if kind is None:
                absent.update(dict.fromkeys(name.text for name in names if recall(name.text) is None))
                continue
            if names.epoch == epoch and not kind.places & ~names.here:
                continue  # all of these were here when they came last, and nobody has left since
            strangers = self._strangers(engine, event, names, kind)
            absent.update(dict.fromkeys(strangers))
            if not strangers and kind.places >= 0:
                if names.epoch != epoch:
                    names.epoch, names.here, names.until = epoch, 0, 0
                names.here |= kind.places
        return list(absent)

    def _strangers(self, engine: Engine, event: Any, names: Names, kind: Kind) -> list[str]:
        """Subjects of one decision that are not here."""
        found = []
        if kind.places < 0 and type(event) is bytes:
            event = decode_recognised(event)
        for plan in kind.plans:
            if plan.place < 0:
                subject = engine.combination(plan, event)
                if subject is not None and self.recall(subject) is None:
                    found.append(subject)
                continue
            name = names[plan.place]
            if name.hint is None or name.hint.epoch != self.epoch:
                name.hint = self.recall(name.text)
                if name.hint is None:
                    found.append(name.text)
        return found

    def prove(self, names: Names, quick: Sequence[Plan], t: int) -> None:
        """Remember, if it can be proved, until when decisions on these names change nothing in these plans.

        A value that a distinct rule has seen says nothing new before the end of its granule, and a block answers for
        its subject. That holds while nothing is open about the residents and they stay as they are, which is what
        `doubt` ends; a block is looked at each time, for it must have been verified lately.
        """
        since, until, seen_s = 0, FOREVER, FOREVER_S
        held: Resident | None = None
        relied: list[Resident] = []
        for plan in quick:
            one = names[plan.place].hint
            if one is None or one.epoch != self.epoch or one.busy:
                return
            if t < one.quiet_until:
                if held is not None:
                    return  # two blocks at once: they answer without their states anyway
                held = one
                continue
            last = one.state.real.sets.get(plan.key, NOTHING).get(names[plan.value].hash)
            if last is None:
                return
            since, until = max(since, one.state.quiet_until), min(until, last + plan.granule_ms)
            seen_s = min(seen_s, one.seen_s)
            relied.append(one)
        if names.epoch != self.epoch:
            names.epoch, names.here = self.epoch, 0
        names.quick, names.since, names.until = quick, since, shared(until)
        names.held, names.seen_s = held, seen_s
        for one in relied:
            one.proved = True
            self._proofs.setdefault(one, {})[id(names)] = names

    def doubt(self, resident: Resident) -> None:
        """Something changes about a resident, or is open now: what was proved from it must be proved again."""
        resident.proved = False
        for names in self._proofs.pop(resident, NOTHING).values():
            names.until = 0

    def settle(self, subject: str, resident: Resident) -> Resident:
        """Take a subject in; who came first stays."""
        return self.recall(subject) or self._take(subject, resident)

    def replace(self, subject: str, resident: Resident) -> None:
        """Take a subject in, in place of what was known of it."""
        for known in (self._old.pop(subject, None), self.young.pop(subject, None)):
            if known is not None:
                known.epoch = -1  # names may still hint at it
                self.doubt(known)
        self._take(subject, resident)

    def age(self) -> None:
        """Forget the old generation if the young one has grown enough, and what is too old. Between slices only."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_S
            self.retire(now_s - TRUSTED_S)
        if len(self.young) >= self._half:
            self._begin_epoch(self.young)

    def retire(self, before_s: float) -> None:
        """Forget who was not verified since then (monotonic) and has nothing open. Between slices only.

        Whoever was erased meanwhile must not be written again from here.
        """
        everybody = {**self._old, **self.young}
        old = [subject for subject, one in everybody.items() if one.verified_s < before_s and not one.busy]
        if old:
            for subject in old:
                everybody.pop(subject).epoch = -1
            self._begin_epoch(everybody)

    def _begin_epoch(self, old: dict[str, Resident]) -> None:
        self._old, self.young = old, {}
        self.epoch += 1
        self._proofs = {}
        for resident in self._busy():
            self._old.pop(resident.state.subject, None)
            self._take(resident.state.subject, resident)

    def clear(self) -> None:
        """Forget everything: the partitions, and with them the subjects, may have gone to somebody else."""
        self.young.clear()
        self._old.clear()
        self._proofs = {}
        self.epoch += 1
