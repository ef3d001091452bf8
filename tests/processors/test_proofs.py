"""What the hot loop spares itself: events that are proved to change nothing. Nobody may be able to tell."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.cycle import Run
from penaltybox.processors.engine import HELD, NOTHING, Engine, Handling
from penaltybox.processors.intake import FRESH_S, SEEN_S, decode_run, step_events
from penaltybox.processors.residents import Resident, Residents
from penaltybox.processors.state import SubjectState, copy_state, encode_state
from tests.processors.worker_driver import T0, Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

POLICY = """
limits: {}
rules:
  farm: {on: device, distinct: user, n: 4, window: 10m, then: {level: 5m}}
  office: {on: ip, distinct: user, n: 5, window: 20m, then: {challenge: 1m}}
  pairs: {on: device+ip, distinct: user, n: 3, window: 10m, then: {challenge: 1m}}
  hops: {on: user, distinct: ip, n: 3, window: 10m, when: {scenario: login}, then: step}
  abuse: {on: user, count: 4, window: 10m, then: step}
ladder: {rungs: [warn, 5m, 1h, permanent], warn: 10m, forgive: 8h, memory: 72h}
shared_ip: {established: 4, window: 14d}
allow: ["user:u11"]
"""


class Plainly:
    """One event after the other, each on each of its subjects, as the engine says: what is to be reproduced."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.states: dict[str, SubjectState] = {}
        self.kept: dict[str, list[str]] = {}
        self.verified_s: dict[str, float] = {}
        self.seen_s: dict[str, float] = {}
        self.subjects = 0

    def read(self, subject: str, now_s: float) -> SubjectState:
        """As a worker reads what is stored of a subject, of which it knew nothing."""
        self.verified_s[subject] = now_s
        self.seen_s.pop(subject, None)
        known = self.states.get(subject)
        return copy_state(known) if known else SubjectState.fresh(subject)

    def judge(self, event: Decision, handling: Handling, now_s: float) -> None:
        for subject, plan in self.engine.touches(event):
            state = self.states.setdefault(subject, SubjectState.fresh(subject))
            if self.seen_s.get(subject, -1e9) < now_s - SEEN_S:
                self.seen_s[subject] = now_s
                self.subjects += 1
            effect = self.engine.apply(state, plan, event, handling)
            fresh = self.verified_s.setdefault(subject, now_s) >= now_s - FRESH_S
            silent = effect == NOTHING or (effect == HELD and fresh)
            if not silent or self.kept.get(subject):
                self.kept.setdefault(subject, []).append(event.id)


def events(rng: random.Random, at: int, count: int, first: int) -> Iterator[Decision]:
    for number in range(first, first + count):
        user = rng.randrange(12)
        denied = rng.random() < 0.15
        yield Decision(
            v=1,
            id=f"d{number}",
            ts=at - rng.choice((0, 0, 0, 1, 20_000, 700_000)),
            source="test",
            scenario=rng.choice(("claim", "claim", "login")),
            action="deny" if denied else "allow",
            reason="over_limit" if denied else None,
            violated=("user:daily",) if denied else (),
            subjects={"user": f"u{user}", "device": f"d{user // 4}", "ip": f"10.0.0.{user % 3}"},
            established=rng.choice((None, None, None, True)),
            enforced=rng.random() < 0.95,
        )


def close(resident: Resident, plainly: Plainly, now_s: float) -> None:
    """As a write that nobody disputed."""
    resident.verified_s = plainly.verified_s[resident.state.subject] = now_s
    resident.kept = ()
    resident.queued = resident.dirty = resident.urgent = resident.remark = resident.renew = False
    plainly.kept.pop(resident.state.subject, None)


def trouble(rng: random.Random, residents: Residents, plainly: Plainly, now_s: float) -> None:
    """Another worker's version comes in, a generation ends."""
    closed = sorted(subject for subject, one in residents.young.items() if not one.busy)
    if rng.random() < 0.3 and closed:
        subject = rng.choice(closed)
        plainly.states[subject] = SubjectState.fresh(subject)
        if rng.random() < 0.5:
            residents.replace(subject, Resident(plainly.read(subject, now_s), now_s))
        else:  # as `Writer.step_again` does
            resident = residents.young[subject]
            residents.doubt(resident)
            resident.state, resident.verified_s = copy_state(plainly.states[subject]), now_s
            plainly.verified_s[subject] = now_s
            resident.hush()
    if rng.random() < 0.05:
        residents.age()


@pytest.mark.parametrize("seed", range(60))
def test_what_is_spared_would_have_changed_nothing(seed: int) -> None:
    """States, kept events and the breaker's count are as if every event were stepped, whatever is open or replaced."""
    rng = random.Random(seed)
    engine = Engine(parse_policy(POLICY if seed % 2 else POLICY.partition("allow:")[0]))
    plainly, open_ = Plainly(engine), dict[str, Resident]()
    residents = Residents(2, open_.values)
    at, now_s, number, subjects = T0, 1000.0, 0, 0
    for _ in range(60):
        at += rng.choice((1, 500, 5_000, 60_000))
        now_s += rng.choice((0.01, 0.4, 1.5, 70.0))
        chosen = list(events(rng, at, rng.randrange(1, 40), number))
        number += len(chosen)
        records = [Raw(0, at - rng.choice((0, 0, 200_000)), encode(one)) for one in chosen]
        decoded, letters = decode_run(engine, TOPICS, Run(TOPICS.decisions, 0, records, lambda: None), records, at)
        assert not letters
        for subject in residents.missing(engine, decoded):
            residents.settle(subject, Resident(plainly.read(subject, now_s), now_s))
        stepped = step_events(engine, residents, decoded, now_s)
        open_.update({one.state.subject: one for one in stepped.queued})
        for record, one in zip(records, chosen, strict=True):
            plainly.judge(one, Handling(record.timestamp, one.ts < at - engine.policy.late_after_ms), now_s)
        assert_alike(residents, plainly)
        subjects += stepped.subjects
        assert subjects == plainly.subjects
        for subject in [subject for subject in open_ if rng.random() < 0.8]:
            close(open_.pop(subject), plainly, now_s)
        trouble(rng, residents, plainly, now_s)


def assert_alike(residents: Residents, plainly: Plainly) -> None:
    for subject, resident in residents.young.items():
        expected = plainly.states.get(subject)
        if expected is None:
            assert not resident.dirty
            continue
        assert encode_state(resident.state, 1 << 33) == encode_state(expected, 1 << 33), subject
        assert [kept[1].id for kept in resident.kept] == plainly.kept.get(subject, []), subject


def test_most_is_spared() -> None:
    """A second and a third visit within a granule do not even open the states."""
    engine = Engine(parse_policy(POLICY.replace("  pairs", "  # pairs")))
    residents = Residents(100, tuple)
    one = next(events(random.Random(1), T0, 1, 0))
    one = Decision(v=1, id="d", ts=T0, source="test", action="allow", subjects=one.subjects)
    opened: list[str] = []
    apply = engine.apply

    def spy(state: SubjectState, *rest: Any) -> int:
        opened.append(state.subject)
        return apply(state, *rest)

    engine.apply = spy  # type: ignore[method-assign]
    records = [Raw(0, T0, encode(one))]
    for visit in range(4):
        decoded, _ = decode_run(engine, TOPICS, Run(TOPICS.decisions, 0, records, lambda: None), records, T0)
        for subject in residents.missing(engine, decoded):
            residents.settle(subject, Resident(SubjectState.fresh(subject), 0.0))
        opened.clear()
        for resident in step_events(engine, residents, decoded, 0.0).queued:
            resident.kept = ()
            resident.queued = resident.dirty = False
        assert len(opened) == (2 if visit < 2 else 0)
