"""Which subjects a replay may forget: nothing of them can matter any more. So a long record fits in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.state import SubjectState, Track

SLACK_MS: Final = 86_400_000
"""An event may be so late and still meet what it would have met."""
_FOREVER: Final = 1 << 62


class Horizons(NamedTuple):
    """How long, in ms, the policies look back: in windows of rules, scores, trust, shared addresses."""

    window: int
    score: int
    trust: int
    shared: int

    @classmethod
    def of(cls, policies: Iterable[Policy]) -> Horizons:
        """The longest of each."""
        known = list(policies)
        windows = [rule.window_ms for policy in known for rule in policy.rules]
        shared = [policy.shared_ip.window_ms for policy in known if policy.shared_ip is not None]
        return cls(
            window=max(windows, default=0) * 2,  # sightings are kept to a granule
            score=max(policy.score.window_ms for policy in known),
            trust=max(policy.trust.ttl_ms for policy in known),
            shared=max(shared, default=0) * 2,
        )


def matters_until(state: SubjectState, horizons: Horizons) -> int:
    """Until when (ms) anything of a subject can matter to an event; far in the future once it climbed a ladder."""
    until = max(state.grace_until, state.pass_until)
    if state.trust:
        until = max(until, max(t for t, _, _ in state.trust) + horizons.trust)
    if state.shared:
        until = max(until, max(state.shared.values()) + horizons.shared)
    return max(until, *(_track(track, horizons) for track in (state.real, *state.shadows.values())))


def _track(track: Track, horizons: Horizons) -> int:
    if track.rung:
        return _FOREVER  # the next penalty says how many rungs were forgiven, however long ago they were climbed
    until = track.at
    if any(hold is not None and hold.until is None for hold in (track.deny, track.challenge)):
        return _FOREVER
    for hold in (track.deny, track.challenge):
        if hold is not None and hold.until is not None:
            until = max(until, hold.until)
    for values in track.sets.values():
        until = max(until, max(values.values(), default=0) + horizons.window)
    for counter in track.counters.values():
        until = max(until, max(counter.times, default=0) + horizons.window)
    return max([until, *(t + horizons.score for t, _, _ in track.scores)])
