"""The engine: one pure function of state, event and policy, and its in-place form for the hot path.

`step(state, event, policy) -> (state, penalties)` is what replay, explain and tests call. Live workers call
`Engine.touches` and `Engine.apply`, the same code working on a state that they own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.allowlist import Allowlist
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Command, Decision, Outcome
from penaltybox.contracts.recognition import Recogniser, Sighting
from penaltybox.contracts.subjects import MAX_CACHED, Canonicaliser, Name, value_hash
from penaltybox.processors.detections import FIRED, UNCHANGED, count_event, see_value
from penaltybox.processors.ladder import active, has_challenge
from penaltybox.processors.remedies import COMMANDED, command, marks_of, outcome
from penaltybox.processors.state import NOTHING as NOTHING_YET
from penaltybox.processors.state import Counter, SubjectState, Track, copy_state
from penaltybox.processors.steps import Case, Trigger, react, soften_block
from penaltybox.processors.visibility import Detection, Kind, Plan, Sight, Visibility, combination_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import AllowEntry, Policy
    from penaltybox.contracts.recognition import Recognised
    from penaltybox.sinks.subject_store import Mark

NOTHING: Final = 0
CHANGED: Final = 1
PENALTY: Final = 2
"""The outbox has a new penalty; the holds may have changed, so block and challenge must be written."""
HELD: Final = 4
"""Nothing changed because of a block, a fence or grace; it stands only if the state is current."""
MARKS: Final = 8
"""A key beside the state (block, challenge, trust, pass) changed."""


_NEVER: Final = -(1 << 62)


class Handling(NamedTuple):
    """How an event was handled: the broker's timestamp of its record, and whether the worker was late."""

    broker_ms: int
    late: bool = False


class Event(NamedTuple):
    """A record with its handling: all that a step may know beside state and policy."""

    record: Decision | Outcome | Command
    handling: Handling


class Engine:
    """A compiled policy.

    Args:
        policy: the policy in force.
        canonicaliser: how subjects are written; one per process.
    """

    def __init__(self, policy: Policy, canonicaliser: Canonicaliser | None = None) -> None:
        self.policy = policy
        self.version = policy.version
        self.canonicaliser = canonicaliser or Canonicaliser()
        self.allowlist = Allowlist(policy.allow)
        self.recogniser = Recogniser(self.canonicaliser)
        self.listed: tuple[AllowEntry, ...] = ()
        """Allowlist entries beside the policy's own: those in Redis, for live workers."""
        self._visibility = Visibility(policy)
        self._lists = bool(policy.allow)
        self._attrs: dict[str, int] = {}
        self._windows = {rule.key: rule.window_ms for rule in policy.rules}

    def list_also(self, entries: tuple[AllowEntry, ...]) -> None:
        """Allowlist these beside the policy's own, in place of those before. Between two steps only."""
        self.listed = entries
        self.allowlist = Allowlist((*self.policy.allow, *entries))
        self._lists = bool(self.allowlist.entries)

    def touches(self, decision: Decision, names: Sequence[Name] | None = None) -> list[tuple[str, Plan]]:
        """Every subject whose state the decision could change (canonical text), with what could change it.

        Args:
            decision: as decoded.
            names: of the decision's subjects in their order, for those who have them (`decode_decisions` gives them).

        Raises:
            BadEvent: a subject that is not allowed (a decoded decision has none).
        """
        if names is None:
            names = self.canonicaliser.names(decision.subjects)
        found = []
        for plan in self.kind(decision).plans:
            subject = names[plan.place].text if plan.place >= 0 else self.combination(plan, decision)
            if subject is not None:
                found.append((subject, plan))
        return found

    def kind(self, decision: Decision) -> Kind:
        """What could change on which subjects: `touches` for the hot loop, which looks the subjects up by itself."""
        return self._visibility.kind(decision)

    def kinds(self, decisions: Sequence[Decision]) -> list[Kind]:
        """`kind` of each: cheaper than one by one."""
        return self._visibility.kinds(decisions)

    def recognised_kinds(self, seen: Recognised) -> list[Kind | None]:
        """`kind` of decisions that are not even decoded; None for those that were not recognised, or never met."""
        return self._visibility.recognised_kinds(seen)

    def recognised_kind(self, seen: Recognised, at: int, raw: bytes) -> Kind:
        """`kind` of one of them; one is decoded for all that are alike."""
        return self._visibility.recognised_kind(seen, at, raw)

    def combination(self, plan: Plan, decision: Decision | Sighting) -> str | None:
        """The subject of a plan over a combination; None when it has none, because a route is too long for a key."""
        try:
            return self.canonicaliser.combination(plan.dimension, combination_values(plan, whole(decision)))
        except BadEvent:
            return None

    def apply(
        self,
        state: SubjectState,
        plan: Plan,
        decision: Decision | Sighting,
        handling: Handling,
        names: Sequence[Name] | None = None,
    ) -> int:
        """Applies a decision to one of its subjects in place; flags CHANGED, PENALTY, HELD, MARKS say what happened."""
        t = decision.ts
        if t > handling.broker_ms:  # noqa: PLR1730 - a call to min costs as much as all the rest of a quiet decision
            t = handling.broker_ms
        if self._lists and self.allowlist.covers(state.subject, t):
            return NOTHING
        if names is None:
            names = self.canonicaliser.names(whole(decision).subjects)
        if plan.plain and t < state.quiet_until:
            return HELD
        if plan.quick:  # says nothing new: what most decisions do
            values = state.real.sets.get(plan.key)
            if values is not None and values.get(names[plan.value].hash, _NEVER) + plan.granule_ms > t:
                return NOTHING
        return self._look(state, plan, decision, names, t, handling)

    def _look(
        self,
        state: SubjectState,
        plan: Plan,
        decision: Decision | Sighting,
        names: Sequence[Name],
        t: int,
        handling: Handling,
    ) -> int:
        """The whole look: shared-IP evidence, the real ladder, the shadow ladders."""
        effect = self._shared(state, names[plan.user].hash, decision, t, handling) if plan.user >= 0 else NOTHING
        if plan.rules:
            if t < state.quiet_until:
                effect |= HELD
            else:
                effect |= self._track(state, state.real, plan.rules, decision, names, t, handling, shadow=False)
        if plan.shadows and t >= state.grace_until:
            for one in plan.shadows:
                effect |= self._shadow(state, one, decision, names, t, handling)
        return effect

    def _track(
        self,
        state: SubjectState,
        track: Track,
        sights: Iterable[Sight],
        decision: Decision | Sighting,
        names: Sequence[Name],
        t: int,
        handling: Handling,
        *,
        shadow: bool,
    ) -> int:
        """Rules see a decision that is neither history nor suppressed."""
        fired: list[Detection] | None = None
        effect = NOTHING
        challenged = track.challenge is not None and active(track.challenge, t)
        for one, place in sights:
            # A rule that only asks for a challenge has nothing to ask while its challenge runs; others go on under it.
            if challenged and one.then.challenge_ms and has_challenge(track, one.name, t):
                effect |= HELD
                continue
            if one.counts:
                seen = _count(track, one, decision, t)
            else:
                value = names[place].hash if place >= 0 else self._attr(whole(decision).attrs[one.attr])
                seen = _see(track, one, value, t)
            if seen != UNCHANGED:
                effect |= CHANGED
                if seen == FIRED:
                    fired = [one] if fired is None else [*fired, one]
        if fired is not None:
            trigger = self._trigger(decision, t, handling)
            if react(self._case(state, track, shadow=shadow), fired, trigger):
                effect |= PENALTY if shadow else PENALTY | MARKS
                state.settle()
        return effect

    def _attr(self, value: str) -> int:
        """Hash of an attr's value, remembered and bounded."""
        known = self._attrs.get(value)
        if known is None:
            if len(self._attrs) >= MAX_CACHED:
                self._attrs.clear()
            known = self._attrs[value] = value_hash(value)
        return known

    def _shadow(
        self,
        state: SubjectState,
        sight: Sight,
        decision: Decision | Sighting,
        names: Sequence[Name],
        t: int,
        handling: Handling,
    ) -> int:
        key = sight.detection.key
        known = state.shadows.get(key)
        track = known if known is not None else Track()
        if t <= track.at or active(track.deny, t):
            return HELD
        effect = self._track(state, track, (sight,), decision, names, t, handling, shadow=True)
        if effect & CHANGED and known is None:
            state.shadows = {**state.shadows, key: track}
        return effect

    def _case(self, state: SubjectState, track: Track, *, shadow: bool) -> Case:
        return Case(self.policy, self.version, self._windows, state, track, shadow)

    def _shared(self, state: SubjectState, user: int, decision: Decision | Sighting, t: int, handling: Handling) -> int:
        shared_ip = self.policy.shared_ip
        if shared_ip is None:
            return NOTHING
        if state.shared is NOTHING_YET:
            state.shared = {}
        seen = see_value(state.shared, user, t, shared_ip.window_ms, shared_ip.established)
        if seen == UNCHANGED:
            return NOTHING
        deny = state.real.deny
        if seen == FIRED and deny is not None and active(deny, t) and deny.rule != COMMANDED:
            soften_block(self._case(state, state.real, shadow=False), self._trigger(decision, t, handling))
            state.settle()
            return CHANGED | PENALTY | MARKS
        return CHANGED

    def _trigger(self, seen: Decision | Sighting, t: int, handling: Handling) -> Trigger:
        decision = whole(seen)
        about: dict[str, str | int | list[str]] = {}
        if decision.scenario:
            about["scenario"] = decision.scenario
        if decision.route:
            about["route"] = decision.route
        if decision.violated:
            about["violated"] = list(decision.violated)
        return Trigger(decision.id, value_hash(decision.id), t, handling.broker_ms, handling.late, about)

    def marks(self, state: SubjectState, now_ms: int) -> tuple[Mark, ...]:
        """All keys beside a state at wall time `now_ms`; block and challenge are hidden while it is listed."""
        return marks_of(self.policy, state, now_ms, listed=self.allowlist.covers(state.subject, now_ms))

    def outcome_subjects(self, record: Outcome) -> list[str]:
        """Every subject whose state the outcome could change."""
        return [self.canonicaliser.subject(dimension, value) for dimension, value in record.subjects.items()]

    def apply_outcome(self, state: SubjectState, record: Outcome, handling: Handling) -> int:
        """Applies an outcome to one of its subjects in place."""
        t = min(record.ts, handling.broker_ms)
        if self.allowlist.entries and self.allowlist.covers(state.subject, t):
            return NOTHING
        wrote, changed = outcome(self.policy, state, record, t)
        if wrote:
            state.outbox[-1].late = handling.late
        return (PENALTY | MARKS | CHANGED) if wrote else (CHANGED | MARKS) if changed else NOTHING

    def apply_command(self, state: SubjectState, record: Command, handling: Handling) -> int:
        """Applies a command to its subject in place. Commands work on allowlisted subjects too."""
        changed = command(self.policy, state, record, min(record.ts, handling.broker_ms))
        state.settle()
        if changed:
            state.outbox[-1].late = handling.late
        return CHANGED | PENALTY | MARKS if changed else HELD


def whole(decision: Decision | Sighting) -> Decision:
    """All of a decision, which may not be decoded yet."""
    return decision.whole if isinstance(decision, Sighting) else decision


def _see(track: Track, one: Detection, value: int, t: int) -> int:
    values = track.sets.get(one.key)
    if values is not None and values.get(value, _NEVER) + one.granule_ms > t:
        return UNCHANGED  # seen in this granule already: by far the most common case
    if track.used and t < track.used.get(one.key, NOTHING_YET).get(value, _NEVER):
        return UNCHANGED  # a step used it
    if values is None:
        values = track.sets[one.key] = {}
    return see_value(values, value, t, one.window_ms, one.n)


def _count(track: Track, one: Detection, decision: Decision | Sighting, t: int) -> int:
    counter = track.counters.get(one.key)
    if counter is None:
        if track.counters is NOTHING_YET:
            track.counters = {}
        counter = track.counters[one.key] = Counter([], [], [])
    return count_event(counter, value_hash(decision.id), t, decision.count, one.window_ms, one.n)


def step(
    state: SubjectState, event: Event, policy: Policy, engine: Engine | None = None
) -> tuple[SubjectState, list[Penalty]]:
    """One event on one subject: the new state and the penalties that it wrote. Nothing else happens.

    Args:
        state: left as it is.
        event: a decision, outcome or command, with its handling. One that is not about the subject changes nothing.
        policy: the policy in force.
        engine: the policy compiled already, for those who step often.
    """
    engine = engine or Engine(policy)
    new = copy_state(state)
    record, handling = event
    if isinstance(record, Decision):
        for subject, plan in engine.touches(record):
            if subject == state.subject:
                engine.apply(new, plan, record, handling)
    elif isinstance(record, Outcome):
        if state.subject in engine.outcome_subjects(record):
            engine.apply_outcome(new, record, handling)
    elif record.subject == state.subject:
        engine.apply_command(new, record, handling)
    return new, new.outbox[len(state.outbox) :]
