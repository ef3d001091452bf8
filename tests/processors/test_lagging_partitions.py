"""A subject's decisions come through several partitions, each with its own broker's time and its own last commit.

After a crash each partition is delivered again from its commit, in any order with the others, on states that are ahead.
That must equal one pass over the decisions in the order in which they came first.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.events import Decision
from penaltybox.processors.engine import Handling
from penaltybox.processors.retelling.verdicts import before, marks_on, verdict_of
from penaltybox.processors.state import copy_state, decode_state, encode_state
from tests.processors.campaigns import START_MS, Delivery, usual
from tests.processors.engine_driver import Drive
from tests.processors.test_redelivery import check, judged, policy_of

PARTITIONS = 3
POLICIES = {
    "steps": """
        users: {on: device, distinct: user, n: 3, window: 10m, then: step}
        """,
    "steps of several rules": """
        users: {on: device, distinct: user, n: 2, window: 2m, then: step}
        raid: {on: device, count: 2, window: 10m, when: {violated: ["*"], reason: over_limit}, then: step}
        """,
    "steps and challenges": """
        users: {on: ip, distinct: user, n: 3, window: 1h, then: step}
        pair: {on: ip, distinct: user, n: 2, window: 10m, when: {action: allow}, then: {challenge: 1m}}
        raid: {on: ip, count: 3, window: 10m, when: {violated: ["*"]}, then: step}
        """,
    "shadows": """
        shade: {on: device, distinct: user, n: 2, window: 10m, then: step, shadow: true}
        raid: {on: device, count: 2, window: 10m, when: {violated: ["*"]}, then: step}
        """,
}


def sighting(partition: int, number: int, ts: int, user: int, *, denied: bool = False) -> Decision:
    return Decision(
        v=1,
        id=f"p{partition}-{number}",
        ts=ts,
        source="edge/1",
        action="deny" if denied else "allow",
        reason="over_limit" if denied else None,
        violated=("device:burst",) if denied else (),
        subjects={"user": f"u{user}", "device": "d0", "ip": "203.0.113.7"},
    )


@st.composite
def partitions(draw: st.DrawFn) -> list[list[Delivery]]:
    """What each partition holds, within less than the policy's lateness: any of them may lag behind any other."""
    found = []
    for partition in range(PARTITIONS):
        now, records = START_MS, []
        for number in range(draw(st.integers(1, 5))):
            now += draw(st.sampled_from([0, 60, 1_000, 9_000]))
            ts = now - draw(st.sampled_from([0, 0, 0, 30, 5_000]))
            event = sighting(partition, number, ts, draw(st.integers(0, 3)), denied=draw(st.booleans()))
            records.append(Delivery(event, now, late=False))
        found.append(records)
    return found


@pytest.mark.parametrize("rules", POLICIES.values(), ids=POLICIES)
@usual
@given(logs=partitions(), data=st.data())
def test_a_crash_equals_none_whichever_partition_lags(
    rules: str, logs: list[list[Delivery]], data: st.DataObject
) -> None:
    """Ladders, penalties and counters are those of the first deliveries, whatever is delivered again and when."""
    policy = policy_of(rules)
    drive, first = Drive(policy, stored=data.draw(st.booleans(), label="stored")), dict[str, Delivery]()
    at, crashes = [0] * PARTITIONS, 0
    while any(position < len(log) for position, log in zip(at, logs, strict=True)):
        if crashes < 3 and data.draw(st.integers(0, 3), label="crash if 0") == 0:
            crashes += 1
            at = [data.draw(st.integers(0, position), label="committed") for position in at]
        going = [one for one in range(PARTITIONS) if at[one] < len(logs[one])]
        one = data.draw(st.sampled_from(going), label="partition")
        delivery = logs[one][at[one]]
        at[one] += 1
        first.setdefault(delivery.event.id, delivery)
        drive.judge(delivery.event, delivery.broker_ms, late=delivery.late)
    check(judged(policy, [*first.values()]), drive.states, drive.penalties)


def warned(lag_ms: int, window: str = "10m") -> tuple[Drive, Delivery]:
    """A device that was warned because of three users, and the first user's record: it is not the latest."""
    drive = Drive(policy_of(POLICIES["steps"].replace("10m", window)))
    ahead = START_MS + 40_000
    records = [
        Delivery(sighting(0, 0, ahead, 0), ahead, late=False),
        Delivery(sighting(1, 0, ahead - lag_ms, 1), ahead - lag_ms, late=False),
        Delivery(sighting(1, 1, ahead - lag_ms, 2), ahead - lag_ms, late=False),
    ]
    for one in records:
        drive.judge(one.event, one.broker_ms)
    assert [one.to for one in drive.penalties] == ["warn"]
    return drive, records[0]


@pytest.mark.parametrize("lag_ms", [1, 60, 1_000, 30_000])
def test_what_a_warning_used_does_not_count_for_the_next_step(lag_ms: int) -> None:
    """The record that lies behind the fence of a lagging partition's step changes nothing when it comes again."""
    drive, first = warned(lag_ms)
    before = copy_state(drive.states["device:d0"])
    drive.judge(first.event, first.broker_ms)
    assert drive.states["device:d0"] == before


@pytest.mark.parametrize(("window", "hidden_ms"), [("10m", 18_750), ("1d", 60_000)])
def test_what_a_warning_used_counts_again_soon(window: str, hidden_ms: int) -> None:
    """From the value's next granule on, and in any case once no partition is expected to lag so far."""
    drive, first = warned(1_000, window)
    granule_ms = 86_400_000 // 32 if window == "1d" else 18_750
    ends = min(START_MS + 39_000 + hidden_ms + 1, first.event.ts - first.event.ts % granule_ms + granule_ms)
    for at, counts in ((ends - 1, False), (ends, True)):
        drive.judge(sighting(0, at, at, 0), at)
        assert bool(drive.states["device:d0"].real.sets) is counts


def test_a_value_that_a_warning_did_not_use_counts_at_once() -> None:
    """A warning shields nobody else: three new users on the device are the next step."""
    drive, first = warned(1_000)
    for number, user in enumerate((3, 4, 5), 1):
        drive.judge(sighting(0, number, first.event.ts + number, user), first.broker_ms + number)
    assert [one.to for one in drive.penalties] == ["warn", "5m"]


def test_a_block_hides_what_it_used_and_nothing_is_remembered() -> None:
    """The state of a blocked subject is as small as ever."""
    drive = Drive(policy_of(POLICIES["steps"].replace("step", "{level: 5m}")))
    for user in range(3):
        drive.judge(sighting(0, user, START_MS, user), START_MS)
    real = drive.states["device:d0"].real
    assert real.deny is not None
    assert not real.used


def test_a_state_of_an_older_release_is_read() -> None:
    """It remembers nothing that a step has used; the rest is as it was."""
    drive, _ = warned(1_000)
    state = drive.states["device:d0"]
    fields = msgspec.msgpack.decode(encode_state(state, 1 << 33)[1:], strict=False)
    assert fields[3].pop() == state.real.used
    found = decode_state(b"\x01" + msgspec.msgpack.encode(fields))
    assert not found.real.used
    found.real.used = state.real.used
    assert found.real == state.real


def test_explain_says_that_what_was_used_is_known() -> None:
    """Delivered again it is no news, and not too late either."""
    drive, first = warned(1_000)
    state, event = drive.states["device:d0"], first.event
    assert isinstance(event, Decision)
    ((_, plan),) = drive.engine.touches(event)
    names = drive.engine.canonicaliser.names(event.subjects)
    was = before(state, plan, event, names)
    effect = drive.engine.apply(state, plan, event, Handling(first.broker_ms))
    assert verdict_of(state, plan, was, marks_on(state, plan, event, names), effect, event.ts) == ("known", None)
