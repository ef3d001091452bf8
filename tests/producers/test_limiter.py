"""What the limiter of a policy decides, and that a refused request uses up nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import encode
from penaltybox.contracts.policy_file import default_policy_path, load_policy, parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.limiter import Limiter, Listed, Request


def limiter(text: str) -> Limiter:
    """A limiter of the limits of one scenario `s`, written as YAML."""
    return Limiter(parse_policy("limits:\n  s:\n    " + text.strip()).limits, source="test/1")


def request(number: int = 1, ts_ms: int = 1_000, **changed: Any) -> Request:
    """A request of user u, device d and an address."""
    given = {"id": f"r{number}", "ts_ms": ts_ms, "scenario": "s"}
    return Request(**(given | {"subjects": {"user": "u", "device": "d", "ip": "192.0.2.1"}} | changed))


def test_a_refused_request_takes_from_no_limit() -> None:
    """Twenty refusals by the user limit leave the quotas of device and address where they were."""
    box = limiter("""
    user: [{name: burst, limit: 1, window: 10s}]
    device: [{name: burst, limit: 3, window: 1h}]
    ip: [{name: soft, limit: 3, window: 1h}]
    """)
    answers = [box.decide(request(n))[0].action for n in range(21)]
    assert answers == ["allow"] + ["deny"] * 20
    assert [d.remaining for d in box.decide(request(30, subjects={"ip": "192.0.2.1"}))] == [1]


def test_all_violated_limits_are_named_and_the_severest_answers() -> None:
    """Deny stands over challenge over shadow; the wait told is the longest of the limits that deny."""
    box = limiter("""
    user: [{name: day, limit: 1, window: 1d, answer: challenge}, {name: burst, limit: 1, window: 10s}]
    device: [{name: hour, limit: 1, window: 1h}]
    ip: [{name: soft, limit: 1, window: 1m, answer: shadow}]
    """)
    box.decide(request(1))
    (decision,) = box.decide(request(2, ts_ms=2_500))
    assert decision.action == "deny"
    assert decision.reason == "over_limit"
    assert decision.violated == ("user:day", "user:burst", "device:hour", "ip:soft")
    assert (decision.limit, decision.window_s, decision.remaining) == (1, 3_600, 0)
    assert decision.retry_after_s == 3_599  # 3,598,500 ms, rounded up


def test_allowed_tells_the_tightest_limit() -> None:
    """An allowed request tells the limit of which least is left after it."""
    box = limiter("user: [{name: a, limit: 5, window: 1m}]\n    ip: [{name: b, limit: 3, window: 1h}]")
    (decision,) = box.decide(request())
    assert (decision.action, decision.limit, decision.remaining, decision.window_s) == ("allow", 3, 2, 3_600)
    assert decision.reason is None


def test_dry_run_is_told_beside_the_real_answer() -> None:
    """A dry-run limit that alone refuses gives an allow that counts and a deny that is not enforced."""
    box = limiter("user: [{name: new, limit: 1, window: 1h, dry_run: true}, {name: old, limit: 2, window: 1h}]")
    first, second, third = (box.decide(request(n)) for n in (1, 2, 3))
    assert [d.action for d in first] == ["allow"]
    assert [(d.action, d.enforced, d.violated) for d in second] == [("allow", True, ()), ("deny", False, ("user:new",))]
    assert second[0].id != second[1].id
    assert [(d.action, d.enforced, d.violated) for d in third] == [("deny", True, ("user:old",))]


def test_dry_runs_do_not_disturb_each_other() -> None:
    """Each dry run is tried alone: one that refuses does not keep another from counting."""
    box = limiter("""
    user: [{name: a, limit: 1, window: 1h, dry_run: true}, {name: b, limit: 2, window: 1h, dry_run: true}]
    """)
    told = [box.decide(request(n))[1:] for n in (1, 2, 3)]
    assert [d.violated for answers in told for d in answers] == [("user:a",), ("user:a", "user:b")]


def test_subjects_count_in_canonical_form() -> None:
    """A mapped address is its IPv4, addresses of one /64 are one subject."""
    box = limiter("ip: [{name: soft, limit: 1, window: 1h}]")
    values = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::ffff", "2001:db8:0:1::1"]
    actions = [box.decide(request(n, subjects={"ip": ip}))[0].action for n, ip in enumerate(values)]
    assert actions == ["allow", "deny", "allow", "deny", "allow"]


def test_combinations_count_their_parts_together() -> None:
    """A limit on device+route counts each pair, and no value can forge another pair."""
    box = limiter("device+route: [{name: one, limit: 1, window: 1h}]")
    pairs = [("a", "x"), ("a", "y"), ("a+x", ""), ("a", "x")]
    actions = [box.decide(request(n, subjects={"device": d}, route=r))[0].action for n, (d, r) in enumerate(pairs)]
    assert actions == ["allow", "allow", "allow", "deny"]
    assert box.decide(request(9, subjects={"user": "u"}))[0].action == "allow"


def test_cost_above_the_limit_has_no_retry() -> None:
    """What can never fit is refused without a time to come back."""
    (decision,) = limiter("user: [{name: a, limit: 5, window: 1m}]").decide(request(cost=6))
    assert (decision.action, decision.retry_after_s, decision.remaining) == ("deny", None, 5)


def test_a_bad_subject_counts_nothing() -> None:
    """A value that is no subject is an error before anything was taken."""
    box = limiter("user: [{name: a, limit: 1, window: 1m}]\n    ip: [{name: b, limit: 1, window: 1m}]")
    with pytest.raises(BadEvent):
        box.decide(request(subjects={"user": "u", "ip": "not an address"}))
    assert box.decide(request())[0].action == "allow"


def test_listed_subjects_are_refused_without_counting() -> None:
    """A blocklist denial names no limit, and tells when the block ends, or nothing when it is permanent."""
    box = limiter("user: [{name: a, limit: 1, window: 1m}]")
    denied = box.refuse_listed(request(), Listed("deny", 5_001))
    assert (denied.reason, denied.violated, denied.retry_after_s) == ("blocklist", (), 5)
    challenged = box.refuse_listed(request(), Listed("challenge", None))
    assert (challenged.reason, challenged.retry_after_s) == ("challenged", None)
    assert box.decide(request())[0].action == "allow"


people = st.sampled_from(["u1", "u2"])
calls = st.lists(
    st.tuples(st.sampled_from(["login", "coupon_claim", "web", "none"]), people, people, st.integers(0, 90_000)),
    max_size=80,
)


@given(calls=calls)
def test_decisions_are_good_events_and_limits_hold(calls: list[tuple[str, str, str, int]]) -> None:
    """With the default policy every decision decodes again, and no user gets more claims than the limit."""
    box = Limiter(load_policy(default_policy_path()).limits, source="test/1")
    canonicaliser, now, claims = Canonicaliser(), 1_000_000, {"u1": 0, "u2": 0}
    for number, (scenario, user, device, gap) in enumerate(calls):
        now += gap
        subjects = {"user": user, "device": device, "ip": "192.0.2.7", "login_name": user}
        for decision in box.decide(request(number, now, scenario=scenario, subjects=subjects)):
            raw = encode(decision)
            assert msgspec.to_builtins(decode_decision(raw, now, canonicaliser)) == msgspec.to_builtins(decision)
            claims[user] += scenario == "coupon_claim" and decision.action == "allow"
    assert max(claims.values()) <= 3
