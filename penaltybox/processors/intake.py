"""From raw records to stepped states: decoding, dead letters, and the hot loop. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.contracts.decoding import decode_decisions, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.processors.announcements import dead_letter
from penaltybox.processors.engine import HELD, MARKS, NOTHING, PENALTY, Handling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Message
    from penaltybox.processors.cycle import Run
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.residents import Resident

FRESH_S = 1.0
"""How long a verified version lets a result of 'nothing changed because of a block' stand."""
SEEN_S = 60.0

Touch = tuple[str, Any]
Decoded = tuple[Any, Handling, Any, "list[Touch]"]
"""(decision or outcome, how it is handled, names of a decision's subjects, touches)"""
Judged = tuple[Any, Any] | BadEvent
"""(decision or outcome, names of a decision's subjects; None for an outcome)"""


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
    judged = _outcomes(engine, records) if run.topic == topics.outcomes else _decisions(engine, records)
    late_before = now_ms - engine.policy.late_after_ms
    touches = engine.touches
    handling = Handling(-1)
    decoded: list[Decoded] = []
    letters: list[Message] = []
    for record, one in zip(records, judged, strict=True):
        if type(one) is BadEvent:
            letters.append(dead_letter(topics, record, (run.topic, run.partition), one, now_ms))
            continue
        event, names = one  # type: ignore[misc] # not a BadEvent
        touched = touches(event, names) if names is not None else _touched(engine, event)
        if touched:
            broker_ms, late = record.timestamp, event.ts < late_before
            if broker_ms != handling.broker_ms or late is not handling.late:
                handling = Handling(broker_ms, late)  # the same for most of a batch of the broker's
            decoded.append((event, handling, names, touched))
    return decoded, letters


def _decisions(engine: Engine, records: Sequence[Any]) -> Sequence[Judged]:
    values, stamps = [record.value for record in records], [record.timestamp for record in records]
    return decode_decisions(values, stamps, engine.canonicaliser)


def _outcomes(engine: Engine, records: Sequence[Any]) -> Iterator[Judged]:
    for record in records:
        try:
            yield decode_outcome(record.value or b"", record.timestamp, engine.canonicaliser), None
        except BadEvent as error:
            yield error


def _touched(engine: Engine, outcome: Any) -> list[Touch]:
    return [(subject, None) for subject in engine.outcome_subjects(outcome)]


def step_events(  # noqa: C901, PLR0912 - the hot loop: a call for each branch would cost more than it explains
    engine: Engine, residents: Mapping[str, Resident], decoded: Sequence[Decoded], now_s: float
) -> Stepped:
    """Step events into the states of their subjects, which are all in `residents`.

    An event is kept with its subject until the subject's next write has succeeded: after a lost race it is stepped
    again. What changed nothing is kept only if something else of the subject is open, or if it was held (by a block, a
    fence, grace) and the version is too old to trust.
    """
    apply, apply_outcome = engine.apply, engine.apply_outcome
    stale_s, unseen_s = now_s - FRESH_S, now_s - SEEN_S
    queued: list[Resident] = []
    urgent: list[Resident] = []
    denials = subjects = 0
    for event, handling, names, touched in decoded:
        for subject, plan in touched:
            resident = residents[subject]
            state = resident.state
            if plan is None:
                effect = apply_outcome(state, event, handling)
            else:
                effect = apply(state, plan, event, handling, names)
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
                    denials += bool(effect & PENALTY) and _denies(state)
            if resident.kept:
                resident.kept.append((plan, event, handling, names))
            else:
                resident.kept = [(plan, event, handling, names)]
            if not resident.queued:
                resident.queued = True
                queued.append(resident)
    return Stepped(queued, urgent, denials, subjects)


def _denies(state: Any) -> bool:
    """Whether the newest penalty denies: what the breaker counts."""
    newest = state.outbox[-1]
    return newest.action == "deny" and not newest.shadow
