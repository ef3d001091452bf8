"""One policy's world: the states of all subjects in memory, and the loop that steps recorded events through them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from penaltybox.contracts.events import Command, Decision
from penaltybox.processors.engine import CHANGED, MARKS, PENALTY, Engine, Handling
from penaltybox.processors.ladder import active
from penaltybox.processors.replay.kinds import combinations, kinds, named_combinations
from penaltybox.processors.replay.listed import ListChange
from penaltybox.processors.replay.oblivion import SLACK_MS, Horizons, matters_until
from penaltybox.processors.replay.records import CLOCK
from penaltybox.processors.replay.stepped import Stepped, ends_later
from penaltybox.processors.residents import shared
from penaltybox.processors.state import FOREVER, NOTHING, SubjectState

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from penaltybox.contracts.events import Hold, Outcome
    from penaltybox.contracts.policy import AllowEntry, Policy
    from penaltybox.contracts.subjects import Names
    from penaltybox.processors.replay.records import Entry
    from penaltybox.processors.replay.shards import Shard
    from penaltybox.processors.visibility import Plan

_NEVER: Final = -(1 << 62)
_MOST_PROOFS: Final = 200_000
_GONE: Final = -1
"""Number of a state that was forgotten."""
SWEEP_AT: Final = 300_000
"""So many subjects are looked through for those that can be forgotten; then when there are twice as many as stayed."""


class Course(Protocol):
    """Which policy is in force where: one all along, or as live workers switched."""

    versions: list[str]
    """Of all policies, as they came into force."""
    policies: list[Policy]

    def runs(self, entries: Sequence[Entry]) -> Iterable[tuple[Engine, Sequence[Entry]]]:
        """Entries in their order, cut where the policy changes."""

    def list_also(self, entries: tuple[AllowEntry, ...]) -> None:
        """Allowlist these beside each policy's own."""


class Relimiting(Protocol):
    """A limiter that is asked again about recorded requests, under other limits."""

    counts: Counter[str]
    """What it answered: how often which."""

    def decide(self, decision: Decision, listed: Listing | None) -> Sequence[Decision]:
        """What becomes of a recorded decision.

        Args:
            decision: as recorded.
            listed: the block or challenge in force against it in this world.

        Raises:
            ConfigurationError: it is a sample of its kind, so that limits cannot be counted.
        """


class Listing(NamedTuple):
    """A block or a challenge in force against a request. `until` in ms; None is permanent."""

    action: Literal["deny", "challenge"]
    until: int | None


class Steady:
    """One policy from beginning to end."""

    def __init__(self, engine: Engine) -> None:
        self.versions = [engine.version]
        self.policies = [engine.policy]
        self._engine = engine

    def runs(self, entries: Sequence[Entry]) -> Iterable[tuple[Engine, Sequence[Entry]]]:
        """All entries, one engine."""
        return ((self._engine, entries),)

    def list_also(self, entries: tuple[AllowEntry, ...]) -> None:
        """See `Course.list_also`."""
        self._engine.list_also(entries)


class _Tie:
    """What one world has found out about names that came together: their states, and a proof about them."""

    __slots__ = ("mask", "quick", "states", "until")

    def __init__(self, size: int, mask: int) -> None:
        self.states: list[SubjectState | None] = [None] * size
        self.mask = mask
        """Bit n is set: the n-th name is this process's."""
        self.quick: tuple[Plan, ...] | None = None
        self.until = _NEVER
        """Before this time (ms) the plans in `quick` change nothing."""


class World:
    """All subjects under one policy.

    Args:
        course: which policy is in force where.
        place: of this world among those that are replayed together; they share the names of subjects.
        worlds: how many there are.
        watched: somebody wants to know which decisions a block would have stopped.
        late: ids of events that live workers handled late.
        limiter: decides the recorded requests anew; None takes the recorded answers.
        shard: the subjects that are stepped here; None all.
    """

    def __init__(
        self,
        course: Course,
        *,
        place: int = 0,
        worlds: int = 1,
        watched: bool = False,
        late: frozenset[str] = frozenset(),
        limiter: Relimiting | None = None,
        shard: Shard | None = None,
    ) -> None:
        self.states: dict[str, SubjectState] = {}
        self.limiter = limiter
        self._shard = shard
        self._course = course
        self._place, self._worlds = place, worlds
        self._watched = watched
        self._late = late
        self._blocked: dict[str, tuple[Hold, int]] = {}
        self._proofs: dict[str, dict[int, _Tie]] = {}
        """Subject -> what relies on it to stay as it is."""
        self._proved = 0
        self._by_hand: dict[str, AllowEntry | None] = {}
        self._sweep_at = SWEEP_AT

    @property
    def versions(self) -> list[str]:
        """Of the policies in force."""
        return self._course.versions

    def step(self, entries: Sequence[Entry]) -> Stepped:
        """Step a slice in place."""
        stepped = Stepped.empty()
        position = 0
        for engine, run in self._course.runs(entries):
            if self.limiter is None:
                self._run(engine, run, position, stepped)
            else:
                self._decide_and_run(self.limiter, engine, run, position, stepped)
            position += len(run)
        if len(self.states) > self._sweep_at:
            self._sweep(entries[-1][CLOCK])
        return stepped

    def _sweep(self, now_ms: int) -> None:
        """Forget subjects of which nothing can matter any more."""
        horizons = Horizons.of(self._course.policies)
        before = now_ms - SLACK_MS
        gone = [one for one, state in self.states.items() if matters_until(state, horizons) < before]
        for subject in gone:
            self.states.pop(subject).number = _GONE  # names may still hint at it
            self._blocked.pop(subject, None)
            if subject in self._proofs:
                self._doubt(subject)
        self._sweep_at = max(SWEEP_AT, 2 * len(self.states))

    def _decide_and_run(
        self, limiter: Relimiting, engine: Engine, entries: Sequence[Entry], position: int, stepped: Stepped
    ) -> None:
        """One by one, for a request of a blocked subject counts nowhere in the limiter."""
        for at, entry in enumerate(entries, position):
            clock, rank, offset, event, names, broker_ms = entry
            if not isinstance(event, Decision):
                self._run(engine, [entry], at, stepped)
                continue
            listed = self._listed(engine, names, min(event.ts, broker_ms))
            for decision in limiter.decide(event, listed):
                self._run(engine, [(clock, rank, offset, decision, names, broker_ms)], at, stepped)

    def _listed(self, engine: Engine, names: Names, t: int) -> Listing | None:
        """The block, else the challenge, in force against one of a request's subjects; the later end wins.

        Who passed a challenge is exempt from that of an address for a while.
        """
        holds: dict[Literal["deny", "challenge"], list[int | None]] = {"deny": [], "challenge": []}
        exempt = False
        for name in sorted(names, key=lambda name: name.text.startswith("ip:")):
            state = self.states.get(name.text)
            if state is None or engine.allowlist.covers(state.subject, t):
                continue
            exempt = exempt or state.pass_until > t
            deny, challenge = state.real.deny, state.real.challenge
            if deny is not None and active(deny, t):
                holds["deny"].append(deny.until)
            if challenge is not None and active(challenge, t) and not (exempt and name.text.startswith("ip:")):
                holds["challenge"].append(challenge.until)
        for action, ends in holds.items():
            if ends:
                return Listing(action, None if None in ends else max(end for end in ends if end is not None))
        return None

    def _run(  # noqa: C901, PLR0912 - the hot loop: a call for each branch would cost more than it explains
        self, engine: Engine, entries: Sequence[Entry], position: int, stepped: Stepped
    ) -> None:
        apply, find = engine.apply, self._find
        watched, late, place, proofs = self._watched, self._late, self._place, self._proofs
        shard, several = self._shard, self._worlds > 1
        combined = combinations(engine) if watched else ()
        handling = Handling(_NEVER)
        event: Any
        places = range(position, position + len(entries))
        for at, entry, kind in zip(places, entries, kinds(engine, entries), strict=True):
            _, _, _, event, names, broker_ms = entry
            if broker_ms != handling.broker_ms or late:
                handling = Handling(broker_ms, event.id in late)
            if kind is None:
                self._rare(engine, at, event, handling, stepped)
                continue
            if watched and self._blocked:
                self._watch(engine, combined, at, entry, stepped)
            t = event.ts
            if t > broker_ms:  # noqa: PLR1730 - as in the engine
                t = broker_ms
            tie = names.hint or self._tie(names)
            if several:
                tie = tie[place]
            whole = kind
            if shard is not None:
                kind = shard.part(kind, tie.mask)  # noqa: PLW2901 - the same, of this process
            plans, quick = kind.plans, kind.quick
            if tie.quick is quick and t < tie.until:
                plans = kind.rest  # of the others it is proved that they change nothing
                if not plans:
                    continue
            states = tie.states
            for plan in plans:
                if plan.place >= 0:
                    state = states[plan.place]
                    if state is None or state.number == _GONE:
                        state = states[plan.place] = find(names[plan.place].text)
                else:
                    subject = engine.combination(plan, event)
                    if subject is None or (shard is not None and not shard.owns(subject)):
                        continue
                    state = find(subject)
                effect = apply(state, plan, event, handling, names)
                if effect & (CHANGED | PENALTY | MARKS):
                    if state.subject in proofs:
                        self._doubt(state.subject)
                    if effect & (PENALTY | MARKS):
                        self._collect(state, at, whole.plans.index(plan), stepped)
            if plans is not kind.rest and quick:
                self._prove(tie, quick, names)

    def _tie(self, names: Names) -> Any:
        """What is kept with names: the tie of the only world, or one for each."""
        mask = self._shard.mask(names) if self._shard is not None else -1
        ties = [_Tie(len(names), mask) for _ in range(self._worlds)]
        names.hint = ties if len(ties) > 1 else ties[0]
        return names.hint

    def _prove(self, tie: _Tie, quick: tuple[Plan, ...], names: Names) -> None:
        """Remember until when decisions on these names change nothing in these plans.

        A value that a distinct rule has seen says nothing new before the end of its granule; a block, a fence or grace
        answers for its subject. That holds until something else changes about one of them, which is what ends it.
        """
        until = FOREVER
        for plan in quick:
            state = tie.states[plan.place]
            if state is None or state.number == _GONE:
                return
            last = state.real.sets.get(plan.key, NOTHING).get(names[plan.value].hash, _NEVER)
            until = min(until, max(state.quiet_until, last + plan.granule_ms))
        tie.quick, tie.until = quick, shared(until)
        self._proved += 1
        if self._proved > _MOST_PROOFS:
            self._doubt_all()
        for plan in quick:
            self._proofs.setdefault(names[plan.place].text, {})[id(tie)] = tie

    def _doubt_all(self) -> None:
        """Names are forgotten and made anew when there are many, and what relied on them must not pile up."""
        for ties in self._proofs.values():
            for tie in ties.values():
                tie.until = _NEVER
        self._proofs.clear()
        self._proved = 0

    def _doubt(self, subject: str) -> None:
        """Something changed about a subject: what was proved from it must be proved again."""
        for tie in self._proofs.pop(subject).values():
            tie.until = _NEVER

    def _find(self, subject: str) -> SubjectState:
        state = self.states.get(subject)
        if state is None:
            state = self.states[subject] = SubjectState.fresh(subject)
        return state

    def _list(self, change: ListChange) -> None:
        """The allowlist that is kept by hand changes here."""
        self._by_hand |= change.entries
        self._course.list_also(tuple(entry for entry in self._by_hand.values() if entry is not None))
        self._doubt_all()

    def _rare(
        self, engine: Engine, at: int, event: Outcome | Command | ListChange, handling: Handling, stepped: Stepped
    ) -> None:
        """An outcome, a step by hand, or a change of the allowlist."""
        if isinstance(event, ListChange):
            self._list(event)
            return
        subjects = [event.subject] if isinstance(event, Command) else engine.outcome_subjects(event)
        for place, subject in enumerate(subjects):
            if self._shard is not None and not self._shard.owns(subject):
                continue
            state = self._find(subject)
            if isinstance(event, Command):
                engine.apply_command(state, event, handling)
            else:
                engine.apply_outcome(state, event, handling)
            if subject in self._proofs:
                self._doubt(subject)
            self._collect(state, at, place, stepped)

    def _collect(self, state: SubjectState, at: int, place: int, stepped: Stepped) -> None:
        """Take new penalties out of a state, and note whether it is blocked now."""
        written = state.outbox
        if written:
            state.outbox = []
            for penalty in written:
                stepped.penalties.append((at, penalty))
                stepped.penalty_places.append(place)
        if self._watched:
            hold = state.real.deny
            if hold is None:
                self._blocked.pop(state.subject, None)
            elif hold is not self._blocked.get(state.subject, (None, 0))[0]:
                began = next((one.ts for one in written if one.id == hold.penalty), state.real.at)
                self._blocked[state.subject] = (hold, began)

    def _watch(self, engine: Engine, combined: Sequence[str], at: int, entry: Entry, stepped: Stepped) -> None:
        """Note the deny in force against one of a decision's subjects; of several the one that ends last."""
        _, _, _, event, names, broker_ms = entry
        assert isinstance(event, Decision)  # noqa: S101 - nothing else is watched
        t, blocked = min(event.ts, broker_ms), self._blocked
        subjects = [name.text for name in names]
        if combined:
            subjects += named_combinations(engine, combined, event)
        for place, subject in enumerate(subjects):
            known = blocked.get(subject)
            if known is None:
                continue
            hold, began = known
            if t < began or not active(hold, t):
                if hold.until is not None and hold.until <= broker_ms:
                    del blocked[subject]
                continue
            if engine.allowlist.covers(subject, t):
                continue
            other = stepped.stopped.get(at)
            if other is None or ends_later(hold, other):
                stepped.stopped[at] = hold
                stepped.stop_places[at] = place
