"""A rule has fired: what is written down, and what changes on the subject's ladder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.contracts.durations import format_duration
from penaltybox.contracts.events import Hold, Penalty
from penaltybox.contracts.ids import penalty_id
from penaltybox.processors.detections import add_score, fence, latest_count, use_up, values_within
from penaltybox.processors.ladder import CHALLENGE, NONE, Ask, Landing, end_of, impose, land, later, prior_rung

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy, Rung
    from penaltybox.processors.state import SubjectState, Track
    from penaltybox.processors.visibility import Detection

Evidence = dict[str, str | int | list[str]]


class Trigger(NamedTuple):
    """What made rules fire: the event, its effective time, how it was handled, and what a person wants to see first."""

    event_id: str
    event_hash: int
    t: int
    broker_ms: int
    late: bool
    about: Evidence


class Case(NamedTuple):
    """Whose ladder it is, under which policy."""

    policy: Policy
    version: str
    windows: dict[int, int]
    """Rule key -> window in ms."""
    state: SubjectState
    track: Track
    shadow: bool


class Occasion(NamedTuple):
    """Everything that stays the same while one decision's consequences are written down."""

    case: Case
    trigger: Trigger
    at: int
    evidence: Evidence


def react(case: Case, fired: list[Detection], trigger: Trigger) -> bool:
    """Turns the rules that fired on one decision into at most one step, and says whether penalties were written.

    Args:
        case: the subject's ladder; it steps in place, penalties are appended to the subject's outbox.
        fired: the rules, in the policy's order.
        trigger: the decision.
    """
    policy, track = case.policy, case.track
    asks = [Ask(one.name, one.then) for one in fired if one.then.score is None]
    scoring = [one for one in fired if one.then.score is not None]
    if scoring:
        asks += _risk(policy, track, scoring, trigger)
    if not asks:
        return False
    steps = [ask for ask in asks if ask.then.step or ask.then.level]
    challenges = [ask for ask in asks if ask.then.challenge_ms]
    at = max(trigger.t, latest_count(track))
    occasion = Occasion(case, trigger, at, _evidence(case, fired, trigger, at))
    landing = _step(occasion, steps, challenges) if steps else None
    if challenges and (landing is None or landing.action == "warn"):
        _challenge(occasion, challenges)
    track.at = fence(track, case.windows, at, trigger.broker_ms)
    if landing is not None:
        track.counters = {}
        use_up(track, case.windows, trigger.broker_ms + policy.lateness_ms)
    else:
        # A challenge is no step: it restarts the rules that asked for it and shields nobody from the others.
        for one in fired:
            if one.then.challenge_ms:
                track.counters.pop(one.key, None)
                track.sets.pop(one.key, None)
    return True


def _risk(policy: Policy, track: Track, scoring: list[Detection], trigger: Trigger) -> list[Ask]:
    contributions = [(one.key ^ trigger.event_hash, one.then.score or 0) for one in scoring]
    before, after = add_score(track, trigger.t, contributions, policy.score.window_ms)
    return [Ask(f"score:{one.at}", one.then) for one in policy.score.thresholds if before < one.at <= after]


def _step(occasion: Occasion, steps: list[Ask], challenges: list[Ask]) -> Landing:
    policy, _, _, state, track, _ = occasion.case
    at = occasion.at
    dimension = state.dimension
    shared = is_shared(policy, state, at)
    landing = land(policy, track, dimension, steps, at, late=occasion.trigger.late, shared=shared)
    prior, target = _rung(policy, landing.prior), policy.ladder.rungs[landing.target]
    identity = _identity(occasion, landing.rule, target.name)
    until = end_of(policy, landing, dimension, at, identity)
    if landing.action == CHALLENGE and until is not None:
        until = max([until, *(at + (ask.then.challenge_ms or 0) for ask in challenges)])
    why: Evidence = {"forgiven": landing.forgiven, "cap": landing.capped, "softened": landing.softened}
    hold = Hold(until, target.name, landing.rule, identity)
    _write(occasion, hold, landing.action, prior, target, {key: value for key, value in why.items() if value})
    if landing.action == "deny":
        track.deny = later(track.deny, hold)
    elif landing.action == CHALLENGE:
        impose(track, hold)
    track.rung, track.rung_ms, track.end = target.name, target.duration_ms, until
    return landing


def _challenge(occasion: Occasion, challenges: list[Ask]) -> None:
    """A challenge of its own: no rung is climbed."""
    policy, track, at = occasion.case.policy, occasion.case.track, occasion.at
    longest = max(challenges, key=lambda ask: ask.then.challenge_ms or 0)
    rung = _rung(policy, prior_rung(policy.ladder, track, at)[0])
    name = rung.name if rung else "none"
    until = at + (longest.then.challenge_ms or 0)
    hold = Hold(until, name, longest.rule, _identity(occasion, longest.rule, name))
    _write(occasion, hold, CHALLENGE, rung, rung, {})
    impose(track, hold)


def soften_block(case: Case, trigger: Trigger) -> None:
    """An address turned out to be shared while it was denied: its block becomes a challenge of the same end."""
    policy, track = case.policy, case.track
    hold = track.deny
    if hold is None:
        return
    occasion = Occasion(case, trigger, trigger.t, trigger.about)
    rung = _rung(policy, prior_rung(policy.ladder, track, trigger.t)[0])
    until = hold.until if hold.until is not None else trigger.t + policy.challenge_ms
    identity = _identity(occasion, "shared_ip", rung.name if rung else "none")
    record = Hold(until, hold.rung, "shared_ip", identity)
    _write(occasion, record, CHALLENGE, rung, rung, {"softens": hold.penalty})
    track.deny = None
    impose(track, Hold(until, hold.rung, hold.rule, hold.penalty))
    # What was suppressed must not count when it is redelivered. Nobody noted it, and some of it may be later than what
    # softens the block now; but all of it lies before the block's end, and the broker had it before this record.
    suppressed = trigger.broker_ms if hold.until is None else min(hold.until - 1, trigger.broker_ms)
    track.at = max(track.at, trigger.t, suppressed)


def is_shared(policy: Policy, state: SubjectState, at: int) -> bool:
    """Whether so many established users were seen on this address lately that it must not be denied."""
    shared_ip = policy.shared_ip
    if shared_ip is None or not state.shared:
        return False
    return values_within(state.shared, at, shared_ip.window_ms) >= shared_ip.established


def _identity(occasion: Occasion, rule: str, to: str) -> str:
    subject = occasion.case.state.subject
    return penalty_id(f"shadow:{subject}" if occasion.case.shadow else subject, rule, occasion.trigger.event_id, to)


def _write(occasion: Occasion, hold: Hold, action: str, prior: Rung | None, target: Rung | None, why: Evidence) -> None:
    record: dict[str, Any] = {"action": action}
    occasion.case.state.outbox.append(
        Penalty(
            id=hold.penalty,
            ts=occasion.at,
            subject=occasion.case.state.subject,
            from_=prior.name if prior else "none",
            to=target.name if target else "none",
            from_ms=prior.duration_ms if prior else 0,
            to_ms=target.duration_ms if target else 0,
            until=hold.until,
            rule=hold.rule,
            policy_version=occasion.case.version,
            evidence=occasion.evidence | why,
            trigger_id=occasion.trigger.event_id,
            shadow=occasion.case.shadow,
            late=occasion.trigger.late,
            **record,
        )
    )


def _rung(policy: Policy, index: int) -> Rung | None:
    return None if index == NONE else policy.ladder.rungs[index]


def _evidence(case: Case, fired: list[Detection], trigger: Trigger, at: int) -> Evidence:
    """What a person needs to understand the step without the decisions at hand."""
    policy, _, _, state, track, _ = case
    evidence: Evidence = dict(trigger.about)
    evidence["rules"] = [one.name for one in fired]
    for one in fired:
        window = format_duration(one.window_ms)
        if one.counts:
            counted = sum(track.counters[one.key].weights)
            evidence[one.name] = f"{counted} decisions within {window} (threshold {one.n})"
        else:
            values = len(track.sets[one.key])
            evidence[one.name] = f"{values} values of {one.rule.distinct} within {window} (threshold {one.n})"
    if state.shared and policy.shared_ip is not None:
        evidence["established_users"] = values_within(state.shared, at, policy.shared_ip.window_ms)
    return evidence
