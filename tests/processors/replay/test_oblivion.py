"""A long record: subjects of which nothing can matter any more are forgotten, and nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.engine import Engine
from penaltybox.processors.replay import world
from penaltybox.processors.replay.world import Steady, World
from penaltybox.processors.state import SubjectState
from tests.processors.replay.traffic import Recorder, households, plainly, run, write
from tests.stack.households import POLICY

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.contracts.events import Decision

DAY = 86_400_000
SHORT = parse_policy(POLICY.replace("14d", "1d") + "trust: {ttl: 1d}\n")


def weeks() -> list[Decision]:
    """The same households ten times, five days apart; half of them have other names each time."""
    events = households(1200)
    found = []
    for number in range(10):
        for event in events:
            strange = int(event.id.partition("-")[0]) % 2
            subjects = {
                name: f"{value}-{number}" if strange and name != "ip" else value
                for name, value in event.subjects.items()
            }
            ts = event.ts + number * 5 * DAY
            found.append(msgspec.structs.replace(event, id=f"{number}/{event.id}", ts=ts, subjects=subjects))
    return found


def test_what_is_forgotten_did_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sweep after every slice the penalties are still those of an engine that forgets nobody."""
    swept: list[tuple[int, int]] = []
    sweep = World._sweep

    def counting(self: World, now_ms: int) -> None:
        before = len(self.states)
        sweep(self, now_ms)
        swept.append((before, len(self.states)))
        self._sweep_at = 0

    monkeypatch.setattr(world, "SWEEP_AT", 0)
    monkeypatch.setattr(World, "_sweep", counting)
    events = weeks()
    recorder = Recorder()
    run(write(tmp_path / "d.jsonl", events), SHORT, observer=recorder)
    assert recorder.penalties["candidate"] == plainly(events, SHORT)
    assert sum(before - after for before, after in swept) > 100
    assert any(one.evidence.get("forgiven") for one in recorder.penalties["candidate"])


@pytest.mark.parametrize("what", ["ladder", "grace"])
def test_who_is_remembered(what: str) -> None:
    """Who climbed a ladder is never forgotten; grace is, after its end."""
    one = World(Steady(Engine(SHORT)))
    state = one.states["user:u1"] = SubjectState.fresh("user:u1")
    if what == "ladder":
        state.real.rung, state.real.end = "warn", 1
    else:
        state.grace_until = 100 * DAY
    one._sweep(100 * DAY)
    assert "user:u1" in one.states
    one._sweep(200 * DAY)
    assert ("user:u1" in one.states) is (what == "ladder")
