"""What became of one decision on one subject, and why: the words for what the engine did, read off before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from penaltybox.contracts.subjects import leading_part, most_specific, value_hash
from penaltybox.processors.detections import score_at, values_within
from penaltybox.processors.engine import CHANGED, HELD
from penaltybox.processors.ladder import active

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Decision, Hold, Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Name
    from penaltybox.processors.state import SubjectState, Track
    from penaltybox.processors.visibility import Plan, Sight

Verdict: TypeAlias = Literal[
    "trigger",
    "counted",
    "known",
    "too_late",
    "suppressed",
    "history",
    "grace",
    "challenged",
    "listed",
    "evidence",
    "unseen",
    "trust",
    "lift",
    "hand",
    "recorded",
    "nothing",
]
WORDS: dict[Verdict, str] = {
    "trigger": "it made a rule fire",
    "counted": "a rule counted it",
    "known": "the rules had it already: the same event, or a value seen lately",
    "too_late": "it came so late that the window had moved on",
    "suppressed": "a block was in force: nothing is raised and nothing extended",
    "history": "not later than the last step: it counts no more",
    "grace": "under grace nothing counts",
    "challenged": "the challenge that its rule asks for was in force",
    "listed": "the allowlist has it: nothing counts",
    "evidence": "it is evidence that established users share this address",
    "unseen": "no rule on this subject sees it",
    "trust": "an outcome that counts for trust",
    "lift": "an outcome that lifted a challenge",
    "hand": "a step by hand",
    "recorded": "a recorded penalty whose decision is not in this range",
    "nothing": "it changes nothing here",
}
_OUTAGES = ("fail_open", "fail_closed", "local_fallback", "unknown")


class Progress(msgspec.Struct, kw_only=True):
    """How far one rule had come after a decision."""

    rule: str
    seen: int
    threshold: int
    shadow: bool = False


class Before(NamedTuple):
    """What a verdict needs to know of a state before a decision."""

    at: int
    deny: Hold | None
    grace_until: int
    marks: tuple[int | None, ...]
    """Per sight: what the rule held of this very decision; None is nothing."""
    points: tuple[tuple[int, int, int], ...]


def before(state: SubjectState, plan: Plan, decision: Decision, names: Sequence[Name]) -> Before:
    """Taken before the engine works on the state in place."""
    marks = marks_on(state, plan, decision, names)
    return Before(state.real.at, state.real.deny, state.grace_until, marks, state.real.scores)


def verdict_of(
    state: SubjectState, plan: Plan, was: Before, marks: tuple[int | None, ...], effect: int, t: int
) -> tuple[Verdict, Hold | None]:
    """The verdict on a decision that wrote no penalty, and the block that suppressed it. `marks`: afterwards."""
    if plan.rules and (quiet := _quiet(was, t)):
        return quiet, was.deny if quiet == "suppressed" else None
    if marks != was.marks:
        return "counted", None
    if not marks:
        return ("evidence" if effect & CHANGED else "known"), None
    if effect & HELD:
        return _held(state, plan, t)
    return ("known" if any(one is not None for one in marks) else "too_late"), None


def _quiet(was: Before, t: int) -> Verdict | None:
    if t < was.grace_until:
        return "grace"
    if t <= was.at:
        return "history"
    return "suppressed" if was.deny is not None and active(was.deny, t) else None


def _held(state: SubjectState, plan: Plan, t: int) -> tuple[Verdict, Hold | None]:
    """Held without a reason on the real ladder: a rule's own challenge, or the ladder of a shadow rule."""
    if plan.rules:
        return "challenged", state.real.challenge
    if t < state.grace_until:
        return "grace", None
    track = track_of(state, plan.shadows[0])
    if track is not None and track.deny is not None and active(track.deny, t):
        return "suppressed", track.deny
    return "history", None


def progress_of(state: SubjectState, plan: Plan, t: int) -> list[Progress]:
    """How far every rule that saw the decision has come."""
    found = []
    for sight in (*plan.rules, *plan.shadows):
        one, track = sight.detection, track_of(state, sight)
        seen = 0
        if track is not None and one.key in track.counters:
            seen = sum(track.counters[one.key].weights)
        elif track is not None and one.key in track.sets:
            seen = values_within(track.sets[one.key], t, one.window_ms)
        found.append(Progress(rule=one.name, seen=min(seen, one.n), threshold=one.n, shadow=one.rule.shadow))
    return found


def risk_of(policy: Policy, state: SubjectState, was: Before, t: int) -> int:
    """The risk score after a decision that added to it; 0 if it added nothing."""
    scores = state.real.scores
    return score_at(scores, t, policy.score.window_ms) if scores != was.points else 0


def track_of(state: SubjectState, sight: Sight) -> Track | None:
    """The ladder that a rule works on."""
    return state.shadows.get(sight.detection.key) if sight.detection.rule.shadow else state.real


def marks_on(state: SubjectState, plan: Plan, decision: Decision, names: Sequence[Name]) -> tuple[int | None, ...]:
    """What each rule holds of this very decision: when its value was last seen, or 1 for its id; None is nothing."""
    return tuple(_mark(track_of(state, sight), sight, decision, names) for sight in (*plan.rules, *plan.shadows))


def _mark(track: Track | None, sight: Sight, decision: Decision, names: Sequence[Name]) -> int | None:
    if track is None:
        return None
    one = sight.detection
    if one.counts:
        counter = track.counters.get(one.key)
        return 1 if counter is not None and value_hash(decision.id) in counter.ids else None
    value = names[sight.place].hash if sight.place >= 0 else value_hash(decision.attrs[one.attr])
    return track.sets.get(one.key, {}).get(value, track.used.get(one.key, {}).get(value))


def why_unseen(policy: Policy, decision: Decision, dimension: str) -> str:
    """Why no rule on a dimension sees a decision: the first reason that a person would give."""
    charged = most_specific(limit.split(":", 1)[0] for limit in decision.violated) if decision.violated else ""
    reasons = {
        f"no rule is on {dimension}": not any(rule.on == dimension for rule in policy.rules),
        "a dry run: only shadow rules see it": not decision.enforced,
        "refused because of a block that was in force: nobody's offence": decision.reason == "blocklist",
        f"reason {decision.reason}: an outage of the limiter is nobody's offence": decision.reason in _OUTAGES,
        f"charged to {charged}, the most specific of the limits that it was over": charged
        and dimension not in (charged, leading_part(charged)),
        f"action {decision.action}: the rules on {dimension} count refusals": decision.reason is None
        and all(rule.kind == "count" for rule in policy.rules if rule.on == dimension),
    }
    otherwise = f"the filters of the rules on {dimension} leave it out"
    return next((reason for reason, holds in reasons.items() if holds), otherwise)


def why_stepped(penalties: Sequence[Penalty]) -> str:
    """What made a rule fire, as the engine wrote it down."""
    said = []
    for penalty in penalties:
        rules = penalty.evidence.get("rules", [])
        said += (
            [f"{name}: {penalty.evidence[name]}" for name in rules if name in penalty.evidence]
            if isinstance(rules, list)
            else []
        )
    return "; ".join(dict.fromkeys(said))
