"""From raw records to stepped states: decoding, dead letters, and the hot loop. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.contracts.decoding import decode_decision, decode_outcome
from penaltybox.contracts.errors import BadEvent
from penaltybox.processors.announcements import dead_letter
from penaltybox.processors.engine import HELD, MARKS, NOTHING, PENALTY, Handling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Message
    from penaltybox.processors.cycle import Run
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.residents import Resident

FRESH_S = 1.0
"""How long a verified version lets a result of 'nothing changed because of a block' stand."""
SEEN_S = 60.0

Touch = tuple[str, Any]
Decoded = tuple[Any, Handling, "list[Touch]"]
"""(decision or outcome, how it is handled, [(subject, plan of the engine; None for an outcome)])"""


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
    canonicaliser, touches = engine.canonicaliser, engine.touches
    late_before = now_ms - engine.policy.late_after_ms
    outcomes = run.topic == topics.outcomes
    known: dict[tuple[int, bool], Handling] = {}
    decoded: list[Decoded] = []
    letters: list[Message] = []
    for record in records:
        broker_ms = record.timestamp
        try:
            if outcomes:
                event: Any = decode_outcome(record.value or b"", broker_ms, canonicaliser)
                touched: list[Touch] = [(subject, None) for subject in engine.outcome_subjects(event)]
            else:
                event = decode_decision(record.value or b"", broker_ms, canonicaliser)
                touched = touches(event)
        except BadEvent as error:
            letters.append(dead_letter(topics, record, (run.topic, run.partition), error, now_ms))
            continue
        if touched:
            key = (broker_ms, event.ts < late_before)
            handling = known.get(key)
            if handling is None:
                handling = known[key] = Handling(*key)
            decoded.append((event, handling, touched))
    return decoded, letters


def step_events(engine: Engine, residents: Mapping[str, Resident], decoded: Sequence[Decoded], now_s: float) -> Stepped:
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
    for event, handling, touched in decoded:
        for subject, plan in touched:
            resident = residents[subject]
            state = resident.state
            effect = apply_outcome(state, event, handling) if plan is None else apply(state, plan, event, handling)
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
            resident.kept.append((plan, event, handling))
            if not resident.queued:
                resident.queued = True
                queued.append(resident)
    return Stepped(queued, urgent, denials, subjects)


def _denies(state: Any) -> bool:
    """Whether the newest penalty denies: what the breaker counts."""
    newest = state.outbox[-1]
    return newest.action == "deny" and not newest.shadow
