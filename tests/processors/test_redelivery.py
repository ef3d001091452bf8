"""Workers die and begin again at the last commit, on states that are ahead of them: that must equal one single pass.

The subjects here are few and tense: holds begin, are softened, and give way to longer ones within seconds, while events
come out of order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.events import Decision
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.state import copy_state
from tests.oracle.judge import Oracle
from tests.processors.campaigns import START_MS, Delivery, usual
from tests.processors.engine_driver import Drive
from tests.processors.test_engine_against_oracle import ladder_of_engine, ladder_of_oracle, told
from tests.stack.arena import counted_by_engine, counted_by_oracle

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy

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


@pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES)
@usual
@given(events=tense_campaigns(), data=st.data())
def test_dying_again_and_again_equals_one_pass(rules: str, events: list[Delivery], data: st.DataObject) -> None:
    """Whatever is delivered again after whichever crash: ladders, penalties, counters are the oracle's single pass."""
    policy = policy_of(rules)
    oracle = Oracle(policy)
    for event, broker_ms, late in events:
        oracle.judge(event, broker_ms, late=late)
    drive = Drive(policy)
    done = 0
    while done < len(events):
        start = data.draw(st.integers(max(0, done - 8), done), label="committed")
        done = data.draw(st.integers(done + 1, len(events)), label="stepped")
        drive.states = {name: copy_state(state) for name, state in drive.states.items()}
        for event, broker_ms, late in events[start:done]:
            drive.judge(event, broker_ms, late=late)
    assert told(drive.penalties) == told(oracle.penalties)
    for subject, state in drive.states.items():
        assert ladder_of_engine(state) in ({}, ladder_of_oracle(oracle.people[subject]))
        assert counted_by_engine(state) == counted_by_oracle(oracle, subject)
