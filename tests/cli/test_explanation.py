"""What `explain` says of a state: in force, forgiven, capped, and how far rules are from firing."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from penaltybox.cli.allow import bans_on
from penaltybox.cli.explanation import banned_by, describe_rule, explain_state
from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.policy_file import default_policy_path, load_policy, parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.engine import Engine, Event, Handling, step
from penaltybox.processors.state import SubjectState
from penaltybox.producers.limiter import Request
from penaltybox.producers.lists import Lists
from penaltybox.sinks.lists import Banned

POLICY = load_policy(default_policy_path())
START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def after(subject: str, decisions: list[Decision]) -> SubjectState:
    """The state of a subject after decisions, stepped by the engine."""
    engine = Engine(POLICY)
    state = SubjectState.fresh(subject)
    for decision in decisions:
        state, _ = step(state, Event(decision, Handling(decision.ts)), POLICY, engine)
    return state


def claim(number: int, at_ms: int, **subjects: str) -> Decision:
    """An allowed claim."""
    return Decision(
        v=1, id=f"c{number}", ts=at_ms, source="t/1", scenario="coupon_claim", action="allow", subjects=subjects
    )


def refused(number: int, at_ms: int) -> Decision:
    """A claim of user u over the user limit."""
    return Decision(
        v=1,
        id=f"r{number}",
        ts=at_ms,
        source="t/1",
        scenario="coupon_claim",
        action="deny",
        reason="over_limit",
        violated=("user:daily",),
        subjects={"user": "u"},
    )


def test_nothing_is_known() -> None:
    """A subject without a state is said to be unknown."""
    one = explain_state(None, "user:x", POLICY, START_MS)
    assert (one.known, one.in_force, one.allowlisted) == (False, [], False)


def test_a_block_in_force() -> None:
    """A farm's device: denied for an hour from the fourth account on, by the rule that says so."""
    state = after("device:d", [claim(n, START_MS + n, user=f"u{n}", device="d") for n in range(4)])
    one = explain_state(state, "device:d", POLICY, START_MS + 60_000)
    (hold,) = one.in_force
    assert (hold.action, hold.rung, hold.rule) == ("deny", "1h", "device_farm")
    assert hold.left_ms == HOUR_MS - 60_000 + 3
    assert (one.last_rung, one.prior_now, one.forgiven) == ("1h", "1h", 0)
    assert "a step now would go from 1h to permanent" in one.arithmetic


@pytest.mark.parametrize(
    ("hours", "prior", "sentence"),
    [
        (1, "5m", "= 0 forgiven, which leaves 5m"),
        (9, "warn", "= 1 forgiven, which leaves warn"),
        (17, "none", "= 2 forgiven, which leaves none"),
        (80, "none", "ended more than 3d ago: forgotten"),
    ],
)
def test_forgiveness_is_reckoned(hours: int, prior: str, sentence: str) -> None:
    """A rung is forgiven every eight hours after the end of the last penalty, all of them after three days."""
    decisions = [refused(n, START_MS + n * 1_000) for n in range(40)]
    state = after("user:u", decisions)
    assert state.real.rung == "5m"
    one = explain_state(state, "user:u", POLICY, int(state.real.end or 0) + hours * HOUR_MS)
    assert one.in_force == []
    assert one.prior_now == prior
    assert any(sentence in said for said in one.arithmetic), one.arithmetic


def test_rules_tell_how_far_they_are() -> None:
    """Counts within the window now, out of the threshold; what left the window is not counted."""
    state = after("user:u", [refused(n, START_MS + n * 60_000) for n in range(8)])
    (rule,) = [one for one in explain_state(state, "user:u", POLICY, START_MS + 7 * 60_000).rules if one.seen]
    assert (rule.rule, rule.seen, rule.threshold) == ("user_abuse", 8, 20)
    assert rule.says == "20 decisions within 10m → one rung up"
    (later,) = explain_state(state, "user:u", POLICY, START_MS + 14 * 60_000).rules
    assert later.seen == 3


def test_shared_addresses_and_caps_are_told() -> None:
    """An address with ten established users is said to be challenged only, and where it is capped."""
    decisions = [
        Decision(
            v=1,
            id=f"e{n}",
            ts=START_MS + n,
            source="t/1",
            action="allow",
            subjects={"user": f"u{n}", "ip": "192.0.2.1"},
            established=True,
        )
        for n in range(10)
    ]
    one = explain_state(after("ip:192.0.2.1", decisions), "ip:192.0.2.1", POLICY, START_MS + 1_000)
    assert one.shared_ip
    assert "shared address: challenged, never denied" in one.arithmetic
    assert "a step now would go from none to warn, capped at 1h for ip" in one.arithmetic


def test_trust_is_told() -> None:
    """Outcomes that established a user, and the quota that they earned."""
    paid = Outcome(v=1, id="o", ts=START_MS, label="identity_verified", subjects={"user": "u"})
    state, _ = step(SubjectState.fresh("user:u"), Event(paid, Handling(START_MS)), POLICY)
    one = explain_state(state, "user:u", POLICY, START_MS)
    assert (one.established, one.quota_percent) == (True, 150)


def test_the_allowlist_hides_a_block() -> None:
    """A listed device with a block: listed, and nothing in force."""
    state = after("device:d", [claim(n, START_MS + n, user=f"u{n}", device="d") for n in range(4)])
    listed = parse_policy(default_policy_path().read_text() + "\nallow: ['device:d']\n")
    one = explain_state(state, "device:d", listed, START_MS + 60_000)
    assert (one.allowlisted, one.in_force) == (True, [])


def test_every_rule_can_be_said() -> None:
    """Each rule of the default policy has a sentence."""
    assert [describe_rule(rule) for rule in POLICY.rules if rule.name == "ip_accounts"] == [
        "20 different user within 1h → a challenge of 15m"
    ]
    assert all("→" in describe_rule(rule) for rule in POLICY.rules)


@pytest.mark.parametrize(
    ("field", "holds"),
    [
        ("203.0.113.0/24", True),
        ("203.0.113.9/24", True),
        ("::ffff:203.0.113.0/120", True),
        ("203.0.113.7", True),
        ("::ffff:203.0.113.7", True),
        ("203.0.113.8", False),
        ("2001:db8::/32", False),
        ("203.0.113.0/255.255.255.0", False),
        ("ip:203.0.113.7", False),
        ("x", False),
        ("", False),
        ("/24", False),
        ("203.0.113.0/٢٤", False),
    ],
)
def test_a_ban_that_is_in_force_is_the_one_that_is_told(field: str, holds: bool) -> None:
    """What somebody wrote into the list by himself means the same to limiters, `explain` and `allow check`."""
    lists, banned = Lists(), {field: Banned(reason="scanner")}
    lists.ban(field)
    request = Request(id="r", ts_ms=1, scenario="s", subjects={"ip": "203.0.113.7"})
    found = lists.find(request, Canonicaliser().names(request.subjects), "203.0.113.7")
    assert (found is not None) == holds
    assert bool(banned_by(banned, "ip:203.0.113.7", 1)) == holds
    assert bool(bans_on(banned, ip_address("203.0.113.7"), 1)) == holds
