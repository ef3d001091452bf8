"""A subject's recorded events through the engine once more: a moment each, with its verdict; and where live differs.

The engine is the one that live workers run. What it cannot know is the order in which live workers wrote the subject
when its events came through several partitions; where its steps differ from the recorded ones, the record wins.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Literal

import msgspec

from penaltybox.contracts.events import Command, Decision, Outcome, Penalty
from penaltybox.processors.engine import CHANGED, Event, Handling, step
from penaltybox.processors.ladder import active
from penaltybox.processors.remedies import command_of
from penaltybox.processors.retelling.recorded import Recorded, adopt
from penaltybox.processors.retelling.verdicts import (
    WORDS,
    Progress,
    Verdict,
    before,
    marks_on,
    progress_of,
    risk_of,
    verdict_of,
    why_stepped,
    why_unseen,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.contracts.policy import AllowEntry
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.state import SubjectState, Track
    from penaltybox.processors.visibility import Plan

Told = Literal["both", "recorded", "rerun"]
SKEW_MS = 5_000
"""How far apart workers of several partitions may be without being behind."""
LOOK_AHEAD = 64
_BY_HAND, _BY_EVENT, _LEFT_OVER = 0, 1, 2


class Step(msgspec.Struct, kw_only=True):
    """A penalty, and who tells of it: the record and the re-run, or one of them alone."""

    told: Told
    penalty: Penalty


class Moment(msgspec.Struct, kw_only=True):
    """One event of the subject, and what became of it. Times in ms since the epoch."""

    at: int
    id: str
    kind: Literal["decision", "outcome", "hand", "penalty"]
    verdict: Verdict
    why: str
    until: int | None = 0
    """End of the block that suppressed it."""
    came_after_ms: int = 0
    """How long after its own time the broker had it."""
    shadow: bool = False
    """Only shadow rules saw it."""
    rules: list[Progress] = []
    risk: int = 0
    established_users: int = 0
    record: Decision | Outcome | Command | None = None
    steps: list[Step] = []


class Story(msgspec.Struct, kw_only=True):
    """A subject's past, told again."""

    moments: list[Moment]
    state: SubjectState
    """Where the re-run ended."""
    policies: list[tuple[int, str]] = []
    """(from when, version) of the policies that it was told under, in their order."""


class Engines:
    """Which policy was in force when, with an engine for each.

    Args:
        now: the one in force now, with all that is allowlisted.
        switches: (from when, version) of the switches that are known, in their order.
        known: version -> engine, as far as they are known.
    """

    def __init__(
        self, now: Engine, switches: Sequence[tuple[int, str]] = (), known: Mapping[str, Engine] | None = None
    ) -> None:
        self.now = now
        self._known = {**(known or {}), now.version: now}
        self._times = [at for at, _ in switches]
        self._versions = [version for _, version in switches]

    def at(self, ms: int, recorded: str = "") -> Engine:
        """The engine in force at a time (ms); a version that is recorded of an event counts more than the clock."""
        if recorded in self._known:
            return self._known[recorded]
        place = bisect_right(self._times, ms) - 1
        return self._known.get(self._versions[place], self.now) if place >= 0 else self.now


class Teller:
    """Tells one subject's past.

    Args:
        engines: with the policies to tell it under.
        state: where the range begins; changed in place.
        penalties: recorded in the range, in order.
    """

    def __init__(self, engines: Engines, state: SubjectState, penalties: Sequence[Penalty]) -> None:
        self._engines = engines
        self._engine = engine = engines.now
        self._versions = {one.trigger_id: one.policy_version for one in penalties if one.origin == "rule"}
        self.used: list[tuple[int, str]] = []
        """(from when, version) of the policies that it was told under."""
        self._state = state
        self._recorded = {penalty.id: penalty for penalty in penalties}
        self._open = dict(self._recorded)
        self._late = {penalty.trigger_id for penalty in penalties if penalty.late}
        self._moments: list[Moment] = []
        # Entries in Redis don't say since when. Who was penalised by a rule was not listed until then.
        self._listed = engine.listed
        by_rules = [penalty.ts for penalty in penalties if penalty.origin == "rule" and penalty.action != "lift"]
        self._listed_from = max(by_rules, default=0)
        self._listing: tuple[AllowEntry, ...] = ()
        engine.list_also(())

    def tell(self, events: Sequence[Recorded]) -> Story:
        """All moments in the order of the broker, steps by hand among them at their own time."""
        present = {one.record.id for one in events}
        rows: list[tuple[tuple[int, int, int, int], Recorded | Penalty]] = [
            ((one.broker_ms, _BY_EVENT, one.partition, one.offset), one) for one in events
        ]
        for penalty in self._recorded.values():
            if penalty.trigger_id not in present:
                by_hand = penalty.origin == "hand"
                rows.append(((penalty.ts, _BY_HAND if by_hand else _LEFT_OVER, penalty.seq, 0), penalty))
        order = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
        for place in range(len(order)):
            row = order[place]
            self._use(row)
            if isinstance(row, Recorded) and isinstance(row.record, Decision):
                first = self._seen_before(order, place, row)
                if first:
                    window, moved = order[place : place + 1 + LOOK_AHEAD], {id(one) for one in first}
                    order[place : place + len(window)] = [*first, *(one for one in window if id(one) not in moved)]
            self._row(order[place])
        self._engines.now.list_also(self._listed)
        return Story(moments=self._moments, state=self._state, policies=self.used)

    def _use(self, row: Recorded | Penalty) -> None:
        """Take the policy that was in force for a row."""
        ms, number = (row.ts, row.trigger_id) if isinstance(row, Penalty) else (row.broker_ms, row.record.id)
        self._engine = self._engines.at(ms, self._versions.get(number, ""))
        if self._engine.listed != self._listing:
            self._engine.list_also(self._listing)
        if not self.used or self.used[-1][1] != self._engine.version:
            self.used.append((ms, self._engine.version))

    def _row(self, row: Recorded | Penalty) -> None:
        if isinstance(row, Penalty):
            self._penalty(row)
        elif isinstance(row.record, Decision):
            self._decision(row.record, row.broker_ms)
        else:
            self._outcome(row.record, row.broker_ms)

    def _seen_before(self, order: Sequence[Recorded | Penalty], place: int, trigger: Recorded) -> list[Recorded]:
        """What live workers saw before a trigger although the broker has it later: it came through other partitions.

        As few as make the trigger write what is recorded; none if it does so anyway, or never does.
        """
        wanted = {one.id for one in self._open.values() if one.trigger_id == trigger.record.id and one.origin == "rule"}
        if not wanted:
            return []
        state, first = self._state, list[Recorded]()
        for one in [trigger, *order[place + 1 : place + 1 + LOOK_AHEAD]]:
            if not isinstance(one, Recorded) or one.broker_ms > trigger.broker_ms + SKEW_MS:
                break
            if one is not trigger:
                if one.partition == trigger.partition:
                    continue
                state, made = self._try(state, one)
                first.append(one)
                if made:
                    break
            if wanted <= {penalty.id for penalty in self._try(state, trigger)[1]}:
                return first
        return []

    def _try(self, state: SubjectState, one: Recorded) -> tuple[SubjectState, list[Penalty]]:
        handling = Handling(one.broker_ms, one.record.id in self._late)
        return step(state, Event(one.record, handling), self._engine.policy, self._engine)

    def _decision(self, decision: Decision, broker_ms: int) -> None:
        t = min(decision.ts, broker_ms)
        moment = Moment(
            at=t,
            id=decision.id,
            kind="decision",
            verdict="unseen",
            why="",
            came_after_ms=max(0, broker_ms - decision.ts),
            record=decision,
        )
        if t > self._listed_from and self._listing != self._listed:
            self._listing = self._listed
            self._engine.list_also(self._listed)
        plan = next((plan for name, plan in self._engine.touches(decision) if name == self._state.subject), None)
        if self._engine.allowlist.covers(self._state.subject, t):
            moment.verdict, moment.why = "listed", WORDS["listed"]
        elif plan is None:
            moment.why = why_unseen(self._engine.policy, decision, self._state.dimension)
        else:
            self._judge(moment, plan, decision, Handling(broker_ms, decision.id in self._late), t)
        self._steps(moment)
        self._moments.append(moment)

    def _judge(self, moment: Moment, plan: Plan, decision: Decision, handling: Handling, t: int) -> None:
        engine, state = self._engine, self._state
        names = engine.canonicaliser.names(decision.subjects)
        was = before(state, plan, decision, names)
        effect = engine.apply(state, plan, decision, handling, names)
        moment.shadow = bool(plan.shadows) and not plan.rules
        if state.outbox:
            moment.verdict, moment.why = "trigger", why_stepped(state.outbox)
        else:
            marks = marks_on(state, plan, decision, names)
            moment.verdict, hold = verdict_of(state, plan, was, marks, effect, t)
            moment.why = WORDS[moment.verdict]
            if hold is not None:
                moment.until = hold.until
                moment.why += f" (by {hold.rule})"
        if effect & CHANGED:
            moment.rules = progress_of(state, plan, t)
            moment.risk = risk_of(engine.policy, state, was, t)
        if plan.user >= 0:
            moment.established_users = len(state.shared)

    def _outcome(self, outcome: Outcome, broker_ms: int) -> None:
        moment = Moment(
            at=min(outcome.ts, broker_ms), id=outcome.id, kind="outcome", verdict="nothing", why="", record=outcome
        )
        effect = self._engine.apply_outcome(self._state, outcome, Handling(broker_ms, outcome.id in self._late))
        moment.verdict = "lift" if self._state.outbox else "trust" if effect & CHANGED else "nothing"
        moment.why = WORDS[moment.verdict]
        self._steps(moment)
        self._moments.append(moment)

    def _penalty(self, penalty: Penalty) -> None:
        command = command_of(penalty)
        if command is None:
            moment = Moment(
                at=penalty.ts, id=penalty.trigger_id, kind="penalty", verdict="recorded", why=WORDS["recorded"]
            )
        else:
            self._engine.apply_command(self._state, command, Handling(penalty.ts, penalty.late))
            why = f"{command.verb} by {penalty.actor}: {penalty.note}"
            moment = Moment(at=penalty.ts, id=command.id, kind="hand", verdict="hand", why=why, record=command)
        self._steps(moment)
        self._moments.append(moment)

    def _steps(self, moment: Moment) -> None:
        """Takes the re-run's penalties out of the outbox, and sets the recorded ones beside them."""
        made, self._state.outbox = self._state.outbox, []
        for penalty in made:
            recorded = self._open.pop(penalty.id, None)
            moment.steps.append(Step(told="both" if recorded else "rerun", penalty=recorded or penalty))
        for penalty in [one for one in self._open.values() if one.trigger_id == moment.id]:
            del self._open[penalty.id]
            moment.steps.append(Step(told="recorded", penalty=penalty))
            adopt(self._state, penalty, self._engine.policy)


def tell(
    engines: Engines | Engine, state: SubjectState, events: Sequence[Recorded], penalties: Sequence[Penalty]
) -> Story:
    """A subject's past, told again.

    Args:
        engines: with the policies to tell it under, or with the only one.
        state: where the range begins (`recorded.state_after`); changed in place.
        events: decisions and outcomes of the subject in the range.
        penalties: of the subject, recorded in the range, in order.
    """
    known = engines if isinstance(engines, Engines) else Engines(engines)
    return Teller(known, state, penalties).tell(events)


def differences(story: Story, live: SubjectState | None, now_ms: int) -> list[str]:
    """Where the re-run and live state part, as sentences; none when they agree as far as can be seen."""
    found = [
        f"{step.penalty.action} {step.penalty.from_} → {step.penalty.to} by {step.penalty.rule}: "
        + ("recorded, but the re-run did not make it" if step.told == "recorded" else "made by the re-run only")
        for moment in story.moments
        for step in moment.steps
        if step.told != "both"
    ]
    if live is None:
        return [*found, "nothing is stored in Redis: forgotten, or never written"]
    mine, real = story.state.real, live.real
    if mine.rung != real.rung:
        found.append(f"last rung: {real.rung or 'none'} live, {mine.rung or 'none'} in the re-run")
    for name, here, there in (
        ("block", _hold(mine, "deny", now_ms), _hold(real, "deny", now_ms)),
        ("challenge", _hold(mine, "challenge", now_ms), _hold(real, "challenge", now_ms)),
    ):
        if here != there:
            found.append(f"{name}: {there} live, {here} in the re-run")
    return found


def _hold(track: Track, name: Literal["deny", "challenge"], now_ms: int) -> str:
    hold = track.deny if name == "deny" else track.challenge
    return f"{hold.rung} by {hold.rule}" if hold is not None and active(hold, now_ms) else "none"
