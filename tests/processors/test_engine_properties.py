"""What holds whatever happens: one rung at a time, always released, duplicates and redelivery are harmless."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from penaltybox.contracts.events import Decision
from penaltybox.contracts.policy_file import policy_from
from penaltybox.processors.state import decode_state, encode_state
from tests.processors.campaigns import RUNGS, START_MS, campaigns, policies, usual
from tests.processors.engine_driver import NONCE, Drive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.state import SubjectState
    from tests.processors.campaigns import Delivery

LONGEST_MS = 2 * 3_600_000


def run(policy: Policy, events: Iterable[Delivery], drive: Drive | None = None) -> Drive:
    drive = drive or Drive(policy)
    for event, broker_ms, late in events:
        drive.judge(event, broker_ms, late=late)
    return drive


def known(drive: Drive) -> dict[str, SubjectState]:
    """States that say anything: an event that changed nothing may have left a fresh one behind."""
    return {
        subject: state
        for subject, state in drive.states.items()
        if encode_state(state, NONCE) != encode_state(type(state).fresh(subject), NONCE)
    }


steps_only = policies().map(
    lambda policy: msgspec.structs.replace(
        policy,
        rules=tuple(
            rule if rule.then.level is None else msgspec.structs.replace(rule, then=type(rule.then)(step=True))
            for rule in policy.rules
        ),
        score=msgspec.structs.replace(policy.score, thresholds=policy.score.thresholds[:1]),
    )
)


@usual
@given(policy=steps_only, events=campaigns(outcomes=False))
def test_steps_never_skip_a_rung_upward(policy: Policy, events: list[Delivery]) -> None:
    """Rules that say `step` take a subject one rung up at a time, each ladder from where it stands."""
    order = ["none", *RUNGS]
    for penalty in run(policy, events).penalties:
        assert order.index(penalty.to) <= order.index(penalty.from_) + 1


@usual
@given(policy=policies(), events=campaigns())
def test_every_penalty_but_permanent_releases(policy: Policy, events: list[Delivery]) -> None:
    """Every deny and challenge has an end within its rung's duration and jitter; only `permanent` denials have none."""
    for penalty in run(policy, events).penalties:
        if penalty.until is None:
            assert (penalty.to, penalty.action) == ("permanent", "deny")
            assert not penalty.late
        else:
            assert penalty.ts <= penalty.until <= penalty.ts + LONGEST_MS


@usual
@given(policy=policies(), events=campaigns(), data=st.data())
def test_a_stream_split_anywhere_equals_the_whole(policy: Policy, events: list[Delivery], data: st.DataObject) -> None:
    """A worker that takes over with the stored states goes on exactly where the other stopped."""
    cut = data.draw(st.integers(0, len(events)))
    whole = run(policy, events)
    first = run(policy, events[:cut])
    second = Drive(policy)
    second.states = {name: decode_state(encode_state(state, NONCE)) for name, state in first.states.items()}
    run(policy, events[cut:], second)
    assert first.penalties + second.penalties == whole.penalties
    assert encoded(second) == encoded(whole)


def encoded(drive: Drive) -> dict[str, bytes]:
    return {name: encode_state(state, NONCE) for name, state in known(drive).items()}


@usual
@given(policy=policies(), events=campaigns(outcomes=False), data=st.data())
def test_redelivery_of_any_suffix_changes_nothing(policy: Policy, events: list[Delivery], data: st.DataObject) -> None:
    """A crash after the write and before the commit redelivers events: not one counts twice."""
    start = data.draw(st.integers(0, len(events)))
    once = run(policy, events)
    twice = run(policy, [*events, *events[start:]])
    assert twice.penalties == once.penalties
    assert known(twice) == known(once)


@usual
@given(policy=policies(), events=campaigns(outcomes=False), data=st.data())
def test_a_duplicate_anywhere_later_changes_nothing(
    policy: Policy, events: list[Delivery], data: st.DataObject
) -> None:
    """Whoever publishes or ingests a record twice, however much later, punishes nobody more."""
    repeated = list(events)
    for _ in range(data.draw(st.integers(1, 5))):
        first = data.draw(st.integers(0, len(repeated) - 1))
        place = data.draw(st.integers(first + 1, len(repeated)))
        repeated.insert(place, repeated[first])
    once, often = run(policy, events), run(policy, repeated)
    assert often.penalties == once.penalties
    assert known(often) == known(once)


@usual
@given(policy=policies(), events=campaigns())
def test_a_state_stays_bounded(policy: Policy, events: list[Delivery]) -> None:
    """However much a subject does, its state holds no more than its policy's numbers ask for."""
    n = {rule.key: rule.n for rule in policy.rules}
    for state in run(policy, events).states.values():
        for track in (state.real, *state.shadows.values()):
            assert all(len(counter.ids) <= n[key] for key, counter in track.counters.items())
            assert all(len(values) <= n[key] for key, values in track.sets.items())
            assert all(0 < len(values) <= 64 for values in track.used.values())
            assert len(track.scores) <= 64
        assert len(state.trust) <= 32
        assert policy.shared_ip is None or len(state.shared) <= policy.shared_ip.established


@usual
@given(
    kinds=st.lists(st.sampled_from(["count", "distinct"]), min_size=1, max_size=2, unique=True),
    offsets=st.lists(st.integers(0, 59_999), min_size=4, max_size=4, unique=True),
    data=st.data(),
)
def test_order_within_lateness_does_not_matter(kinds: list[str], offsets: list[int], data: st.DataObject) -> None:
    """The same four denials in whatever order they come make the same step: same rung, same fence, same end."""
    needs = {"count": {"count": 4}, "distinct": {"distinct": "user", "n": 4}}
    rules = {kind: {"on": "device", "window": "10m", "then": "step", **needs[kind]} for kind in kinds}
    policy = policy_from({"rules": rules})
    broker_ms = START_MS + 60_000
    events = [denial(number, START_MS + offset) for number, offset in enumerate(offsets)]
    shuffled = data.draw(st.permutations(events))
    found = []
    for order in (events, shuffled):
        drive = Drive(policy)
        for event in order:
            drive.judge(event, broker_ms)
        real = drive.states["device:d0"].real
        found.append((real.rung, real.end, real.at, real.counters, real.sets))
    if "count" in kinds:
        assert found[0] == found[1]
    else:  # a sighting's exact time is not kept, so only the trigger's is known; the fence is the granule's end
        assert found[0][0] == found[1][0]
        assert abs((found[0][1] or 0) - (found[1][1] or 0)) < 60_000


def denial(number: int, ts: int) -> Decision:
    return Decision(
        v=1,
        id=f"e{number}",
        ts=ts,
        source="edge/1",
        action="deny",
        reason="over_limit",
        violated=("device:burst",),
        subjects={"device": "d0", "user": f"u{number}"},
    )


@usual
@given(events=campaigns(most=12, alone=True, outcomes=False), data=st.data())
def test_interleaving_of_subjects_does_not_matter(events: list[Delivery], data: st.DataObject) -> None:
    """Only the order of one subject's own events counts: subjects may be worked through in any interleaving."""
    policy = data.draw(policies())
    parts = [campaign_of(events, "left"), campaign_of(events, "right")]
    whole = run(policy, itertools.chain(*parts))
    mixed = []
    while any(parts):
        part = data.draw(st.sampled_from([part for part in parts if part]))
        mixed.append(part.pop(0))
    assume(mixed)
    assert encoded(run(policy, mixed)) == encoded(whole)


def campaign_of(events: list[Delivery], who: str) -> list[Delivery]:
    """The same events for other people, at other addresses."""
    found = []
    for event, broker_ms, late in events:
        subjects = {dimension: f"{who}-{value}" for dimension, value in event.subjects.items() if dimension != "ip"}
        found.append(
            type(events[0])(msgspec.structs.replace(event, id=f"{who}-{event.id}", subjects=subjects), broker_ms, late)
        )
    return found
