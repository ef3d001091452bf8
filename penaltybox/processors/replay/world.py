"""One policy's world: the states of all subjects in memory, and the loop that steps recorded events through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penaltybox.contracts.events import Command, Decision, Outcome
from penaltybox.processors.engine import MARKS, PENALTY, Engine, Handling
from penaltybox.processors.ladder import active
from penaltybox.processors.state import SubjectState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penaltybox.contracts.events import Hold, Penalty
    from penaltybox.contracts.subjects import Names
    from penaltybox.processors.replay.records import Entry

_NEVER: Final = -(1 << 62)


class Course(Protocol):
    """Which policy is in force where: one all along, or as live workers switched."""

    versions: list[str]
    """Of all policies, as they came into force."""

    def runs(self, entries: Sequence[Entry]) -> Iterable[tuple[Engine, Sequence[Entry]]]:
        """Entries in their order, cut where the policy changes."""


class Steady:
    """One policy from beginning to end."""

    def __init__(self, engine: Engine) -> None:
        self.versions = [engine.version]
        self._engine = engine

    def runs(self, entries: Sequence[Entry]) -> Iterable[tuple[Engine, Sequence[Entry]]]:
        """All entries, one engine."""
        return ((self._engine, entries),)


class Stepped(NamedTuple):
    """What a slice did: (position in the slice, penalty) in order, and position -> the deny that would have stopped."""

    penalties: list[tuple[int, Penalty]]
    stopped: dict[int, Hold]


class World:
    """All subjects under one policy.

    Args:
        course: which policy is in force where.
        place: of this world among those that are replayed together; they share the names of subjects.
        worlds: how many there are.
        watched: somebody wants to know which decisions a block would have stopped.
        late: ids of events that live workers handled late.
    """

    def __init__(
        self,
        course: Course,
        *,
        place: int = 0,
        worlds: int = 1,
        watched: bool = False,
        late: frozenset[str] = frozenset(),
    ) -> None:
        self.states: dict[str, SubjectState] = {}
        self._course = course
        self._place, self._worlds = place, worlds
        self._watched = watched
        self._late = late
        self._blocked: dict[str, tuple[Hold, int]] = {}

    @property
    def versions(self) -> list[str]:
        """Of the policies in force."""
        return self._course.versions

    def step(self, entries: Sequence[Entry]) -> Stepped:
        """Step a slice in place."""
        stepped = Stepped([], {})
        position = 0
        for engine, run in self._course.runs(entries):
            self._run(engine, run, position, stepped)
            position += len(run)
        return stepped

    def _run(  # noqa: C901, PLR0912 - the hot loop: a call for each branch would cost more than it explains
        self, engine: Engine, entries: Sequence[Entry], position: int, stepped: Stepped
    ) -> None:
        plans_of, apply, find = engine.plans, engine.apply, self._find
        plain, watched, late = not engine.allowlist.entries, self._watched, self._late
        place, worlds = self._place, self._worlds
        handling = Handling(_NEVER)
        for at, (_, _, _, event, names, broker_ms) in enumerate(entries, position):
            if broker_ms != handling.broker_ms or late:
                handling = Handling(broker_ms, event.id in late)
            if type(event) is not Decision:
                self._rare(engine, at, event, handling, stepped)
                continue
            if watched and self._blocked:
                self._watch(engine, at, event, names, broker_ms, stepped)
            plans = plans_of(event)
            if not plans:
                continue
            states = names.hint
            if states is None:
                states = names.hint = [None] * (len(names) * worlds)
            t = event.ts
            if t > broker_ms:  # noqa: PLR1730 - as in the engine
                t = broker_ms
            for plan in plans:
                if plan.place >= 0:
                    where = plan.place * worlds + place
                    state = states[where]
                    if state is None:
                        state = states[where] = find(names[plan.place].text)
                    if plain:  # what apply would say of most decisions, without the call
                        if plan.plain and t < state.quiet_until:
                            continue
                        if plan.quick:
                            values = state.real.sets.get(plan.key)
                            if values and values.get(names[plan.value].hash, _NEVER) + plan.granule_ms > t:
                                continue
                else:
                    subject = engine.combination(plan, event)
                    if subject is None:
                        continue
                    state = find(subject)
                if apply(state, plan, event, handling, names) & (PENALTY | MARKS):
                    self._collect(state, at, stepped)

    def _find(self, subject: str) -> SubjectState:
        state = self.states.get(subject)
        if state is None:
            state = self.states[subject] = SubjectState.fresh(subject)
        return state

    def _rare(
        self, engine: Engine, at: int, event: Decision | Outcome | Command, handling: Handling, stepped: Stepped
    ) -> None:
        """An outcome, or a step by hand."""
        if type(event) is Outcome:
            for subject in engine.outcome_subjects(event):
                state = self._find(subject)
                engine.apply_outcome(state, event, handling)
                self._collect(state, at, stepped)
            return
        assert isinstance(event, Command)  # noqa: S101 - what else there is
        state = self._find(event.subject)
        engine.apply_command(state, event, handling)
        self._collect(state, at, stepped)

    def _collect(self, state: SubjectState, at: int, stepped: Stepped) -> None:
        """Take new penalties out of a state, and note whether it is blocked now."""
        written = state.outbox
        if written:
            state.outbox = []
            for penalty in written:
                stepped.penalties.append((at, penalty))
        if self._watched:
            hold = state.real.deny
            if hold is None:
                self._blocked.pop(state.subject, None)
            elif hold is not self._blocked.get(state.subject, (None, 0))[0]:
                began = next((one.ts for one in written if one.id == hold.penalty), state.real.at)
                self._blocked[state.subject] = (hold, began)

    def _watch(
        self, engine: Engine, at: int, event: Decision, names: Names, broker_ms: int, stepped: Stepped
    ) -> None:  # fmt: skip
        """Note the deny in force against one of a decision's subjects; of several the one that ends last."""
        t = min(event.ts, broker_ms)
        for subject in _blockable(engine, event, names):
            known = self._blocked.get(subject)
            if known is None:
                continue
            hold, began = known
            if t < began or not active(hold, t):
                if hold.until is not None and hold.until <= broker_ms:
                    del self._blocked[subject]
                continue
            if engine.allowlist.covers(subject, t):
                continue
            other = stepped.stopped.get(at)
            if other is None or (other.until is not None and (hold.until is None or hold.until > other.until)):
                stepped.stopped[at] = hold


def _blockable(engine: Engine, event: Decision, names: Names) -> list[str]:
    """Every subject of a decision that could be blocked: its own, and the combinations that rules are on."""
    found = [name.text for name in names]
    for on in {rule.on for rule in engine.policy.rules if "+" in rule.on}:
        values = {part: event.subjects.get(part) or getattr(event, part, "") for part in on.split("+")}
        if all(values.values()):
            found.append(engine.canonicaliser.combination(on, values))
    return found
