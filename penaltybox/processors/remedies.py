"""What is not a rule: outcomes that earn trust or lift a challenge, and steps by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from penaltybox.contracts.durations import format_duration, parse_duration
from penaltybox.contracts.events import Command, Hold, Penalty, Verb
from penaltybox.contracts.ids import penalty_id
from penaltybox.contracts.subjects import TRUSTED, value_hash
from penaltybox.processors.ladder import NONE, active, prior_rung
from penaltybox.sinks.subject_store import Mark

if TYPE_CHECKING:
    from penaltybox.contracts.events import Outcome
    from penaltybox.contracts.policy import Policy, Rung
    from penaltybox.processors.state import SubjectState

COMMANDED: Final = "hand"
"""The rule named in holds and penalties that a person imposed."""
MAX_TRUST: Final = 32
_PASSES: Final = ("user", "device")


def outcome(policy: Policy, state: SubjectState, record: Outcome, t: int) -> tuple[bool, bool]:
    """Applies an outcome in place.

    Returns:
        Whether a penalty record (a lift) was written, and whether anything changed.
    """
    dimension = state.dimension
    changed = dimension in TRUSTED and _earn(policy, state, record, t)
    if record.label != "challenge_passed" or dimension not in _PASSES:
        return False, changed
    until = t + policy.pass_ms
    if until > state.pass_until:
        state.pass_until = until
        changed = True
    hold = state.real.challenge
    if hold is None or t <= state.real.at or not active(hold, t):
        return False, changed
    rung = _rung(policy, state, t)
    _lift(policy, state, t, record.id, "challenge_passed", rung, rung, {"lifts": hold.penalty})
    state.real.challenge = None
    state.real.outlasted = ()
    state.real.at = max(state.real.at, t)  # what the challenge held back must not count when it is redelivered
    state.settle()
    return True, True


def _earn(policy: Policy, state: SubjectState, record: Outcome, t: int) -> bool:
    points = policy.trust.points.get(record.label, 0)
    event = value_hash(record.id)
    if not points or any(known == event for _, known, _ in state.trust):
        return False
    horizon = max([t, *(at for at, _, _ in state.trust)]) - policy.trust.ttl_ms
    kept = tuple(sorted(entry for entry in [*state.trust, (t, event, points)] if entry[0] > horizon)[-MAX_TRUST:])
    if kept == state.trust:
        return False
    state.trust = kept
    return True


def trust_of(policy: Policy, state: SubjectState) -> tuple[int, bool] | None:
    """(quota multiplier in percent, established) that the outcomes earned; None when they change nothing.

    The multiplier is that of the threshold furthest from zero that the points have reached, upward or downward.
    """
    points = sum(points for _, _, points in state.trust)
    percent = 100
    for threshold, multiplier in sorted(policy.trust.multipliers, key=lambda pair: abs(pair[0])):
        if (0 <= threshold <= points) or (points <= threshold < 0):
            percent = multiplier
    established = points >= policy.trust.established_at
    return (percent, established) if established or percent != 100 else None  # noqa: PLR2004 - percent


def command(policy: Policy, state: SubjectState, record: Command, t: int) -> bool:
    """Applies a step by hand in place; False when its record is in the outbox already."""
    if record.verb == "grant":
        return _grant(policy, state, record, t)
    track = state.real
    rung = _rung(policy, state, t)
    evidence: dict[str, str | int | list[str]] = {"verb": record.verb}
    lifts = [hold.penalty for hold in (track.deny, track.challenge) if hold is not None and active(hold, t)]
    if lifts and record.verb != "ban":
        evidence["lifts"] = lifts
    if any(penalty.trigger_id == record.id for penalty in state.outbox):
        return False
    if record.verb == "ban":
        _ban(policy, state, record, t, rung, evidence)
    elif record.verb == "pardon":
        lower = _index(policy, rung) - 1
        target = policy.ladder.rungs[lower] if lower >= 0 else None
        _set_rung(state, target, t)
        _lift(policy, state, t, record.id, COMMANDED, rung, target, evidence, record)
    else:
        target = rung if record.keep_level else None
        _set_rung(state, target, t)
        state.grace_until = max(state.grace_until, t + record.grace_ms) if record.grace_ms else state.grace_until
        if record.grace_ms:
            evidence["grace"] = format_duration(record.grace_ms)
        _lift(policy, state, t, record.id, COMMANDED, rung, target, evidence, record)
    track.at = max(track.at, t)
    track.counters, track.sets = {}, {}
    return True


def command_of(penalty: Penalty) -> Command | None:
    """The command that a penalty by hand is the record of: given again it writes the same penalty.

    None if a rule made it, or its record is of a kind that no verb of today leads to.
    """
    verb: Any = penalty.evidence.get("verb")
    if penalty.origin != COMMANDED or verb not in get_args(Verb):
        return None
    points = penalty.evidence.get("points")
    banned = verb == "ban" and penalty.action == "deny"
    return Command(
        id=penalty.trigger_id,
        ts=penalty.ts,
        verb=verb,
        subject=penalty.subject,
        actor=penalty.actor or "unknown",
        reason=penalty.note or "unknown",
        level=penalty.to if verb == "ban" else "",
        for_ms=penalty.until - penalty.ts if banned and penalty.until is not None else None,
        keep_level=verb == "unban" and penalty.to != "none",
        grace_ms=grace_of(penalty),
        points=points if isinstance(points, int) else 0,
    )


def grace_of(penalty: Penalty) -> int:
    """The grace that a lift by hand gave, in ms."""
    grace = penalty.evidence.get("grace")
    return parse_duration(grace) if isinstance(grace, str) else 0


def _set_rung(state: SubjectState, target: Rung | None, t: int) -> None:
    """Lifts the holds and leaves the rung as a prior (or none)."""
    track = state.real
    track.deny = track.challenge = None
    track.outlasted = ()
    track.rung, track.rung_ms = (target.name, target.duration_ms) if target else ("", 0)
    track.end = t
    track.scores = ()


def _ban(
    policy: Policy,
    state: SubjectState,
    record: Command,
    t: int,
    prior: Rung | None,
    evidence: dict[str, str | int | list[str]],
) -> None:
    rungs = policy.ladder.rungs
    named = [rung for rung in rungs if rung.name == record.level]
    denying = [rung for rung in rungs[_index(policy, prior) + 1 :] if rung.action == "deny"] or [rungs[-1]]
    target = named[0] if named else denying[0]
    duration = record.for_ms if record.for_ms is not None else target.duration_ms
    until = None if duration is None else t + duration
    identity = penalty_id(state.subject, COMMANDED, record.id, target.name)
    action = target.action if record.for_ms is None else "deny"
    _append(policy, state, t, identity, record.id, COMMANDED, prior, target, action, until, evidence, record)
    track = state.real
    if action == "deny":
        track.deny = Hold(until, target.name, COMMANDED, identity)
    track.rung, track.rung_ms, track.end = target.name, target.duration_ms, until


def _grant(policy: Policy, state: SubjectState, record: Command, t: int) -> bool:
    event = value_hash(record.id)
    if any(known == event for _, known, _ in state.trust):
        return False
    state.trust = tuple(sorted([*state.trust, (t, event, record.points)])[-MAX_TRUST:])
    rung = _rung(policy, state, t)
    identity = penalty_id(state.subject, COMMANDED, record.id, rung.name if rung else "none")
    _append(policy, state, t, identity, record.id, COMMANDED, rung, rung, "note", None,
            {"verb": "grant", "points": record.points}, record)  # fmt: skip
    return True


def _rung(policy: Policy, state: SubjectState, t: int) -> Rung | None:
    index, _ = prior_rung(policy.ladder, state.real, t)
    return None if index == NONE else policy.ladder.rungs[index]


def _index(policy: Policy, rung: Rung | None) -> int:
    return NONE if rung is None else policy.ladder.rungs.index(rung)


def _lift(
    policy: Policy, state: SubjectState, t: int, trigger_id: str, rule: str, prior: Rung | None, target: Rung | None,
    evidence: dict[str, str | int | list[str]], record: Command | None = None,
) -> None:  # fmt: skip
    identity = penalty_id(state.subject, rule, trigger_id, target.name if target else "none")
    _append(policy, state, t, identity, trigger_id, rule, prior, target, "lift", t, evidence, record)


def _append(
    policy: Policy, state: SubjectState, t: int, identity: str, trigger_id: str, rule: str,
    prior: Rung | None, target: Rung | None, action: str, until: int | None,
    evidence: dict[str, str | int | list[str]], record: Command | None,
) -> None:  # fmt: skip
    kind: dict[str, Any] = {"action": action}
    state.outbox.append(
        Penalty(
            id=identity,
            ts=t,
            subject=state.subject,
            from_=prior.name if prior else "none",
            to=target.name if target else "none",
            from_ms=prior.duration_ms if prior else 0,
            to_ms=target.duration_ms if target else 0,
            **kind,
            until=until,
            rule=rule,
            policy_version=policy.version,
            evidence=evidence,
            trigger_id=trigger_id,
            origin="hand" if record else "rule",
            actor=record.actor if record else "",
            note=record.reason if record else "",
        )
    )


def marks_of(policy: Policy, state: SubjectState, now_ms: int, *, listed: bool = False) -> tuple[Mark, ...]:
    """All keys beside a state at wall time `now_ms`: a pure function of the state.

    Args:
        policy: the policy in force.
        state: the subject.
        now_ms: wall clock; what ended before it is not written.
        listed: on the allowlist: block and challenge are hidden.
    """
    trust = trust_of(policy, state)
    earned = msgspec.json.encode({"multiplier": trust[0] / 100, "established": trust[1]}) if trust else None
    passed = msgspec.json.encode({"until": state.pass_until}) if state.pass_until > now_ms else None
    return (
        _hold_mark("block", None if listed else state.real.deny, now_ms),
        _hold_mark("challenge", None if listed else state.real.challenge, now_ms),
        Mark("trust", earned, now_ms + policy.trust.ttl_ms if earned else None),
        Mark("pass", passed, state.pass_until if passed else None),
    )


def _hold_mark(name: str, hold: Hold | None, now_ms: int) -> Mark:
    if hold is None or not active(hold, now_ms):
        return Mark(name, None, None)
    value = {"until": hold.until, "rung": hold.rung, "rule": hold.rule, "penalty": hold.penalty}
    return Mark(name, msgspec.json.encode(value), hold.until)
