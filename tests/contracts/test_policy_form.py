"""A policy written out in full is the same policy, and two policies differ by what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from penaltybox.contracts.policy_changes import Change, FieldChange, changes
from penaltybox.contracts.policy_file import load_policy, parse_policy, policy_from
from penaltybox.contracts.policy_form import document

ROOT = Path(__file__).parents[2]
FILES = [*(ROOT / "policies").glob("*.yaml"), *(ROOT / "tests" / "scenarios").glob("*/*.yaml")]
FULL = """
limits:
  s:
    user: [{name: a, limit: 3, window: 1d, algorithm: gcra, burst: 2, answer: challenge, dry_run: true}]
    device+route: [{name: b, limit: 3, window: 90s, algorithm: sliding_window_counter, slots: 30}]
scenarios: {s: {routes: ["POST /s"], failure: closed, deadline: 50ms, missing: {user: refuse}, costs: {"GET *": 0},
            newcomers: 50, check: 100, publish: 100, probe: 2.5, allow_cache: 500ms, messages: {deny: {en: No}}}}
plans: {pro: {"s/user:a": 30}}
rules:
  r: {on: user, count: 3, window: 10m, then: {score: 5}, shadow: true, when: {action: deny, violated: ["user:*"]}}
  d: {on: device, distinct: attrs.address, n: 4, window: 10m, then: {challenge: 5m}}
ladder: {rungs: [warn, 5m, 5m, permanent], warn: 20m, forgive: 8h, memory: 72h, caps: {ip: challenge}, jitter: 5}
score: {window: 1h, thresholds: [{at: 10, then: {level: 5m#2}}, {at: 5, then: step}]}
shared_ip: false
trust: {points: {payment_ok: 3}, established: 2, multipliers: {-10: 50, 4: 150}, ttl: 10d}
allow: [{subject: "user:qa", until: 2026-12-01T00:00:00.5Z, note: tests}, {cidr: 192.0.2.0/24}, "ip:2001:db8::1"]
breaker: false
"""
PLAIN = "limits: {s: {user: [{name: daily, limit: 3, window: 1d}]}}\n"
RULE = "rules: {abuse: {on: user, count: 3, window: 10m, then: step}}\n"


@pytest.mark.parametrize("text", [FULL, *(path.read_text() for path in FILES)])
def test_a_policy_written_out_is_the_same_policy(text: str) -> None:
    """Also as YAML; its version is the same, so what `policy show` prints can be applied."""
    policy = parse_policy(text)
    assert policy_from(document(policy)) == policy
    printed = parse_policy(yaml.safe_dump(document(policy), sort_keys=False, default_flow_style=None, width=110))
    assert (printed, printed.version) == (policy, policy.version)
    assert changes(policy, printed) == []


def test_a_default_that_is_written_out_makes_no_other_version() -> None:
    """The version is of what a policy means: saying what holds anyway changes nothing."""
    said = PLAIN.replace("window: 1d", "window: 24h, algorithm: sliding_window, answer: deny, dry_run: false")
    assert parse_policy(said).version == parse_policy(PLAIN).version


def test_what_was_added_is_gone_or_changed() -> None:
    """Limits, rules and the rest are told by their names; a changed rule starts afresh, which is said."""
    before = parse_policy(PLAIN + RULE)
    after = parse_policy(PLAIN.replace("limit: 3", "limit: 5") + RULE.replace("count: 3", "count: 4") + "pass: 1h\n")
    assert changes(before, after) == [
        Change(section="limits", name="s/user:daily", kind="changed", fields=(FieldChange("limit", 3, 5),)),
        Change(
            section="rules",
            name="abuse",
            kind="changed",
            fields=(FieldChange("count", 3, 4),),
            note="its counters start afresh",
        ),
        Change(section="pass", name="pass", kind="changed", fields=(FieldChange("", "30m", "1h"),)),
    ]
    gone = changes(before, load_policy(ROOT / "policies" / "access-log.yaml"))
    assert ("rules", "abuse", "gone") in {(one.section, one.name, one.kind) for one in gone}
    assert all(field.after is None for one in gone if one.kind == "gone" for field in one.fields)
