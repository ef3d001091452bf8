"""The loop of a replay: the live engine's penalties, in order, the same twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision, Outcome
from tests.processors.replay.traffic import GENTLE, HOUSEHOLDS, T0, Recorder, households, plainly, run, write

if TYPE_CHECKING:
    from pathlib import Path


def test_the_penalties_are_the_engines(tmp_path: Path) -> None:
    """The fast loop writes the very records that a plain loop over the engine writes, in the same order."""
    events = households()
    recorder = Recorder()
    result = run(write(tmp_path / "d.jsonl", events), observer=recorder)
    assert recorder.penalties["candidate"] == plainly(events, HOUSEHOLDS)
    assert result.decisions == len(events)
    assert result.candidate.penalties == len(recorder.penalties["candidate"]) > 100
    assert result.candidate.shadow > 0


def test_two_runs_give_the_same_hash(tmp_path: Path) -> None:
    """The hash is the same twice, with and without an observer or a baseline, and another for another policy."""
    path = write(tmp_path / "d.jsonl", households())
    first = run(path)
    assert run(path).result_hash == first.result_hash
    assert run(path, observer=Recorder()).result_hash == first.result_hash
    compared = run(path, GENTLE, baseline=HOUSEHOLDS)
    assert compared.baseline is not None
    assert compared.baseline.result_hash == first.result_hash
    assert compared.result_hash == run(path, GENTLE).result_hash != first.result_hash


def test_an_observer_is_told_in_order(tmp_path: Path) -> None:
    """Each decision is told before the penalties that it led to, on either side, and which block it met."""
    recorder = Recorder()
    result = run(write(tmp_path / "d.jsonl", households()), GENTLE, observer=recorder, baseline=HOUSEHOLDS)
    last = ""
    for kind, event, *_ in recorder.told:
        if kind == "decision":
            last = event
        else:
            assert event == last
    stopped = [one[2] for one in recorder.told if one[0] == "decision" and one[2]]
    assert result.baseline is not None
    assert sum("baseline" in one for one in stopped) == result.baseline.stopped > 0
    assert sum("candidate" in one for one in stopped) == result.candidate.stopped > 0


def test_stopped_decisions_met_a_block(tmp_path: Path) -> None:
    """A decision is stopped by a deny of one of its subjects that began before it and ends after it."""
    events = {event.id: event for event in households()}
    recorder = Recorder()
    run(write(tmp_path / "d.jsonl", events.values()), observer=recorder)
    penalties = {penalty.id: penalty for penalty in recorder.penalties["candidate"]}
    stopped = [(events[one[1]], one[2]["candidate"]) for one in recorder.told if one[0] == "decision" and one[2]]
    assert stopped
    for decision, hold in stopped:
        penalty = penalties[hold.penalty]
        assert penalty.action == "deny"
        assert not penalty.shadow
        assert penalty.ts <= decision.ts
        assert hold.until is None or decision.ts < hold.until


def test_the_warm_up_is_left_out(tmp_path: Path) -> None:
    """What led to a penalty may lie before --from; the penalties of the warm-up themselves do not count."""
    path = write(tmp_path / "d.jsonl", households())
    everything = Recorder()
    run(path, observer=everything)
    middle = T0 - 2 * 3_600_000
    recorder = Recorder()
    result = run(path, observer=recorder, from_ms=middle)
    counted = [one for one in recorder.told if one[-1]]
    assert 0 < result.warm_up_decisions < result.warm_up_decisions + result.decisions == 3000
    assert result.decisions == sum(one[0] == "decision" for one in counted)
    assert result.candidate.penalties == sum(one[0] == "penalty" for one in counted)
    assert recorder.penalties == everything.penalties
    cold = run(path, from_ms=middle, warm_up_ms=1)
    assert cold.warm_up_decisions == 0
    assert cold.decisions == result.decisions
    assert cold.result_hash != result.result_hash
    assert any("Warm-up from" in remark for remark in result.remarks)


def test_outcomes_lift(tmp_path: Path) -> None:
    """Outcomes stand among the decisions of a file, earn trust and lift challenges, and are told."""
    events: list[Decision | Outcome] = list(households())
    user = plainly(events, HOUSEHOLDS)
    lifted = next(one for one in user if one.action == "challenge" and one.subject.startswith("user:"))
    at = next(number for number, event in enumerate(events) if event.id == lifted.trigger_id)
    passed = Outcome(
        v=1, id="o1", ts=lifted.ts + 1, label="challenge_passed", subjects={"user": lifted.subject.partition(":")[2]}
    )
    events.insert(at + 1, passed)
    recorder = Recorder()
    result = run(write(tmp_path / "d.jsonl", events), observer=recorder)
    assert result.outcomes == 1
    assert ("outcome", "o1", True) in recorder.told
    assert recorder.penalties["candidate"] == plainly(events, HOUSEHOLDS)
    assert result.candidate.by_rung["lift"] == 1


def test_pacing(tmp_path: Path) -> None:
    """`speed` changes how long it takes, not what comes out."""
    path = write(tmp_path / "d.jsonl", households(600))
    paced = run(path, speed=20_000)
    assert paced.result_hash == run(path).result_hash
    assert paced.seconds > 0.05


def test_a_range_without_records(tmp_path: Path) -> None:
    """Nothing in the range, or an empty range, is a sentence."""
    path = write(tmp_path / "d.jsonl", households(600))
    with pytest.raises(ConfigurationError, match=r"nothing lies between --from and --to, only 600 decisions before"):
        run(path, from_ms=T0)
    with pytest.raises(
        ConfigurationError, match=r"nothing to replay between .*Its records are from 2025-12-22T\d\d:.*Z to 2025-"
    ):
        run(path, to_ms=1000)
    with pytest.raises(ConfigurationError, match=r"there is nothing to replay\. Name another --source"):
        run(write(tmp_path / "empty.jsonl", ()))
    with pytest.raises(ConfigurationError, match="--to must be later than --from"):
        run(path, from_ms=T0, to_ms=T0)


def test_a_blocklist_denial_is_unknown_demand(tmp_path: Path) -> None:
    """Denials that the recorded blocklist gave are counted apart, each as many times as it stands for."""
    events = households(600)
    listed = [event for event in events if event.reason == "blocklist"]
    events[-1] = msgspec.structs.replace(listed[0], id="many", ts=events[-1].ts, count=41)
    expected = sum(event.count for event in events if event.reason == "blocklist")
    assert run(write(tmp_path / "d.jsonl", events)).recorded_blocklist == expected > 41
