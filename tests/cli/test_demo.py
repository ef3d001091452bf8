"""Parts of the demo that need no server: its pace, its log, what a role's process is given."""

from __future__ import annotations

import pytest

from penaltybox.cli.demo_play import Pace, burst_decision, demo_log, judge_log
from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.events import encode
from penaltybox.contracts.settings import Settings, read_settings
from penaltybox.contracts.subjects import Canonicaliser


@pytest.mark.parametrize("cost_s", [0.1, 1.0, 5.0, 12.0])
def test_the_campaign_ends_in_time_on_a_slow_machine(cost_s: float) -> None:
    """Waves grow with what they cost, so that the campaign ends near its time; a fast machine has short ones."""
    pace, now_s, left_ms, waves = Pace(40.0), 0.0, 600_000, []
    while left_ms > 0:
        waves.append(min(left_ms, pace.wave_ms(now_s, left_ms)))
        left_ms -= waves[-1]
        now_s += cost_s
    assert sum(waves) == 600_000
    assert now_s <= max(40.0, 7 * cost_s) + cost_s
    assert waves[0] == 20_000
    if cost_s <= 1:
        assert set(waves[:-1]) == {20_000}


def test_a_role_gets_the_same_settings() -> None:
    """What a process reads from its environment are the settings of whoever started it."""
    given = Settings(kafka="h:1", hashed_dimensions=("ip", "user"), hash_key="k", kafka_partitions=3, redis_prefix="x")
    assert read_settings(environment_of(given)) == given


def test_the_log_is_found_and_judged() -> None:
    """The real log comes with the package, and so does what its policy would have done to it."""
    summary = judge_log(demo_log())
    assert (summary.requests, summary.penalties, summary.stopped) == (10_000, 2, 32)


def test_burst_decisions_are_good() -> None:
    """Every decision of the burst decodes, and a fifth of them are denials."""
    decisions = [burst_decision(number, 1_000_000) for number in range(1_000)]
    canonicaliser = Canonicaliser()
    assert all(decode_decision(encode(one), 1_000_000, canonicaliser) == one for one in decisions)
    assert sum(one.action == "deny" for one in decisions) == 200
    assert len({one.id for one in decisions}) == 1_000
