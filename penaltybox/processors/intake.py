"""From raw records to stepped states: decoding, dead letters, and the hot loop. No I/O."""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.contracts.decoding import decode_decisions, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.processors.announcements import dead_letter
from penaltybox.processors.engine import HELD, MARKS, NOTHING, PENALTY, Handling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penaltybox.contracts.subjects import Names
    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Message
    from penaltybox.processors.cycle import Run
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.residents import Resident, Residents
    from penaltybox.processors.visibility import Kind, Plan

FRESH_S = 1.0
"""How long a verified version lets a result of 'nothing changed because of a block' stand."""
RENEW_S = 0.75
"""At what age a version that is leant on is verified again: in time, so that nothing has to be kept for it."""
SEEN_S = 60.0
_plans = attrgetter("plans")

Decoded = tuple[Any, Handling, "Names", "Kind | None"]
"""(decision or outcome, how it is handled, names of its subjects, the engine's plans; None for an outcome)"""
Judged = tuple[Any, "Names"] | BadEvent
"""(decision or outcome, names of its subjects)"""


class Stepped(NamedTuple):
    """What a slice did: residents to write, those whose block changed, new denials, subjects new to this minute."""

    queued: list[Resident]
    urgent: list[Resident]
    denials: int
    subjects: int


def decode_run(
    engine: Engine, topics: Topics, run: Run, records: Sequence[Any], now_ms: int
) -> tuple[list[Decoded], list[Message]]:
    """Events of a slice of a run that touch anything, and dead letters for the records that cannot be judged.

    Args:
        engine: what judges.
        topics: tells outcomes from decisions.
        run: where the records come from.
        records: some of its records.
        now_ms: wall time, which says what is late.
    """
    outcomes = run.topic == topics.outcomes
    judged = _outcomes(engine, records) if outcomes else _decisions(engine, records)
    letters: list[Message] = []
    if BadEvent in set(map(type, judged)):
        where = run.topic, run.partition
        bad = [(record, one) for record, one in zip(records, judged, strict=True) if type(one) is BadEvent]
        letters = [dead_letter(topics, record, where, one, now_ms) for record, one in bad]
        good = [(record, one) for record, one in zip(records, judged, strict=True) if type(one) is not BadEvent]
        records, judged = [record for record, _ in good], [one for _, one in good]
    if not judged:
        return [], letters
    events, names = zip(*judged, strict=True)
    handlings = _handlings(records, events, now_ms - engine.policy.late_after_ms)
    kinds: Sequence[Kind | None] = [None] * len(events) if outcomes else engine.kinds(events)
    decoded = zip(events, handlings, names, kinds, strict=False)
    if outcomes or all(map(_plans, kinds)):
        return list(decoded), letters
    return [one for one in decoded if one[3] is None or one[3].plans], letters


def _handlings(records: Sequence[Any], events: Sequence[Any], late_before: int) -> Iterable[Handling]:
    """How each event is handled: often all alike, for the broker stamps a batch at once."""
    stamps, times = [record.timestamp for record in records], [event.ts for event in events]
    late = max(times) < late_before
    if min(stamps) == max(stamps) and (late or min(times) >= late_before):
        return repeat(Handling(stamps[0], late))
    keys = [(stamp, ts < late_before) for stamp, ts in zip(stamps, times, strict=True)]
    made = {key: Handling(*key) for key in set(keys)}
    return map(made.__getitem__, keys)


def _decisions(engine: Engine, records: Sequence[Any]) -> Sequence[Judged]:
    values, stamps = [record.value for record in records], [record.timestamp for record in records]
    return decode_decisions(values, stamps, engine.canonicaliser)


def _outcomes(engine: Engine, records: Sequence[Any]) -> list[Judged]:
    judged: list[Judged] = []
    for record in records:
        try:
            event = decode_outcome(record.value or b"", record.timestamp, engine.canonicaliser)
            judged.append((event, engine.canonicaliser.names(event.subjects)))
        except BadEvent as error:
            judged.append(error)
    return judged


def step_events(  # noqa: C901, PLR0912 - the hot loop: a call for each branch would cost more than it explains
    engine: Engine, residents: Residents, decoded: Sequence[Decoded], now_s: float
) -> Stepped:
    """Step events into the states of their subjects, which are all in `residents`."""
    apply, combination = engine.apply, engine.combination
    young, epoch = residents.young, residents.epoch
    slice_ = _Slice(residents, now_s)
    note, stale_s, renew_s, unseen_s = slice_.note, slice_.stale_s, slice_.renew_s, slice_.unseen_s
    listing = bool(engine.allowlist.entries)
    for event, handling, names, kind in decoded:
        if kind is None:
            slice_.outcome(engine, event, handling, names)
            continue
        t = event.ts
        if t > handling.broker_ms:  # noqa: PLR1730 - a call to min would be felt here
            t = handling.broker_ms
        # The proof spares nearly all the work there is: the states behind it are not even touched.
        proved = (
            names.quick is kind.quick
            and names.since <= t < names.until
            and names.seen_s >= unseen_s
            and names.epoch == epoch
        )
        held = names.held
        plans = kind.plans
        if proved and held is not None:
            proved = held.epoch == epoch
        if proved and (
            held is None
            or (
                t < held.quiet_until
                and held.verified_s >= (stale_s if held.renew else renew_s)
                and held.seen_s >= unseen_s
                and not held.kept
                and not held.sent
            )
        ):
            plans = kind.rest
            if not plans:
                continue
        silent = plans is not kind.rest
        for plan in plans:
            if plan.place >= 0:
                name = names[plan.place]
                resident = name.hint
                if resident is None or resident.epoch != epoch:
                    resident = name.hint = young[name.text]
                if proved and plan.quick and resident is not held:
                    continue
            else:
                subject = combination(plan, event)
                if subject is None:
                    continue
                resident = young[subject]
            if plan.plain and t < resident.quiet_until and not listing:
                effect = HELD  # as apply would say
            else:
                effect = apply(resident.state, plan, event, handling, names)
                if effect & (PENALTY | MARKS):
                    resident.hush()
            if note(resident, effect, plan, event, handling, names) and plan.quick:
                silent = False
        if silent and kind.quick:
            residents.prove(names, kind.quick, t)
    return slice_.stepped()


class _Slice:
    """What comes of a slice while it is stepped."""

    def __init__(self, residents: Residents, now_s: float) -> None:
        self._residents = residents
        self._now_s = now_s
        self.stale_s, self.renew_s, self.unseen_s = now_s - FRESH_S, now_s - RENEW_S, now_s - SEEN_S
        self._queued: list[Resident] = []
        self._urgent: list[Resident] = []
        self._denials = self._subjects = 0

    def outcome(self, engine: Engine, event: Any, handling: Handling, names: Names) -> None:
        """Step an outcome into the states of its subjects."""
        for name in names:
            resident = self._residents.young[name.text]
            effect = engine.apply_outcome(resident.state, event, handling)
            if effect & (PENALTY | MARKS):
                resident.hush()
            self.note(resident, effect, None, event, handling, names)

    def note(
        self, resident: Resident, effect: int, plan: Plan | None, event: Any, handling: Handling, names: Names
    ) -> bool:
        """Take notice of what an event did to a resident; whether it is kept.

        An event is kept with its subject until the subject's next write has succeeded: after a lost race it is stepped
        again. What changed nothing is kept only if something else of the subject is open, or if it was held (by a
        block, a fence, grace) and the version is too old to trust.
        """
        if resident.seen_s < self.unseen_s:
            resident.seen_s = self._now_s
            self._subjects += 1
        if effect == NOTHING or (effect == HELD and resident.verified_s >= self.stale_s):
            if effect == HELD and resident.verified_s < self.renew_s and not resident.renew:
                resident.renew = True
                self._queue(resident)
            if not (resident.kept or resident.sent):
                return False
        elif effect != HELD:
            resident.dirty = True
            if effect & (PENALTY | MARKS):
                resident.remark = True
                if not resident.urgent:
                    resident.urgent = True
                    self._urgent.append(resident)
                self._denials += bool(effect & PENALTY) and _denies(resident.state)
        if resident.proved:
            self._residents.doubt(resident)
        kept = (plan, event, handling, names)
        if resident.kept:
            resident.kept.append(kept)
        else:
            resident.kept = [kept]
        self._queue(resident)
        return True

    def _queue(self, resident: Resident) -> None:
        if not resident.queued:
            resident.queued = True
            self._queued.append(resident)

    def stepped(self) -> Stepped:
        """The whole."""
        return Stepped(self._queued, self._urgent, self._denials, self._subjects)


def _denies(state: Any) -> bool:
    """Whether the newest penalty denies: what the breaker counts."""
    newest = state.outbox[-1]
    return newest.action == "deny" and not newest.shadow
