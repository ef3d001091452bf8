"""Recorded events told again: every scenario's penalties are found again, and every decision has its verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from penaltybox.contracts.events import Command, Decision, Penalty
from penaltybox.contracts.policy_file import default_policy_path, load_policy, parse_policy
from penaltybox.processors.engine import Engine, Handling
from penaltybox.processors.remedies import command_of
from penaltybox.processors.retelling.recorded import Recorded, state_after
from penaltybox.processors.retelling.story import Engines, Story, differences, tell
from penaltybox.processors.state import SubjectState
from tests.oracle.scenario import read_scenario
from tests.processors.engine_driver import Drive

if TYPE_CHECKING:
    from tests.oracle.scenario import Scenario

FOLDERS = sorted(path.parent for path in (Path(__file__).parent.parent / "scenarios").glob("*/policy.yaml"))
SWITCHING = {folder.name for folder in FOLDERS if len(list(folder.glob("*.yaml"))) > 1}
"""Scenarios in which the policy changes: a story is told under one."""
OTHER_ORDER = {"out_of_order"}
"""Scenarios in which live saw events in another order than the broker's: there the two may differ, and say so."""


def retold(scenario: Scenario) -> tuple[Drive, dict[str, Story]]:
    """What live did with a scenario, and the story of each of its subjects from the records alone."""
    policy = scenario.deliveries[0].policy
    drive = Drive(policy)
    events: dict[str, list[Recorded]] = {}
    order = 0
    for delivery in scenario.deliveries:
        drive.judge(delivery.event, delivery.broker_ms, late=delivery.late)
        event = delivery.event
        if isinstance(event, Command):
            continue
        order += 1
        for name, value in event.subjects.items():
            subject = drive.engine.canonicaliser.subject(name, value)
            events.setdefault(subject, []).append(Recorded(event, delivery.broker_ms, 0, order))
    stories = {}
    for subject in sorted(drive.states.keys() | events.keys()):
        mine = [penalty for penalty in drive.penalties if penalty.subject == subject]
        if subject in events or "+" not in subject:
            engine = Engine(policy)
            stories[subject] = tell(engine, SubjectState.fresh(subject), events.get(subject, []), mine)
    return drive, stories


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_recorded_penalty_is_told(folder: Path) -> None:
    """No recorded penalty is left out, none is told twice, and each decision has a verdict with a reason."""
    drive, stories = retold(read_scenario(folder))
    for subject, story in stories.items():
        told = Counter(step.penalty.id for moment in story.moments for step in moment.steps if step.told != "rerun")
        assert told == Counter(penalty.id for penalty in drive.penalties if penalty.subject == subject)
        assert all(moment.why or moment.steps for moment in story.moments)


@pytest.mark.parametrize(
    "folder",
    [one for one in FOLDERS if one.name not in SWITCHING | OTHER_ORDER],
    ids=lambda folder: folder.name,
)
def test_the_rerun_agrees_with_live(folder: Path) -> None:
    """With the events in the order in which live saw them, the re-run ends where live ended, penalty by penalty."""
    drive, stories = retold(read_scenario(folder))
    for subject, story in stories.items():
        assert differences(story, drive.states.get(subject, SubjectState.fresh(subject)), 0) == []


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("suppressed_while_denied", "suppressed"),
        ("duplicates", "known"),
        ("duplicates", "history"),
        ("allowlist", "listed"),
        ("shared_ip", "evidence"),
        ("by_hand", "grace"),
        ("by_hand", "hand"),
        ("challenge_asked_once", "challenged"),
        ("challenge_passed", "lift"),
        ("trusted", "trust"),
        ("window_edge", "counted"),
        ("climb", "trigger"),
        ("limiter_outage", "unseen"),
        ("blocked_office", "unseen"),
    ],
)
def test_verdicts(name: str, verdict: str) -> None:
    """A scenario that is about something has a decision with that verdict."""
    folder = next(one for one in FOLDERS if one.name == name)
    _, stories = retold(read_scenario(folder))
    assert verdict in {moment.verdict for story in stories.values() for moment in story.moments}


DEFAULT = load_policy(default_policy_path())
AT_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def claim(number: int, at_ms: int, user: str) -> Recorded:
    """An allowed claim of a user on device d."""
    return Recorded(
        Decision(
            v=1,
            id=f"c{number}",
            ts=at_ms,
            source="t/1",
            scenario="coupon_claim",
            action="allow",
            subjects={"user": user, "device": "d"},
        ),
        at_ms if number != LATE else AT_MS + HOUR_MS,
        0,
        number,
    )


LATE = 99


def test_one_that_comes_after_its_window_is_told_so() -> None:
    """A value whose time is out of the window when it comes counts nowhere, and the delay is told."""
    events = [claim(1, AT_MS + HOUR_MS - 1, "ann"), claim(LATE, AT_MS, "ben")]
    story = tell(Engine(DEFAULT), SubjectState.fresh("device:d"), events, [])
    assert [moment.verdict for moment in story.moments] == ["counted", "too_late"]
    assert story.moments[1].came_after_ms == HOUR_MS
    assert [(rule.rule, rule.seen, rule.threshold) for rule in story.moments[0].rules] == [
        ("device_farm", 1, 4),
    ]


def recorded_block(rung: str = "1h", ts: int = AT_MS) -> Penalty:
    """A recorded deny by a rule."""
    return Penalty(
        id="p1",
        ts=ts,
        subject="device:d",
        from_="none",
        to=rung,
        to_ms=HOUR_MS,
        action="deny",
        until=ts + HOUR_MS,
        rule="device_farm",
        policy_version="x",
        trigger_id="elsewhere",
    )


def test_the_record_wins_where_the_rerun_differs() -> None:
    """A recorded block that the re-run cannot make, for its decisions are gone, suppresses what comes in it."""
    events = [claim(1, AT_MS + 1000, "ann")]
    story = tell(Engine(DEFAULT), SubjectState.fresh("device:d"), events, [recorded_block()])
    assert [moment.verdict for moment in story.moments] == ["recorded", "suppressed"]
    assert story.moments[1].until == AT_MS + HOUR_MS
    assert "by device_farm" in story.moments[1].why
    said = differences(story, story.state, AT_MS + 2000)
    assert said == ["deny none → 1h by device_farm: recorded, but the re-run did not make it"]


def test_the_rerun_alone_is_told_so() -> None:
    """A step that nothing records yet is marked as the re-run's; live state without it differs."""
    events = [claim(n, AT_MS + n, f"u{n}") for n in range(4)]
    story = tell(Engine(DEFAULT), SubjectState.fresh("device:d"), events, [])
    (step,) = story.moments[3].steps
    assert (step.told, step.penalty.to) == ("rerun", "1h")
    assert differences(story, None, AT_MS)[-1].startswith("nothing is stored in Redis")
    said = differences(story, SubjectState.fresh("device:d"), AT_MS + 10)
    assert said[1:] == ["last rung: none live, 1h in the re-run", "block: none live, 1h by device_farm in the re-run"]


def test_a_range_begins_where_earlier_penalties_left_off() -> None:
    """The prior of a step in the range is the rung of the penalty before it."""
    state = state_after("device:d", [recorded_block()], DEFAULT)
    events = [claim(n, AT_MS + HOUR_MS + n + 1, f"u{n}") for n in range(4)]
    (step,) = tell(Engine(DEFAULT), state, events, []).moments[3].steps
    assert (step.penalty.from_, step.penalty.to) == ("1h", "1h")


def test_a_command_is_read_back_from_its_record() -> None:
    """Each step by hand, given again from its penalty, writes that penalty again."""
    policy = DEFAULT
    commands = [
        Command(id="1", ts=AT_MS, verb="ban", subject="user:u", actor="a", reason="r", level="1h"),
        Command(id="2", ts=AT_MS + 1, verb="ban", subject="user:u", actor="a", reason="r", for_ms=60_000),
        Command(id="3", ts=AT_MS + 2, verb="unban", subject="user:u", actor="a", reason="r", grace_ms=HOUR_MS),
        Command(id="4", ts=AT_MS + 3, verb="ban", subject="user:u", actor="a", reason="r"),
        Command(id="5", ts=AT_MS + 4, verb="unban", subject="user:u", actor="a", reason="r", keep_level=True),
        Command(id="6", ts=AT_MS + 5, verb="pardon", subject="user:u", actor="a", reason="r"),
        Command(id="7", ts=AT_MS + 6, verb="grant", subject="user:u", actor="a", reason="r", points=5),
    ]
    drive = Drive(policy)
    for command in commands:
        drive.judge(command, command.ts)
    assert [command_of(penalty) is not None for penalty in drive.penalties] == [True] * len(commands)
    story = tell(Engine(policy), SubjectState.fresh("user:u"), [], drive.penalties)
    assert [step.told for moment in story.moments for step in moment.steps] == ["both"] * len(commands)
    assert differences(story, drive.states["user:u"], AT_MS + 7) == []


def test_the_record_tells_the_order_of_several_partitions() -> None:
    """Live saw the second of four users last, because it came through another partition: the re-run does so, too."""
    events = [claim(n, AT_MS + n, f"u{n}") for n in range(4)]
    events[1] = events[1]._replace(partition=1)
    drive = Drive(DEFAULT)
    for one in (events[0], events[2], events[3], events[1]):
        assert isinstance(one.record, Decision)
        drive.judge(one.record, one.broker_ms)
    (penalty,) = [one for one in drive.penalties if one.subject == "device:d"]
    assert penalty.trigger_id == "c1"
    story = tell(Engine(DEFAULT), SubjectState.fresh("device:d"), events, [penalty])
    assert [moment.id for moment in story.moments] == ["c0", "c2", "c3", "c1"]
    assert differences(story, drive.states["device:d"], AT_MS + 10) == []


def test_one_partition_keeps_its_order() -> None:
    """What came after a trigger in its own partition is never told before it."""
    events = [claim(n, AT_MS + n, f"u{n}") for n in range(5)]
    recorded = msgspec.structs.replace(recorded_block(ts=AT_MS + 1), trigger_id="c1")
    story = tell(Engine(DEFAULT), SubjectState.fresh("device:d"), events, [recorded])
    assert [moment.id for moment in story.moments] == ["c0", "c1", "c2", "c3", "c4"]
    assert [step.told for moment in story.moments for step in moment.steps] == ["recorded"]


def refused(number: int, at_ms: int) -> Decision:
    return Decision(
        v=1, id=f"r{number}", ts=at_ms, source="s", scenario="c", action="deny", reason="over_limit",
        violated=("user:daily",), subjects={"user": "u"},
    )  # fmt: skip


@pytest.mark.parametrize("switches_known", [True, False])
def test_a_policy_switched_in_mid_stream(switches_known: bool) -> None:
    """Each event is told under the policy that judged it: by the time of the switch, or by what a penalty records."""
    strict, gentle = (
        Engine(parse_policy(f"rules: {{a: {{on: user, count: {n}, window: 1h, then: {{level: 5m}}}}}}")) for n in (2, 4)
    )
    live, events, penalties = SubjectState.fresh("user:u"), list[Recorded](), list[Penalty]()
    switch_ms = AT_MS + 8 * 60_000
    for number in range(12):
        at_ms = AT_MS + number * 400_000 if number > 1 else AT_MS + number * 1000
        engine = strict if at_ms < switch_ms else gentle
        decision = refused(number, at_ms)
        for _, plan in engine.touches(decision):
            engine.apply(live, plan, decision, Handling(at_ms))
        penalties += live.outbox
        live.outbox = []
        events.append(Recorded(decision, at_ms, 0, number))
    assert {one.policy_version for one in penalties} == {strict.version, gentle.version}
    switches = [(0, strict.version), (switch_ms, gentle.version)]
    engines = Engines(gentle, switches if switches_known else (), {strict.version: strict})
    story = tell(engines, SubjectState.fresh("user:u"), events, penalties)
    if switches_known:
        assert differences(story, live, 0) == []
        assert story.policies == [(AT_MS, strict.version), (events[2].broker_ms, gentle.version)]
    told = [step for moment in story.moments for step in moment.steps]
    assert {step.penalty.policy_version for step in told} == {strict.version, gentle.version}
    assert differences(tell(gentle, SubjectState.fresh("user:u"), events, penalties), live, 0) != []
