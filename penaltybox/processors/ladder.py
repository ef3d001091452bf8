"""The ladder: how far a penalty goes, how it is forgiven, what caps and softens it. Read this to know the product.

Rungs are `warn -> 5m -> 1h -> permanent` by default. All of this is pure, in integers, by the event's own time.
docs/ladder.md draws each definition as a timeline.

1. While a deny block is active, decisions are suppressed: nothing is raised, nothing extended (a mistaken block heals).
2. A decision not later than the last step is history. So redelivery and duplicates change nothing.
3. The prior of a new step is the rung of the last one, less one rung for every `forgive` since that penalty's end, and
   none after `memory`.
4. Every dimension has a cap. A step that was handled late is never permanent.
5. An address that many established users share is challenged, never denied.
6. A deny outranks a challenge; within one severity the later end counts.
7. Jitter comes from the penalty's id, before the cap.
8. By hand everything can be undone; the allowlist wins over all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.subjects import leading_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Hold
    from penaltybox.contracts.policy import LadderPolicy, Policy, Rung, Then
    from penaltybox.processors.state import Track

NONE: Final = -1
"""Index of 'no rung'."""
CHALLENGE: Final = "challenge"


class Ask(NamedTuple):
    """What a rule that fired asks for."""

    rule: str
    then: Then


class Landing(NamedTuple):
    """Where a step ends: which rung, as what, and why it is not higher or harder."""

    prior: int
    forgiven: int
    target: int
    rule: str
    action: str
    capped: str
    softened: str


def prior_rung(ladder: LadderPolicy, track: Track, at: int) -> tuple[int, int]:
    """Index of the rung that a step at time `at` starts from, and how many rungs were forgiven."""
    index = rung_index(ladder, track)
    if index == NONE or track.end is None or at <= track.end:
        return index, 0
    if at >= track.end + ladder.memory_ms:
        return NONE, index + 1
    kept = max(NONE, index - (at - track.end) // ladder.forgive_ms)
    return kept, index - kept


def rung_index(ladder: LadderPolicy, track: Track) -> int:
    """Index of the track's rung in today's ladder: by name, else the highest rung that is not longer.

    So a policy with one more rung moves nobody.
    """
    if not track.rung:
        return NONE
    found = NONE
    for index, rung in enumerate(ladder.rungs):
        if rung.name == track.rung:
            return index
        if _length(rung) <= (float("inf") if track.rung_ms is None else track.rung_ms):
            found = index
    return found


def _length(rung: Rung) -> float:
    if rung.duration_ms is None:
        return float("inf")
    return 0 if rung.action == "warn" else rung.duration_ms


def land(
    policy: Policy, track: Track, dimension: str, asks: Sequence[Ask], at: int, *, late: bool, shared: bool
) -> Landing:
    """Where a step at time `at` ends, given what the rules that fired ask for.

    Args:
        policy: the policy in force.
        track: the ladder that steps.
        dimension: the subject's dimension or combination.
        asks: at least one ask of a step or a level.
        at: time of the step.
        late: handled so late that nobody could have stopped meanwhile.
        shared: the subject is an address that many established users share.
    """
    ladder = policy.ladder
    names = [rung.name for rung in ladder.rungs]
    prior, forgiven = prior_rung(ladder, track, at)
    wanted = [prior + 1 if ask.then.step else names.index(ask.then.level or "") for ask in asks]
    highest = max(wanted)
    leaders = [ask for ask, index in zip(asks, wanted, strict=True) if index == highest]
    target = max(prior, min(highest, len(ladder.rungs) - 1))
    target, capped = _cap(ladder, dimension, target, late=late)
    softened = _soften(policy, dimension, ladder.rungs[target], leaders, late=late, shared=shared)
    action = CHALLENGE if softened else ladder.rungs[target].action
    return Landing(prior, forgiven, target, leaders[0].rule, action, capped, softened)


def cap_of(ladder: LadderPolicy, dimension: str) -> str | None:
    """The cap of a dimension; a combination without one has that of its most specific part."""
    return ladder.caps.get(dimension) or ladder.caps.get(leading_part(dimension))


def _cap(ladder: LadderPolicy, dimension: str, target: int, *, late: bool) -> tuple[int, str]:
    """The rung after the dimension's cap and the lateness cap, and which of them held it down."""
    capped = ""
    cap = cap_of(ladder, dimension)
    if cap is not None and cap != CHALLENGE:
        highest = next(index for index, rung in enumerate(ladder.rungs) if rung.name == cap)
        if target > highest:
            target, capped = highest, f"{dimension} is capped at {cap}"
    if late and ladder.rungs[target].duration_ms is None:
        bounded = [index for index, rung in enumerate(ladder.rungs[:target]) if rung.duration_ms is not None]
        if bounded:
            target, capped = bounded[-1], "handled late: never permanent"
    return target, capped


def _soften(policy: Policy, dimension: str, rung: Rung, leaders: Sequence[Ask], *, late: bool, shared: bool) -> str:
    """Why a deny becomes a challenge here; empty when it does not."""
    if rung.action != "deny":
        return ""
    on_ip = leading_part(dimension) == "ip"
    deny_rungs = {one.name for one in policy.ladder.rungs if one.action == "deny"}
    reasons = {
        f"{leading_part(dimension)} is capped at challenge": cap_of(policy.ladder, dimension) == CHALLENGE,
        "handled late: never permanent": late and rung.duration_ms is None,
        "shared by established users": on_ip and shared,
        "a rule on ip ends at challenge unless it names a rung that denies": on_ip
        and not any(ask.then.level in deny_rungs for ask in leaders),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def end_of(policy: Policy, landing: Landing, dimension: str, at: int, penalty_id: str) -> int | None:
    """End of the penalty (absolute ms; None is permanent): duration, jitter from the penalty's id, then the cap."""
    ladder = policy.ladder
    duration = ladder.rungs[landing.target].duration_ms
    if duration is None:
        return None if landing.action == "deny" else at + policy.challenge_ms
    duration += duration * (int(penalty_id[:8], 16) % (ladder.jitter_percent + 1)) // 100
    cap = cap_of(ladder, dimension)
    for rung in ladder.rungs:
        if rung.name == cap and rung.duration_ms is not None:
            duration = min(duration, rung.duration_ms)
    return at + duration


def later(old: Hold | None, new: Hold) -> Hold:
    """Of two holds of one severity the one that ends later; the new one when they end together."""
    if old is None or new.until is None:
        return new
    if old.until is None or old.until > new.until:
        return old
    return new


def impose(track: Track, hold: Hold) -> None:
    """Challenge a track, unless a challenge that ends later runs; one that gives way is remembered as such.

    Its rule still has what it asked for, and sees nothing before that end. If it did, what it did not see so far would
    count when it is redelivered.
    """
    before = track.challenge
    track.challenge = later(before, hold)
    if before is None or before.until is None or track.challenge is before or before.rule == hold.rule:
        return
    kept = [(rule, until) for rule, until in track.outlasted if until > track.at and rule != before.rule]
    if before.until > track.at:
        kept.append((before.rule, before.until))
    track.outlasted = tuple(kept)


def has_challenge(track: Track, rule: str, t: int) -> bool:
    """Whether a challenge that this rule asked for runs at time `t`, or would if a longer one had not replaced it."""
    hold = track.challenge
    if hold is not None and hold.rule == rule and active(hold, t):
        return True
    return any(name == rule and t < until for name, until in track.outlasted)


def active(hold: Hold | None, t: int) -> bool:
    """Whether a hold is in force at time `t`."""
    return hold is not None and (hold.until is None or t < hold.until)
