"""A replay in several processes: what one finds, whatever the source, the sides and the number."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.cli import replay_parts
from penaltybox.cli.replay_crew import Share, shares
from penaltybox.cli.replay_diff import make_diff
from penaltybox.cli.replay_job import Job
from penaltybox.cli.replay_parts import run_shared
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.events import Outcome
from penaltybox.contracts.policy_file import load_policy, parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.processors.replay.findings import report_of
from tests.processors.replay.traffic import GENTLE, HOUSEHOLDS, Recorder, households, write
from tests.stack.households import POLICY

if TYPE_CHECKING:
    from penaltybox.processors.replay.loop import Result
    from penaltybox.processors.replay.report import Report

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "data" / "apache_access.log"
LIMITS = "limits: {login: {user: [{name: daily, limit: 2, window: 1d}], ip: [{name: soft, limit: 9, window: 1h}]}}\n"
LIMITED = parse_policy(LIMITS + POLICY)
pytestmark = pytest.mark.timeout(300)


def run(job: Job, processes: int, observer: Any = None) -> Result:
    return asyncio.run(run_shared(msgspec.structs.replace(job, processes=processes), observer=observer))


def compared(job: Job, processes: int) -> tuple[Result, Report]:
    diff = make_diff(job)
    assert diff is not None
    result = run(job, processes, diff.comparison)
    return result, report_of(diff.comparison)


def plain(result: Result) -> Result:
    """Without what may differ: the time it took, and how it was done."""
    remarks = [one for one in result.remarks if not one.startswith(("Shared out", "In one process"))]
    return msgspec.structs.replace(result, seconds=0.0, processes=1, remarks=remarks)


@pytest.fixture
def record(tmp_path: Path) -> str:
    """A file of decisions with outcomes between them."""
    events: list[Any] = list(households())
    for number in range(0, 2900, 97):
        user = events[number].subjects.get("user") if not isinstance(events[number], Outcome) else None
        if user is not None:
            label = ("payment_ok", "confirmed_abuse", "challenge_passed")[number % 3]
            subjects = {"user": user}
            ts = events[number].ts
            outcome = Outcome(v=1, id=f"o{number}", ts=ts, label=label, subjects=subjects)  # type: ignore[arg-type]
            events.insert(number + 90, outcome)
    return str(write(tmp_path / "events.jsonl", events))


@pytest.mark.parametrize("processes", [2, 3])
def test_a_comparison_of_a_file(record: str, processes: int) -> None:
    """Result, report and all that an observer is told are those of one process, and it says how it was done."""
    job = Job(Settings(), HOUSEHOLDS, GENTLE, source=record)
    (one, report), (several, same) = compared(job, 1), compared(job, processes)
    assert several.processes == processes
    assert f"Shared out by subject between {processes} processes" in several.remarks[-1]
    assert plain(several) == plain(one)
    assert one.candidate.penalties > 100
    assert one.candidate.stopped > 0
    assert same == report
    recorders = [Recorder(), Recorder()]
    run(job, 1, recorders[0])
    run(job, processes, recorders[1])
    assert recorders[1].told == recorders[0].told
    assert recorders[1].penalties == recorders[0].penalties


def test_with_a_warm_up_and_labels_after_it(record: str) -> None:
    """The warm-up is left out and outcomes after the range label it, as in one process."""
    times = sorted(event.ts for event in households())
    job = Job(Settings(), HOUSEHOLDS, GENTLE, source=record, from_ms=times[800], to_ms=times[2000])
    (one, report), (several, same) = compared(job, 1), compared(job, 2)
    assert one.warm_up_decisions > 0
    assert "outcomes after --to" in str(one.remarks)
    assert plain(several) == plain(one)
    assert same == report


def test_combinations(tmp_path: Path) -> None:
    """A rule on a combination steps its subjects once, in the process that has them."""
    text = POLICY.replace("{on: user,", "{on: user+scenario,")
    assert text != POLICY
    job = Job(Settings(), parse_policy(text), GENTLE, source=str(write(tmp_path / "e.jsonl", households())))
    (one, report), (several, same) = compared(job, 1), compared(job, 3)
    assert any("+" in dimension for dimension in one.candidate.by_dimension)
    assert plain(several) == plain(one)
    assert same == report


def test_a_single_policy(record: str) -> None:
    """Nothing is compared: the hash is the same."""
    job = Job(Settings(), HOUSEHOLDS, source=record)
    assert plain(run(job, 2)) == plain(run(job, 1))


def test_a_single_policy_in_a_range(record: str) -> None:
    """Each process reads everything for itself: what it counts, and leaves out, is counted once."""
    times = sorted(event.ts for event in households())
    job = Job(Settings(), HOUSEHOLDS, source=record, from_ms=times[800], to_ms=times[2000])
    one, several = run(job, 1), run(job, 3)
    assert one.warm_up_decisions > 0
    assert one.candidate.penalties > 0
    assert (several.processes, plain(several)) == (3, plain(one))
    assert "each of which reads everything" in several.remarks[-1]


def test_processes_that_read_something_else(record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where records went away meanwhile, what each found is of other records: all is done again, by one reader."""
    told = replay_parts._run

    async def short(*arguments: Any, **options: Any) -> Any:
        first, *rest = await told(*arguments, **options)
        assert first.result is not None
        fewer = msgspec.structs.replace(first.result, decisions=first.result.decisions - 1)
        return [msgspec.structs.replace(first, result=fewer), *rest]

    monkeypatch.setattr(replay_parts, "_run", short)
    job = Job(Settings(), HOUSEHOLDS, source=record)
    several = run(job, 2)
    assert plain(several) == plain(run(job, 1))
    assert "records were deleted while they were read, so all was done again" in several.remarks[-1]


def test_the_limits_of_both_sides_over_a_log() -> None:
    """Of a log each side's limits decide, so each side has a process; one side alone has this one, which says why."""
    shipped = load_policy(ROOT / "policies" / "access-log.yaml")
    lax = load_policy(ROOT / "policies" / "default.yaml")
    job = Job(Settings(), shipped, lax, source=f"combined:{LOG}")
    (one, report), (several, same) = compared(job, 1), compared(job, 8)
    assert several.processes == 2
    assert several.candidate.limits is not None
    assert several.candidate.limits["stopped"] == 32
    assert plain(several) == plain(one)
    assert same == report
    alone = run(Job(Settings(), shipped, source=f"combined:{LOG}"), 8)
    assert (alone.processes, alone.result_hash) == (1, one.result_hash)
    assert "In one process: limits that are counted anew" in alone.remarks[-1]


def test_other_limits(record: str) -> None:
    """A candidate with other limits is a process of its own; its answers and the report are those of one process."""
    job = Job(Settings(), LIMITED, HOUSEHOLDS, source=record)
    (one, report), (several, same) = compared(job, 1), compared(job, 3)
    assert one.candidate.limits
    assert several.processes == 3
    assert "the candidate as a whole" in several.remarks[-1]
    assert plain(several) == plain(one)
    assert same == report


def test_a_process_that_dies(record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is gone ends the replay with a sentence, and leaves none behind."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StoreUnavailable, match="a process of the replay died"):
        run(Job(Settings(), HOUSEHOLDS, source=record), 2)


def test_a_process_that_cannot(record: str) -> None:
    """What one process refuses is told in its sentence: limits cannot be counted over a sample."""
    sampled = Path(record).with_name("sampled.jsonl")
    sampled.write_bytes(Path(record).read_bytes().replace(b'"action":"allow"', b'"action":"allow","sample_rate":0.5'))
    with pytest.raises(ConfigurationError, match=r"only a share of 0\.5"):
        run(Job(Settings(), LIMITED, HOUSEHOLDS, source=str(sampled)), 2)


def test_nothing_to_replay(tmp_path: Path) -> None:
    """An empty file ends with the sentence of one process."""
    job = Job(Settings(), HOUSEHOLDS, source=str(write(tmp_path / "e.jsonl", ())))
    with pytest.raises(ConfigurationError, match="nothing to replay"):
        run(job, 2)


def test_who_steps_what() -> None:
    """Limits that are counted anew take a side as a whole; what is left is shared out by subject."""
    both, rest = ["baseline", "candidate"], ("baseline", "candidate")
    assert shares(both, [], 3) == [Share(rest, 0, 3), Share(rest, 1, 3), Share(rest, 2, 3)]  # type: ignore[arg-type]
    assert shares(both, ["candidate"], 3) == [  # type: ignore[arg-type]
        Share(("candidate",), 0, 1),
        Share(("baseline",), 0, 2),
        Share(("baseline",), 1, 2),
    ]
    assert shares(both, both, 8) == [Share(("baseline",), 0, 1), Share(("candidate",), 0, 1)]  # type: ignore[arg-type]
    assert shares(["candidate"], ["candidate"], 8) == [Share(("candidate",), 0, 1)]
