"""Limiter and penalties over traffic, with nothing deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penaltybox.cli.offline import Offline, run_offline
from penaltybox.contracts.events import Outcome
from penaltybox.contracts.policy_file import default_policy_path, load_policy, parse_policy
from penaltybox.producers.ingest import LogIngest, open_log, read_lines
from penaltybox.producers.limiter import Limiter, Listed, Request

ROOT = Path(__file__).parent.parent.parent
LOG = ROOT / "tests" / "data" / "apache_access.log"


def claim(number: int, ts_ms: int, **subjects: str) -> Request:
    """A coupon claim."""
    return Request(id=f"r{number}", ts_ms=ts_ms, scenario="coupon_claim", subjects=subjects)


def play(offline: Offline, requests: list[Request], limits: Any) -> list[str]:
    """What each request gets, with the blocklist in force."""
    limiter = Limiter(limits, source="test/1")
    answers = []
    for request in requests:
        listed = offline.listed(request)
        (decision,) = (limiter.refuse_listed(request, listed),) if listed else limiter.decide(request)
        offline.judge(decision)
        answers.append(decision.reason or decision.action)
    return answers


def test_the_real_log() -> None:
    """The access-log policy blocks one of 1,753 real addresses twice, five minutes each, and stops 32 requests."""
    policy = load_policy(ROOT / "policies" / "access-log.yaml")
    offline = Offline(policy)
    ingest = LogIngest(Limiter(policy.limits, source="access-log/test"), listed=offline.listed)
    with open_log(LOG) as log:
        summary = run_offline(ingest.decisions(read_lines(log)), offline)
    assert summary.requests == 10_000
    assert summary.by_rung == {"5m": 2}
    assert summary.by_rule == {"web_flood": 2}
    assert {total.subject: total.penalties for total in summary.top} == {"ip:75.97.9.59": 2}
    assert summary.allowed + summary.over_limit + summary.stopped == 10_000
    assert summary.stopped == sum(total.stopped for total in summary.top) == 32


def test_the_default_policy_leaves_the_real_log_alone() -> None:
    """A quiet public site is not hurt by the default policy: nobody is over 120 requests a minute."""
    policy = load_policy(default_policy_path())
    offline = Offline(policy)
    ingest = LogIngest(Limiter(policy.limits, source="access-log/test"), listed=offline.listed)
    with open_log(LOG) as log:
        summary = run_offline(ingest.decisions(read_lines(log)), offline)
    assert (summary.allowed, summary.penalties) == (10_000, 0)


def test_a_farm_is_stopped_and_its_users_are_not_charged() -> None:
    """The fourth account on a device blocks the device; what it sends then is stopped and charged to nobody."""
    policy = load_policy(default_policy_path())
    offline = Offline(policy)
    requests = [claim(n, 1_000_000 + n * 1_000, user=f"u{n}", device="farm") for n in range(50)]
    assert play(offline, requests, policy.limits) == ["allow"] * 3 + ["over_limit"] + ["blocklist"] * 46
    summary = offline.summary()
    assert summary.by_rung == {"1h": 1}
    assert (summary.subjects_penalised, summary.stopped) == (1, 46)
    assert offline.listed(claim(99, 1_000_000 + 3_000 + 3_600_000, device="farm")) is None


def test_a_passed_challenge_exempts_from_the_address() -> None:
    """Who passed a challenge is let through an address under challenge, others there are not."""
    policy = load_policy(default_policy_path())
    offline = Offline(policy)
    play(offline, [claim(n, 1_000_000 + n, user=f"u{n}", ip="192.0.2.1") for n in range(20)], policy.limits)
    one = claim(50, 1_001_000, user="u1", ip="192.0.2.1")
    assert offline.listed(one) == Listed("challenge", 1_000_019 + 15 * 60_000)
    offline.learn(Outcome(v=1, id="o", ts=1_000_500, label="challenge_passed", subjects=one.subjects))
    assert offline.listed(one) is None
    assert offline.listed(claim(51, 1_001_000, user="u2", ip="192.0.2.1")) is not None


def test_the_allowlist_hides_blocks() -> None:
    """A listed device goes on whatever it does."""
    text = default_policy_path().read_text() + "\nallow: ['device:farm']\n"
    policy = parse_policy(text)
    offline = Offline(policy)
    requests = [claim(n, 1_000_000 + n, user=f"u{n}", device="farm") for n in range(10)]
    assert "blocklist" not in play(offline, requests, policy.limits)
