"""From raw records to stepped states: decoding, dead letters, and the hot loop. No I/O."""

from __future__ import annotations

from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penaltybox.contracts.decoding import decode_decisions, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import AHEAD_MS
from penaltybox.contracts.recognition import UNKNOWN, Recognised, Sighting
from penaltybox.processors.announcements import dead_letter
from penaltybox.processors.engine import HELD, MARKS, NOTHING, PENALTY, Handling

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
_NEVER: Final = -(1 << 62)
_plans = attrgetter("plans")
_stamp, _value = attrgetter("timestamp"), attrgetter("value")

Row = tuple[Any, int, Handling, "Names", "Kind | None"]
"""(decision or outcome, or the bytes of a recognised decision; effective time in ms; how it is handled; names of its
subjects; the engine's plans, None for an outcome)"""


class Decoded(NamedTuple):
    """Events of a slice of a run, by column, in their order: see `Row`."""

    events: Sequence[Any]
    times: Sequence[int]
    handlings: Sequence[Handling]
    names: Sequence[Names]
    kinds: Sequence[Kind | None]

    def rows(self) -> Iterator[Row]:
        """One after the other."""
        return zip(*self, strict=True)

    def subjects(self) -> Iterator[tuple[Any, Names, Kind | None]]:
        """What tells the subjects: event, names, kind."""
        return zip(self.events, self.names, self.kinds, strict=True)


NONE: Final = Decoded([], [], [], [], [])


class Stepped(NamedTuple):
    """What a slice did: residents to write, those whose block changed, new denials, subjects new to this minute."""

    queued: list[Resident]
    urgent: list[Resident]
    denials: int
    subjects: int


def decode_run(
    engine: Engine, topics: Topics, run: Run, records: Sequence[Any], now_ms: int
) -> tuple[Decoded, list[Message]]:
    """Events of a slice of a run that touch anything, and dead letters for the records that cannot be judged.

    Args:
        engine: what judges.
        topics: tells outcomes from decisions.
        run: where the records come from.
        records: some of its records.
        now_ms: wall time, which says what is late.
    """
    if not records:
        return NONE, []
    stamps = list(map(_stamp, records))
    outcomes = run.topic == topics.outcomes
    values = list(map(_value, records))
    events, times, names, kinds, refused = (_outcomes if outcomes else judge_decisions)(engine, values, stamps)
    where = run.topic, run.partition
    letters = [dead_letter(topics, records[at], where, error, now_ms) for at, error in refused.items()]
    handlings = _handlings(stamps, times, now_ms - engine.policy.late_after_ms)
    if max(times) > min(stamps):
        times = list(map(min, times, stamps))
    decoded = Decoded(events, times, handlings, names, kinds)
    if refused or not (outcomes or all(map(_plans, kinds))):
        wanted = [at not in refused and (kind is None or bool(kind.plans)) for at, kind in enumerate(kinds)]
        decoded = Decoded(*(list(compress(column, wanted)) for column in decoded))
    return decoded, letters


def _handlings(stamps: Sequence[int], times: Sequence[int], late_before: int) -> Sequence[Handling]:
    """How each event is handled: often all alike, for the broker stamps a batch at once."""
    late = max(times) < late_before
    if min(stamps) == max(stamps) and (late or min(times) >= late_before):
        return [Handling(stamps[0], late)] * len(stamps)
    keys = [(stamp, ts < late_before) for stamp, ts in zip(stamps, times, strict=True)]
    made = {key: Handling(*key) for key in set(keys)}
    return list(map(made.__getitem__, keys))


Judged = tuple["Sequence[Any]", list[int], "list[Names]", "Sequence[Kind | None]", dict[int, BadEvent]]
"""Events, their own times, names, kinds; and place -> why that record cannot be judged (it has no kind)."""


def judge_decisions(engine: Engine, raws: Sequence[Any], stamps: Sequence[int]) -> Judged:
    """Decisions of a slice: what was judged once is recognised by its bytes; the rest is decoded and judged."""
    recogniser = engine.recogniser
    seen = recogniser.recognise(raws)
    if seen is None:
        return _judged(engine, Recognised.nothing(len(raws)), [None] * len(raws), range(len(raws)), raws, stamps)
    for at in _ahead(seen.times, stamps):
        seen.heads[at] = None  # for decoding to refuse
    kinds = engine.recognised_kinds(seen)
    if all(kinds):
        return raws, seen.times, seen.names, kinds, {}
    gaps = []
    for at, kind in enumerate(kinds):
        if kind is None:
            if recogniser.complete(seen, at, raws[at]):
                kinds[at] = engine.recognised_kind(seen, at, raws[at])
            else:
                gaps.append(at)
    judged = _judged(engine, seen, kinds, gaps, raws, stamps)
    events, refused = judged[0], judged[4]
    recogniser.learn((raws[at], events[at]) for at in gaps if at not in refused)
    recogniser.note(len(gaps), len(raws))
    return judged


def _ahead(times: Sequence[int], stamps: Sequence[int]) -> Sequence[int]:
    """Places of those that are so far ahead of the broker's time that it cannot be true."""
    if max(times) <= min(stamps) + AHEAD_MS:
        return ()
    rows = enumerate(zip(times, stamps, strict=True))
    return [at for at, (ts, stamp) in rows if ts > stamp + AHEAD_MS]


def sightings(events: Sequence[Any], times: Sequence[int], kinds: Sequence[Kind | None]) -> list[Any]:
    """Events of which nobody keeps time and kind apart: those that were only recognised carry them."""
    types = set(map(type, events))
    if bytes not in types:
        return list(events)
    if types == {bytes}:
        return list(map(Sighting, events, times, kinds))
    rows = zip(events, times, kinds, strict=True)
    return [Sighting(event, t, kind) if type(event) is bytes and kind is not None else event for event, t, kind in rows]


def _judged(
    engine: Engine,
    seen: Recognised,
    kinds: list[Kind | None],
    gaps: Sequence[int],
    raws: Sequence[bytes],
    stamps: Sequence[int],
) -> Judged:
    """Fill the gaps in what was recognised: decode, and judge, one by one what is not in our own form."""
    events: list[Any] = list(raws)
    refused: dict[int, BadEvent] = {}
    if not gaps:
        return events, seen.times, seen.names, kinds, refused
    judged = decode_decisions([raws[at] for at in gaps], [stamps[at] for at in gaps], engine.canonicaliser)
    good = []
    for at, one in zip(gaps, judged, strict=True):
        if isinstance(one, BadEvent):
            refused[at] = one
        else:
            events[at], seen.names[at] = one
            seen.times[at] = one[0].ts
            good.append(at)
    if good:
        for at, kind in zip(good, engine.kinds([events[at] for at in good]), strict=True):
            kinds[at] = kind
    return events, seen.times, seen.names, kinds, refused


def _outcomes(engine: Engine, raws: Sequence[Any], stamps: Sequence[int]) -> Judged:
    events: list[Any] = []
    names: list[Names] = []
    refused: dict[int, BadEvent] = {}
    for at, (raw, stamp) in enumerate(zip(raws, stamps, strict=True)):
        try:
            event = decode_outcome(raw or b"", stamp, engine.canonicaliser)
            events.append(event)
            names.append(engine.canonicaliser.names(event.subjects))
        except BadEvent as error:
            refused[at] = error
            del events[len(names) :]
            events.append(None)
            names.append(UNKNOWN)
    times = [stamp if event is None else event.ts for event, stamp in zip(events, stamps, strict=True)]
    return events, times, names, [None] * len(events), refused


def step_events(  # noqa: C901, PLR0912, PLR0915 - the hot loop: a call for each branch would cost more than it explains
    engine: Engine, residents: Residents, decoded: Decoded, now_s: float
) -> Stepped:
    """Step events into the states of their subjects, which are all in `residents`."""
    apply, combination = engine.apply, engine.combination
    young, epoch = residents.young, residents.epoch
    slice_ = _Slice(residents, now_s)
    note, stale_s, renew_s, unseen_s = slice_.note, slice_.stale_s, slice_.renew_s, slice_.unseen_s
    listing = bool(engine.allowlist.entries)
    for event, t, handling, names, kind in decoded.rows():
        if kind is None:
            slice_.outcome(engine, event, handling, names)
            continue
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
                if type(event) is bytes:
                    event = Sighting(event, t)  # noqa: PLW2901 - until here it was only recognised
                subject = combination(plan, event)
                if subject is None:
                    continue
                resident = young[subject]
            if plan.plain and t < resident.quiet_until and not listing:
                effect = HELD  # as apply would say
                if (
                    resident.verified_s >= renew_s
                    and resident.seen_s >= unseen_s
                    and not resident.kept
                    and not resident.sent
                ):
                    continue  # as note would say
            else:
                if plan.quick and not listing and resident.seen_s >= unseen_s and not (resident.kept or resident.sent):
                    state = resident.state
                    seen = state.real.sets.get(plan.key)
                    if (
                        seen is not None
                        and seen.get(names[plan.value].hash, _NEVER) + plan.granule_ms > t >= state.quiet_until
                    ):
                        continue  # as apply and note would say
                if type(event) is bytes:
                    event = Sighting(event, t)  # noqa: PLW2901 - until here it was only recognised
                effect = apply(resident.state, plan, event, handling, names)
                if effect & (PENALTY | MARKS):
                    resident.hush()
            if type(event) is bytes:
                event = Sighting(event, t)  # noqa: PLW2901 - as above
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
