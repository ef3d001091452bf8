"""Changed limits over recorded requests: the limiter is asked again, with the candidate's own blocks in force."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.cli.replay_job import Job, run_job
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.policy_file import load_policy, parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.producers.limiter import Limiter, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.replay.loop import Result

ROOT = Path(__file__).parent.parent.parent
LOG = ROOT / "tests" / "data" / "apache_access.log"
T0 = 1_766_400_000_000
POLICY = """
limits: {claim: {user: [{name: daily, limit: LIMIT, window: 1d}]}}
rules:
  abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}
ladder: {rungs: [warn, 5m, 1h, permanent], warn: 10m, forgive: 8h, memory: 72h}
"""


def policy(limit: int) -> Policy:
    return parse_policy(POLICY.replace("LIMIT", str(limit)))


def decided(limit: int, count: int, **fields: Any) -> list[Decision]:
    """One user's requests, a second apart, as the limits of that policy decided them."""
    limiter = Limiter(policy(limit).limits, source="test/1")
    found: list[Decision] = []
    for number in range(count):
        request = Request(id=f"r{number}", ts_ms=T0 + number * 1000, scenario="claim", subjects={"user": "u1"})
        found += [msgspec.structs.replace(one, **fields) for one in limiter.decide(request)]
    return found


def run(path: Path, events: Iterable[Decision], candidate: Policy, baseline: Policy | None) -> Result:
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    return asyncio.run(run_job(Job(Settings(), candidate, baseline, source=str(path))))


def test_a_stricter_limit(tmp_path: Path) -> None:
    """Requests that were allowed are refused, lead to a block, and what the block stops counts nowhere."""
    result = run(tmp_path / "d", decided(20, 20), policy(4), policy(20))
    assert result.baseline is not None
    assert (result.baseline.penalties, result.baseline.limits) == (0, None)
    assert result.candidate.by_rung == {"5m": 1}
    assert result.candidate.limits == {"stopped": 13, "allowed": 4, "newly_refused": 3, "over_limit": 3}


def test_a_laxer_limit(tmp_path: Path) -> None:
    """Requests that were over the limit are allowed, up to the new one."""
    result = run(tmp_path / "d", decided(4, 9), policy(8), policy(4))
    assert result.baseline is not None
    assert result.baseline.by_rung == {"5m": 1}
    assert result.candidate.penalties == 0
    assert result.candidate.limits == {"allowed": 8, "newly_allowed": 4, "over_limit": 1}


def test_a_record_of_many(tmp_path: Path) -> None:
    """A record that stands for several requests is split where the new limit is reached."""
    events = [*decided(1, 1), *decided(1, 2)[1:]]
    events[1] = msgspec.structs.replace(events[1], count=5)
    result = run(tmp_path / "d", events, policy(3), policy(1))
    assert result.candidate.limits == {"allowed": 3, "over_limit": 3, "newly_allowed": 2}
    assert result.candidate.penalties == 1


def test_what_came_from_the_old_policy_stays(tmp_path: Path) -> None:
    """Recorded blocklist denials are neither asked about nor counted by the new limits."""
    events = [*decided(20, 2), *decided(20, 6, id="b", action="deny", reason="blocklist")[2:]]
    result = run(tmp_path / "d", events, policy(2), policy(20))
    assert result.candidate.limits == {"unknown_demand": 4, "allowed": 2}
    assert result.recorded_blocklist == 4


def test_the_same_limits_are_not_asked_again(tmp_path: Path) -> None:
    """Without a change of `limits`, and without a baseline, the recorded answers are taken."""
    for baseline in (policy(4), None):
        result = run(tmp_path / "d", decided(4, 9), policy(4), baseline)
        assert result.candidate.limits is None
        assert result.candidate.by_rung == {"5m": 1}


def test_a_sample_is_refused(tmp_path: Path) -> None:
    """Limits cannot be counted over a share of the requests."""
    events = decided(20, 3, sample_rate=0.1)
    with pytest.raises(
        ConfigurationError, match=r"decision r0: only a share of 0.1 .*the scenario's `publish` at 100\)"
    ):
        run(tmp_path / "d", events, policy(4), policy(20))
    assert run(tmp_path / "d", events, policy(20), policy(20)).decisions == 3


def test_an_access_log() -> None:
    """A log is decided by the candidate's limits: what `ingest --offline` says of the real log."""
    shipped = load_policy(ROOT / "policies" / "access-log.yaml")
    lax = load_policy(ROOT / "policies" / "default.yaml")
    result = asyncio.run(run_job(Job(Settings(), shipped, lax, source=f"combined:{LOG}")))
    assert result.decisions == 10_000
    assert result.candidate.by_rule == {"web_flood": 2}
    assert result.candidate.limits is not None
    assert result.candidate.limits["stopped"] == 32
    assert result.baseline is not None
    assert (result.baseline.penalties, result.baseline.limits) == (0, {"allowed": 10_000})
    with pytest.raises(ConfigurationError, match="the policy has no limits for it"):
        asyncio.run(run_job(Job(Settings(), shipped, source=f"combined:{LOG}", scenarios={"": "login"})))
