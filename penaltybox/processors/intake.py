"""From raw records to stepped states: decoding, dead letters, and the hot loop. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.contracts.decoding import decode_decisions, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.processors.announcements import dead_letter
from penaltybox.processors.engine import HELD, MARKS, NOTHING, PENALTY, Handling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penaltybox.contracts.subjects import Names
    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Message
    from penaltybox.processors.cycle import Run
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.residents import Resident, Residents
    from penaltybox.processors.visibility import Plan

FRESH_S = 1.0
"""How long a verified version lets a result of 'nothing changed because of a block' stand."""
SEEN_S = 60.0

Decoded = tuple[Any, Handling, "Names", "tuple[Plan, ...] | None"]
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
    late_before = now_ms - engine.policy.late_after_ms
    plans_of = engine.plans
    handling = Handling(-1)
    decoded: list[Decoded] = []
    letters: list[Message] = []
    for record, one in zip(records, judged, strict=True):
        if type(one) is BadEvent:
            letters.append(dead_letter(topics, record, (run.topic, run.partition), one, now_ms))
            continue
        event, names = one  # type: ignore[misc] # not a BadEvent
        plans = None if outcomes else plans_of(event)
        if plans or outcomes:
            broker_ms, late = record.timestamp, event.ts < late_before
            if broker_ms != handling.broker_ms or late is not handling.late:
                handling = Handling(broker_ms, late)  # the same for most of a batch of the broker's
            decoded.append((event, handling, names, plans))
    return decoded, letters


def _decisions(engine: Engine, records: Sequence[Any]) -> Sequence[Judged]:
    values, stamps = [record.value for record in records], [record.timestamp for record in records]
    return decode_decisions(values, stamps, engine.canonicaliser)


def _outcomes(engine: Engine, records: Sequence[Any]) -> Iterator[Judged]:
    for record in records:
        try:
            event = decode_outcome(record.value or b"", record.timestamp, engine.canonicaliser)
            yield event, engine.canonicaliser.names(event.subjects)
        except BadEvent as error:
            yield error


def step_events(  # noqa: C901, PLR0912 - the hot loop: a call for each branch would cost more than it explains
    engine: Engine, residents: Residents, decoded: Sequence[Decoded], now_s: float
) -> Stepped:
    """Step events into the states of their subjects, which are all in `residents`.

    An event is kept with its subject until the subject's next write has succeeded: after a lost race it is stepped
    again. What changed nothing is kept only if something else of the subject is open, or if it was held (by a block, a
    fence, grace) and the version is too old to trust.
    """
    apply, apply_outcome = engine.apply, engine.apply_outcome
    young, epoch = residents.young, residents.epoch
    plain = not engine.allowlist.entries
    stale_s, unseen_s = now_s - FRESH_S, now_s - SEEN_S
    queued: list[Resident] = []
    urgent: list[Resident] = []
    denials = subjects = 0
    for event, handling, names, plans in decoded:
        of: Iterable[Any] = names if plans is None else plans
        for plan in of:
            if plans is None:
                resident = young[plan.text]
                effect = apply_outcome(resident.state, event, handling)
            else:
                if plan.place >= 0:
                    resident = names[plan.place].hint
                    if resident is None or resident.epoch != epoch:
                        resident = young[names[plan.place].text]
                else:
                    subject = engine.combination(plan, event)
                    if subject is None:
                        continue
                    resident = young[subject]
                if plan.plain and plain and event.ts < resident.quiet_until:
                    effect = HELD  # as apply would say
                else:
                    effect = apply(resident.state, plan, event, handling, names)
                    if effect & (PENALTY | MARKS):
                        resident.quiet_until = resident.state.quiet_until
            if resident.seen_s < unseen_s:
                resident.seen_s = now_s
                subjects += 1
            if effect == NOTHING or (effect == HELD and resident.verified_s >= stale_s):
                if not (resident.kept or resident.sent):
                    continue
            elif effect != HELD:
                resident.dirty = True
                if effect & (PENALTY | MARKS):
                    resident.remark = True
                    if not resident.urgent:
                        resident.urgent = True
                        urgent.append(resident)
                    denials += bool(effect & PENALTY) and _denies(resident.state)
            kept = (None if plans is None else plan, event, handling, names)
            if resident.kept:
                resident.kept.append(kept)
            else:
                resident.kept = [kept]
            if not resident.queued:
                resident.queued = True
                queued.append(resident)
    return Stepped(queued, urgent, denials, subjects)


def _denies(state: Any) -> bool:
    """Whether the newest penalty denies: what the breaker counts."""
    newest = state.outbox[-1]
    return newest.action == "deny" and not newest.shadow
