"""What recorded penalties say of the state that they left: a state to take over."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penaltybox.contracts.events import Hold, Penalty
from penaltybox.processors.ladder import later
from penaltybox.processors.remedies import grace_of
from penaltybox.processors.state import SubjectState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.events import Decision, Outcome
    from penaltybox.contracts.policy import Policy

SHARED_IP = "shared_ip"
PASSED = "challenge_passed"


class Recorded(NamedTuple):
    """An event as its topic has it: the broker's timestamp, and its place in the order of the broker."""

    record: Decision | Outcome
    broker_ms: int
    partition: int = 0
    offset: int = 0


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
    grace_ms = grace_of(penalty)
    if grace_ms:
        state.grace_until = max(state.grace_until, penalty.ts + grace_ms)


def _asks_challenge(policy: Policy, name: str) -> bool:
    asked = {rule.name for rule in policy.rules if rule.then.challenge_ms}
    asked |= {f"score:{one.at}" for one in policy.score.thresholds if one.then.challenge_ms}
    return name in asked


def _rung(name: str) -> str:
    return "" if name == "none" else name
