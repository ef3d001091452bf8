"""Workers die and begin again at the last commit, on states that are ahead of them: that must equal one single pass.

The subjects here are few and tense: holds begin, are softened, and give way to longer ones within seconds, while events
come out of order.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.cycle import Run
from penaltybox.processors.state import copy_state, decode_state
from penaltybox.sinks.memory_store import MemoryKeys
from tests.oracle.judge import Oracle
from tests.processors.campaigns import START_MS, Delivery, usual
from tests.processors.engine_driver import Drive
from tests.processors.test_engine_against_oracle import ladder_of_engine, ladder_of_oracle, told
from tests.processors.worker_driver import Clock, Raw, RecordingSender, Rig
from tests.stack.arena import counted_by_engine, counted_by_oracle
from tests.waiting import wait_until

if TYPE_CHECKING:
    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.state import SubjectState

PREFIX, STATE = "pbx:{", "}:state"
POLICIES = {
    "a block that is softened": """
        raid: {on: ip, count: 2, window: 10m, when: {violated: "a:*"}, then: {level: 5m}}
        """,
    "a challenge that gives way to a longer one": """
        short: {on: ip, count: 2, window: 10m, when: {violated: "a:*"}, then: {challenge: 1m}}
        long: {on: ip, count: 1, window: 10m, when: {violated: "b:*"}, then: {challenge: 5m}}
        """,
    "a challenge that gives way to a step": """
        users: {on: device, distinct: user, n: 2, window: 10m, then: {challenge: 1m}}
        raid: {on: ip, count: 2, window: 10m, when: {violated: "a:*"}, then: {challenge: 1m}}
        climb: {on: ip, count: 2, window: 10m, when: {violated: "b:*"}, then: step}
        """,
    "scores and shadows": """
        users: {on: ip, distinct: user, n: 2, window: 10m, then: {score: 30}}
        shade: {on: ip, count: 2, window: 10m, when: {violated: "a:*"}, then: step, shadow: true}
        raid: {on: ip, count: 3, window: 10m, when: {violated: ["*"]}, then: {score: 30}}
        """,
}


def policy_of(rules: str) -> Policy:
    return parse_policy(
        f"""
rules:{rules}
ladder: {{rungs: [warn, 5m, 1h], warn: 1m, jitter: 0}}
score: {{window: 1h, thresholds: [{{at: 20, then: {{challenge: 2m}}}}, {{at: 50, then: {{level: 5m}}}}]}}
shared_ip: {{established: 2, window: 1h}}
late_after: 3650d
"""
    )


@st.composite
def tense_campaigns(draw: st.DrawFn) -> list[Delivery]:
    """Events in the order of one partition: the broker's time never goes back, the events' own does."""
    now, found = START_MS, []
    backfilled = draw(st.sampled_from([0, 0, 86_400_000]))
    for number in range(draw(st.integers(2, 12))):
        now += draw(st.sampled_from([1_000, 1_000, 15_000, 70_000, 310_000]))
        action = draw(st.sampled_from(["deny", "deny", "allow"]))
        event = Decision(
            v=1,
            id=f"e{number}",
            ts=now - draw(st.sampled_from([0, 0, 20_000, 59_000, 200_000])),
            source="edge/1",
            action=action,  # type: ignore[arg-type]
            reason=None if action == "allow" else "over_limit",
            violated=() if action == "allow" else (draw(st.sampled_from(["a:a", "a:b", "b:b"])),),
            subjects={"user": f"u{draw(st.integers(0, 2))}", "device": "d0", "ip": "203.0.113.7"},
            established=draw(st.sampled_from([None, True])),
            count=draw(st.sampled_from([1, 2])),
        )
        found.append(Delivery(event, now + backfilled, late=False))
    return found


def judged(policy: Policy, events: list[Delivery]) -> Oracle:
    """The oracle after one single pass."""
    oracle = Oracle(policy)
    for event, broker_ms, late in events:
        oracle.judge(event, broker_ms, late=late)
    return oracle


def check(oracle: Oracle, states: dict[str, SubjectState], penalties: list[Penalty]) -> None:
    """Ladders, counters and penalties are the oracle's."""
    assert told(penalties) == told(oracle.penalties)
    for subject, state in states.items():
        assert ladder_of_engine(state) in ({}, ladder_of_oracle(oracle.people[subject]))
        assert counted_by_engine(state) == counted_by_oracle(oracle, subject)


@pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES)
@usual
@given(events=tense_campaigns(), data=st.data())
def test_dying_again_and_again_equals_one_pass(rules: str, events: list[Delivery], data: st.DataObject) -> None:
    """Whatever is delivered again after whichever crash: ladders, penalties, counters are the oracle's single pass."""
    policy = policy_of(rules)
    oracle = judged(policy, events)
    drive = Drive(policy)
    done = 0
    while done < len(events):
        start = data.draw(st.integers(max(0, done - 8), done), label="committed")
        done = data.draw(st.integers(done + 1, len(events)), label="stepped")
        drive.states = {name: copy_state(state) for name, state in drive.states.items()}
        for event, broker_ms, late in events[start:done]:
            drive.judge(event, broker_ms, late=late)
    check(oracle, drive.states, drive.penalties)


class Life(NamedTuple):
    """What becomes of one worker: how far behind the last commit it begins, how it cuts its input, when it dies."""

    behind: int
    steps: int
    run: int
    slice: int
    acked: int


lives = st.builds(
    Life, st.integers(0, 8), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 4)
)  # fmt: skip


@pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES)
@usual
@given(events=tense_campaigns(), short=st.lists(lives, max_size=4), last=lives)
def test_workers_dying_again_and_again_equal_one_pass(
    rules: str, events: list[Delivery], short: list[Life], last: Life
) -> None:
    """Workers that forget subjects all the time, and die with writes and news under way, equal the single pass too."""
    policy, keys, sender = policy_of(rules), MemoryKeys(), RecordingSender()
    clock = Clock(START_MS)  # one for all lives: a sweep looks for what was written before now

    async def live() -> None:
        committed = 0
        for life in [*short, last]:
            rig = Rig(policy=policy, keys=keys, sender=sender, clock=clock, subjects=2, slice=life.slice)
            start = max(0, committed - life.behind)
            done = len(events) if life is last else min(len(events), start + life.steps)
            runs = [events[at : min(at + life.run, done)] for at in range(start, done, life.run)]
            async with rig.running():
                for run in runs:
                    await take(rig, run)
                if life is last:
                    await rig.settled()
                    await wait_until(lambda: not keys.index, what="outboxes swept")
                else:
                    acked = min(life.acked, len(runs))
                    await wait_until(lambda rig=rig, acked=acked: len(rig.acked) >= acked)  # type: ignore[misc]
            committed = max(committed, start + sum(map(len, runs[: len(rig.acked)])))

    asyncio.run(live())
    states = {
        name.removesuffix(STATE).removeprefix(PREFIX): decode_state(value)
        for name, (value, _) in keys.values.items()
        if name.endswith(STATE)
    }
    first = {(one.subject, one.id): one for one in reversed(sender.penalties())}
    check(judged(policy, events), states, [*reversed(first.values())])


async def take(rig: Rig, run: list[Delivery]) -> None:
    """Have the worker step a run; its records have the broker's times of the deliveries."""
    rig.runs += 1
    number = rig.runs
    records = [Raw(offset, one.broker_ms, encode(one.event)) for offset, one in enumerate(run)]
    rig.clock.ms = max(rig.clock.ms, run[-1].broker_ms)
    await rig.worker.take(Run(TOPICS.decisions, 0, records, lambda: rig.acked.append(number)))
