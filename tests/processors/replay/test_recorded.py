"""What the topics tell of live workers: policies where they switched, steps by hand, what was late."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Command, Control, Penalty, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.subjects import Names
from penaltybox.processors.engine import Engine, Handling
from penaltybox.processors.remedies import command_of
from penaltybox.processors.replay.recorded import (
    Marker,
    Switching,
    _policy,
    last_version,
    read_controls,
    read_penalties,
)
from penaltybox.processors.state import SubjectState
from tests.processors.replay.traffic import GENTLE, HOUSEHOLDS, T0
from tests.stack.households import POLICY


def control(kind: Any, key: str, value: str) -> bytes:
    return encode(Control(id="c", ts=T0, key=key, kind=kind, value=value))


def marker(version: str, offset: int, partition: int = 0, topic: str = "d") -> Marker:
    return Marker(version=version, topic=topic, partition=partition, offset=offset)


def test_controls() -> None:
    """Versions and markers are read; what is no control, or of another kind, is passed over."""
    one = marker("v1", 7)
    raws = [
        control("policy", "policy:v1", '{"version":"v1","text":"x"}'),
        b"nonsense",
        control("pause", "pause", ""),
        control("policy_in_use", "policy_in_use:d:0:7", msgspec.json.encode(one).decode()),
        control("policy_in_use", "policy_in_use:d:0:8", "nonsense"),
    ]
    assert read_controls(raws) == ([one], {"v1": '{"version":"v1","text":"x"}'})


def test_the_version_in_the_end() -> None:
    """The last switch says what is in force, not the last partition that was told; without a switch that is all."""
    markers = [marker("old", 0), marker("new", 3, 1)]
    stored = {"old": "{}", "new": "{}"}
    assert last_version([b"nonsense"], markers, stored) == "new"
    raws = [control("policy", "policy", version) for version in ("new", "old")]
    assert last_version([*raws, control("pause", "policy", "paused")], markers, stored) == "old"
    assert last_version([*raws, control("policy", "policy", "not stored")], markers, stored) == "old"
    assert last_version([*raws, control("policy", "policy:newer", '{"version":"newer"}')], markers, stored) == "old"


def test_policies_of_both_forms() -> None:
    """A version is a file's text in a JSON object, or the policy's canonical form; anything else is a sentence."""
    version = HOUSEHOLDS.version
    assert _policy(version, msgspec.json.encode({"version": version, "text": POLICY}).decode()) == HOUSEHOLDS
    assert _policy(version, msgspec.json.encode(HOUSEHOLDS).decode()) == HOUSEHOLDS
    for value, sentence in (("{}", "cannot be read"), (None, "does not have it")):
        with pytest.raises(ConfigurationError, match=f"policy {version} .*{sentence}.* --baseline FILE"):
            _policy(version, value)


def versions(course: Switching, *entries: tuple[int, int]) -> list[str]:
    """The version in force for each (rank, offset), in the order given."""
    made: list[Any] = [(T0, rank, offset, None, Names(()), T0) for rank, offset in entries]
    return [engine.version for engine, run in course.runs(made) for _ in run]


def test_switches_by_partition() -> None:
    """Each partition switches at its own offset; before the first marker the first version is in force."""
    old, new = Engine(HOUSEHOLDS), Engine(GENTLE)
    engines = {old.version: old, new.version: new}
    markers = [
        marker(old.version, 10),
        marker(old.version, 0, 1),
        marker(new.version, 20),
        marker(new.version, 5, 1),
        marker(old.version, 3, 0, "gone"),
    ]
    course = Switching(engines, markers, lambda: [("d", 0), ("d", 1), ("o", 0)])
    o, n = old.version, new.version
    assert versions(course, (0, 5), (0, 19), (1, 4), (0, 20), (1, 5)) == [o, o, o, n, n]
    assert versions(course, (1, 4), (2, 0), (1, 6), (2, 1), (3, 0)) == [o, o, n, n, n]
    assert course.versions == [o, n]


def test_a_worker_that_went_back() -> None:
    """Records read again after a crash were stepped under the later policy: the later marker holds from its offset."""
    old, new = Engine(HOUSEHOLDS), Engine(GENTLE)
    engines = {old.version: old, new.version: new}
    markers = [marker(old.version, 0), marker(old.version, 30), marker(new.version, 20)]
    course = Switching(engines, markers, lambda: [("d", 0)])
    assert versions(course, (0, 19), (0, 20), (0, 40)) == [old.version, new.version, new.version]


BY_HAND = [
    Command(id="1", ts=T0, verb="ban", subject="user:u1", actor="ann", reason="fraud", level="1h"),
    Command(id="2", ts=T0 + 1, verb="ban", subject="user:u2", actor="ann", reason="fraud", for_ms=86_400_000),
    Command(id="3", ts=T0 + 2, verb="ban", subject="user:u1", actor="ann", reason="again"),
    Command(id="4", ts=T0 + 3, verb="unban", subject="user:u2", actor="ann", reason="mistake", grace_ms=3_600_000),
    Command(id="5", ts=T0 + 4, verb="pardon", subject="user:u1", actor="ann", reason="sorry"),
    Command(id="6", ts=T0 + 5, verb="unban", subject="user:u1", actor="ann", reason="sorry", keep_level=True),
    Command(id="7", ts=T0 + 6, verb="grant", subject="user:u3", actor="ann", reason="known", points=7),
]


def by_hand(commands: list[Command]) -> tuple[list[Penalty], dict[str, SubjectState]]:
    engine = Engine(parse_policy(POLICY.replace("jitter: 20", "jitter: 0")))
    states: dict[str, SubjectState] = {}
    written: list[Penalty] = []
    for command in commands:
        state = states.setdefault(command.subject, SubjectState.fresh(command.subject))
        engine.apply_command(state, command, Handling(command.ts))
        written += state.outbox
        state.outbox = []
    return written, states


def test_commands_from_their_penalties() -> None:
    """A command made again from its penalty writes the same penalty and leaves the same state."""
    written, states = by_hand(BY_HAND)
    again = [command_of(penalty) for penalty in written]
    assert len(again) == len(BY_HAND)
    assert by_hand([one for one in again if one is not None]) == (written, states)


def test_penalties() -> None:
    """Commands come by time and once though told twice; lateness is remembered; what cannot be repeated is told."""
    written, _ = by_hand(BY_HAND)
    late = msgspec.structs.replace(written[0], id="x", origin="rule", late=True, trigger_id="t9")
    strange = msgspec.structs.replace(written[0], id="y", trigger_id="z", evidence={"verb": "whip"})
    raws = [encode(one) for one in (*written[::-1], written[2], late, strange)]
    commands, ids, remarks = read_penalties([*raws, b"nonsense"])
    assert [command.id for _, command in commands] == [command.id for command in BY_HAND]
    assert [ms for ms, _ in commands] == [command.ts for command in BY_HAND]
    assert ids == {"t9"}
    assert remarks == ["1 steps by hand are of a kind that cannot be repeated; they are left out."]
