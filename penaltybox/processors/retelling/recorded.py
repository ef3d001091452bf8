"""What a recorded penalty says of the state that it left: a command to give again, or a state to take over."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.events import Command, Hold, Penalty
from penaltybox.processors.ladder import later
from penaltybox.processors.remedies import COMMANDED
from penaltybox.processors.state import SubjectState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.events import Decision, Outcome, Verb
    from penaltybox.contracts.policy import Policy

SHARED_IP = "shared_ip"
PASSED = "challenge_passed"
_VERBS: dict[str, Verb] = {"ban": "ban", "unban": "unban", "pardon": "pardon", "grant": "grant"}


class Recorded(NamedTuple):
    """An event as its topic has it: the broker's timestamp, and its place in the order of the broker."""

    record: Decision | Outcome
    broker_ms: int
    partition: int = 0
    offset: int = 0


def command_of(penalty: Penalty) -> Command | None:
    """The step by hand that a penalty is the record of; None if a rule made it, or its record says too little."""
    verb = _VERBS.get(str(penalty.evidence.get("verb", "")))
    if penalty.origin != COMMANDED or verb is None:
        return None
    bounded = verb == "ban" and penalty.action == "deny" and penalty.until is not None
    return Command(
        id=penalty.trigger_id,
        ts=penalty.ts,
        verb=verb,
        subject=penalty.subject,
        actor=penalty.actor or "unknown",
        reason=penalty.note or "not told",
        level=penalty.to if verb == "ban" else "",
        for_ms=penalty.until - penalty.ts if bounded and penalty.until is not None else None,
        keep_level=verb == "unban" and penalty.to != "none",
        grace_ms=_grace_ms(penalty),
        points=_number(penalty.evidence.get("points")),
    )


def adopt(state: SubjectState, penalty: Penalty, policy: Policy) -> None:
    """Brings the real ladder of a state to where a recorded penalty left it, in place. Counters start anew.

    Shadow penalties change nothing here: their ladders are told from their own rules only.
    """
    if penalty.shadow or penalty.action == "note":
        return
    track = state.real
    track.at = max(track.at, penalty.ts)
    hold = Hold(penalty.until, penalty.to, penalty.rule, penalty.id)
    if penalty.action == "lift":
        _adopt_lift(state, penalty)
    elif penalty.rule == SHARED_IP:
        track.deny, track.challenge = None, later(track.challenge, hold)
    elif penalty.action == "challenge" and _asks_challenge(policy, penalty.rule):
        track.challenge = later(track.challenge, hold)
    else:
        if penalty.action == "deny":
            track.deny = later(track.deny, hold)
        elif penalty.action == "challenge":
            track.challenge = later(track.challenge, hold)
        track.rung, track.rung_ms, track.end = _rung(penalty.to), penalty.to_ms, penalty.until
    track.counters, track.sets = {}, {}
    state.settle()


def state_after(subject: str, penalties: Iterable[Penalty], policy: Policy) -> SubjectState:
    """The state that earlier penalties (in order) left: ladder, holds, grace; without counters and scores."""
    state = SubjectState.fresh(subject)
    for penalty in penalties:
        adopt(state, penalty, policy)
    return state


def _adopt_lift(state: SubjectState, penalty: Penalty) -> None:
    track = state.real
    track.challenge = None
    if penalty.rule == PASSED:
        state.pass_until = max(state.pass_until, penalty.ts)
        return
    track.deny = None
    track.rung, track.rung_ms, track.end = _rung(penalty.to), penalty.to_ms, penalty.ts
    grace_ms = _grace_ms(penalty)
    if grace_ms:
        state.grace_until = max(state.grace_until, penalty.ts + grace_ms)


def _asks_challenge(policy: Policy, name: str) -> bool:
    asked = {rule.name for rule in policy.rules if rule.then.challenge_ms}
    asked |= {f"score:{one.at}" for one in policy.score.thresholds if one.then.challenge_ms}
    return name in asked


def _rung(name: str) -> str:
    return "" if name == "none" else name


def _grace_ms(penalty: Penalty) -> int:
    grace = penalty.evidence.get("grace")
    return parse_duration(grace) if isinstance(grace, str) else 0


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
