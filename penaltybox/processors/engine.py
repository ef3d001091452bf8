"""The engine: one pure function of state, event and policy, and its in-place form for the hot path.

`step(state, event, policy) -> (state, penalties)` is what replay, explain and tests call. Live workers call
`Engine.touches` and `Engine.apply`, the same code working on a state that they own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Command, Decision, Outcome
from penaltybox.contracts.subjects import Canonicaliser, value_hash
from penaltybox.processors.allowlist import Allowlist
from penaltybox.processors.detections import FIRED, UNCHANGED, count_event, see_value
from penaltybox.processors.ladder import active
from penaltybox.processors.remedies import COMMANDED, command, marks_of, outcome
from penaltybox.processors.state import Counter, SubjectState, Track, copy_state
from penaltybox.processors.steps import Trigger, react, soften_block
from penaltybox.processors.visibility import Detection, Plan, ValueHashes, Visibility, combination_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.sinks.subject_store import Mark

NOTHING: Final = 0
CHANGED: Final = 1
PENALTY: Final = 2
"""The outbox has a new penalty; the holds may have changed, so block and challenge must be written."""
HELD: Final = 4
"""Nothing changed because of a block, a fence or grace; it stands only if the state is current."""
MARKS: Final = 8
"""A key beside the state (block, challenge, trust, pass) changed."""


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
        self._visibility = Visibility(policy)
        self._hashes = ValueHashes()
        self._hashed = self.canonicaliser.hashed
        self._windows = {rule.key: rule.window_ms for rule in policy.rules}

    def touches(self, decision: Decision) -> list[tuple[str, Plan]]:
        """Every subject whose state the decision could change (canonical text), with what could change it.

        Raises:
            BadEvent: a subject that is not allowed (a decoded decision has none).
        """
        subjects = decision.subjects
        canonical = self.canonicaliser.subject
        found = []
        for plan in self._visibility.plans(decision):
            if plan.parts:
                try:
                    values = combination_values(plan, decision)
                    found.append((self.canonicaliser.combination(plan.dimension, values), plan))
                except BadEvent:
                    continue  # a route that is too long for a key: the combination has no such subject
            else:
                found.append((canonical(plan.dimension, subjects[plan.dimension]), plan))
        return found

    def apply(self, state: SubjectState, plan: Plan, decision: Decision, handling: Handling) -> int:
        """Applies a decision to one of its subjects in place; flags CHANGED, PENALTY, HELD, MARKS say what happened."""
        t = min(handling.broker_ms, decision.ts)
        if self.allowlist.entries and self.allowlist.covers(state.subject, t):
            return NOTHING
        effect = NOTHING
        if plan.shared:
            effect = self._shared(state, decision, t, handling)
        if t < state.grace_until:
            return effect | HELD
        if plan.rules:
            effect |= self._track(state, state.real, plan.rules, decision, t, handling)
        for one in plan.shadows:
            effect |= self._shadow(state, one, decision, t, handling)
        return effect

    def _track(
        self,
        state: SubjectState,
        track: Track,
        rules: Iterable[Detection],
        decision: Decision,
        t: int,
        handling: Handling,
        *,
        shadow: bool = False,
    ) -> int:
        if t <= track.at or (track.deny is not None and active(track.deny, t)):
            return HELD
        fired: list[Detection] | None = None
        effect = NOTHING
        for one in rules:
            seen = self._count(track, one, decision, t) if one.counts else self._see(track, one, decision, t)
            if seen != UNCHANGED:
                effect = CHANGED
                if seen == FIRED:
                    fired = [one] if fired is None else [*fired, one]
        if fired is not None:
            trigger = self._trigger(decision, t, handling)
            if react(self.policy, state, track, fired, trigger, windows=self._windows, shadow=shadow):
                effect |= PENALTY if shadow else PENALTY | MARKS
        return effect

    def _shadow(self, state: SubjectState, one: Detection, decision: Decision, t: int, handling: Handling) -> int:
        track = state.shadows.get(one.key)
        known = track is not None
        track = track if track is not None else Track()
        effect = self._track(state, track, (one,), decision, t, handling, shadow=True)
        if effect & CHANGED and not known:
            state.shadows[one.key] = track
        return effect

    def _see(self, track: Track, one: Detection, decision: Decision, t: int) -> int:
        value = self._value(one, decision)
        if value is None:
            return UNCHANGED
        seen = track.sets.get(one.key)
        if seen is None:
            seen = track.sets[one.key] = {}
        return see_value(seen, self._hashes.of(value), t, one.window_ms, one.n)

    def _value(self, one: Detection, decision: Decision) -> str | None:
        if one.attr:
            return decision.attrs.get(one.attr)
        value = decision.subjects.get(one.distinct)
        if value is None or one.distinct in self._hashed:
            return value
        return self.canonicaliser.subject(one.distinct, value).split(":", 1)[1]

    def _count(self, track: Track, one: Detection, decision: Decision, t: int) -> int:
        counter = track.counters.get(one.key)
        if counter is None:
            counter = track.counters[one.key] = Counter([], [], [])
        return count_event(counter, value_hash(decision.id), t, decision.count, one.window_ms, one.n)

    def _shared(self, state: SubjectState, decision: Decision, t: int, handling: Handling) -> int:
        shared_ip = self.policy.shared_ip
        if shared_ip is None:
            return NOTHING
        user = self.canonicaliser.subject("user", decision.subjects["user"]).split(":", 1)[1]
        seen = see_value(state.shared, self._hashes.of(user), t, shared_ip.window_ms, shared_ip.established)
        if seen == UNCHANGED:
            return NOTHING
        deny = state.real.deny
        if seen == FIRED and deny is not None and active(deny, t) and deny.rule != COMMANDED:
            soften_block(self.policy, state, self._trigger(decision, t, handling))
            return CHANGED | PENALTY | MARKS
        return CHANGED

    def _trigger(self, decision: Decision, t: int, handling: Handling) -> Trigger:
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
        return (PENALTY | MARKS | CHANGED) if wrote else (CHANGED | MARKS) if changed else NOTHING

    def apply_command(self, state: SubjectState, record: Command, handling: Handling) -> int:
        """Applies a command to its subject in place. Commands work on allowlisted subjects too."""
        changed = command(self.policy, state, record, min(record.ts, handling.broker_ms))
        return CHANGED | PENALTY | MARKS if changed else HELD


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
