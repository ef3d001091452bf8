"""Recorded traffic for replays, as files, and what a plain loop over the engine says about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penaltybox.cli.replay_job import Job, run_job
from penaltybox.contracts.events import Decision, Outcome, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.processors.engine import Engine, Handling
from penaltybox.processors.state import SubjectState
from tests.stack.households import POLICY, decisions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from penaltybox.contracts.events import Hold, Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.replay.loop import Result
    from penaltybox.processors.replay.observer import Side

T0 = 1_766_400_000_000
HOUSEHOLDS = parse_policy(POLICY)
GENTLE = parse_policy(POLICY.replace("user_abuse:   {on: user, count: 5", "user_abuse:   {on: user, count: 9"))


def households(number: int = 3000) -> list[Decision]:
    """Decisions that climb ladders."""
    return [placed.decision for placed in decisions(number, T0)]


def write(path: Path, events: Iterable[Decision | Outcome]) -> Path:
    """A file of JSON lines."""
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    return path


def plainly(events: Iterable[Decision | Outcome], policy: Policy, broker_ms: int = 0) -> list[Penalty]:
    """What a loop without any haste makes of them; without a broker's time the latest so far stands for its clock."""
    engine = Engine(policy)
    states: dict[str, SubjectState] = {}
    clock, found = 0, []
    for event in events:
        clock = max(clock, event.ts)
        handling = Handling(broker_ms or clock)
        if isinstance(event, Decision):
            for subject, plan in engine.touches(event):
                engine.apply(states.setdefault(subject, SubjectState.fresh(subject)), plan, event, handling)
        else:
            for subject in engine.outcome_subjects(event):
                engine.apply_outcome(states.setdefault(subject, SubjectState.fresh(subject)), event, handling)
        for state in states.values() if isinstance(event, Outcome) else _touched(engine, event, states):
            found += state.outbox
            state.outbox = []
    return found


def _touched(engine: Engine, event: Decision, states: Mapping[str, SubjectState]) -> list[SubjectState]:
    return [states[subject] for subject, _ in engine.touches(event)]


def run(source: object, candidate: Policy = HOUSEHOLDS, observer: Any = None, **options: Any) -> Result:
    """A replay of a source as `--source` names it."""
    return asyncio.run(run_job(Job(Settings(), candidate, source=str(source), **options), observer=observer))


class Recorder:
    """An observer that writes everything down."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.penalties: dict[str, list[Penalty]] = {"baseline": [], "candidate": []}

    def decision(self, decision: Decision, names: Any, stopped: Mapping[Side, Hold | None], counted: bool) -> None:
        assert [name.text.partition(":")[0] for name in names] == list(decision.subjects)
        self.told.append(("decision", decision.id, dict(stopped), counted))

    def penalty(self, side: Side, penalty: Penalty, counted: bool) -> None:
        self.told.append(("penalty", penalty.trigger_id, side, counted))
        self.penalties[side].append(penalty)

    def outcome(self, outcome: Outcome, counted: bool) -> None:
        self.told.append(("outcome", outcome.id, counted))
