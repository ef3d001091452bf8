"""Policy files: what is right is read, and each kind of mistake is told with its place, what it got and wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.allowlist import Allowlist
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import default_policy_path, load_policy, parse_policy
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from pathlib import Path

RULE = "rules: {r: {on: user, count: 3, window: 1m, then: step}}\n"
SCENARIO = "limits: {s: {ip: [{name: a, limit: 1, window: 1m}]}}\nscenarios: {s: {failure: open}}"
MISTAKES = [  # what, YAML, where, got, wanted
    (
        "limit: slots elsewhere",
        "limits: {s: {ip: [{name: a, limit: 1, window: 1m, slots: 6}]}}",
        "limits.s.ip[0].slots",
        "slots for sliding_window",
        "sliding_window_counter",
    ),
    (
        "limit: burst of a window",
        "limits: {s: {ip: [{name: a, limit: 1, window: 1m, burst: 6}]}}",
        "limits.s.ip[0].burst",
        "burst for sliding_window",
        "gcra",
    ),
    (
        "limit: inexact",
        "limits: {s: {ip: [{name: a, limit: 1000000000, window: 1000d, algorithm: gcra}]}}",
        "limits.s.ip[0]",
        "86,400,000,000 ms",
        "2^53",
    ),
    (
        "limit: thin slots",
        "limits: {s: {ip: [{name: a, limit: 9, window: 30ms, algorithm: sliding_window_counter}]}}",
        "limits.s.ip[0]",
        "60 slots in 30 ms",
        "a millisecond",
    ),
    (
        "scenario without limits",
        SCENARIO.replace("scenarios: {s", "scenarios: {t"),
        "scenarios",
        "'t'",
        "one of limits: s",
    ),
    ("scenario: failure", SCENARIO.replace("open", "maybe"), "scenarios.s.failure", "maybe", "closed"),
    ("scenario: deadline", SCENARIO.replace("failure: open", "deadline: 11s"), "scenarios.s.deadline", "11s", "10s"),
    (
        "scenario: no deadline",
        SCENARIO.replace("failure: open", "deadline: 0ms"),
        "scenarios.s.deadline",
        "0ms",
        "more than zero and at most 10s",
    ),
    (
        "scenario: no cache",
        SCENARIO.replace("failure: open", "allow_cache: 0s"),
        "scenarios.s.allow_cache",
        "0s",
        "more than zero and at most 1s",
    ),
    (
        "scenario: allow cache",
        SCENARIO.replace("failure: open", "allow_cache: 2s"),
        "scenarios.s.allow_cache",
        "2s",
        "1s",
    ),
    (
        "scenario: missing",
        SCENARIO.replace("failure: open", "missing: {user: skip}"),
        "scenarios.s.missing",
        "'user'",
        "ip",
    ),
    ("scenario: percent", SCENARIO.replace("failure: open", "check: 0"), "scenarios.s.check", "0", "above 0"),
    (
        "scenario: message",
        SCENARIO.replace("failure: open", "messages: {no: {en: x}}"),
        "scenarios.s.messages",
        "'no'",
        "deny",
    ),
    (
        "scenario: cost",
        SCENARIO.replace("failure: open", "costs: {'GET *': -1}"),
        "scenarios.s.costs.GET *",
        "-1",
        "from 0",
    ),
    (
        "distinct over a sample",
        SCENARIO.replace("failure: open", "publish: 10") + "\n" + RULE.replace("count: 3", "distinct: ip, n: 3"),
        "rules.r",
        "distinct over s",
        "check and publish",
    ),
    (
        "scenario: route",
        SCENARIO.replace("failure: open", "routes: ['/a/*']"),
        "scenarios.s.routes[0]",
        "/a/*",
        "without wildcard",
    ),
    (
        "scenario: route of two",
        "limits: {s: {}, t: {}}\nscenarios: {s: {routes: [/a]}, t: {routes: [/a]}}",
        "scenarios.t.routes",
        "which s has",
        "one scenario per route",
    ),
    ("plan: limit", SCENARIO + "\nplans: {pro: {'s/ip:b': 5}}", "plans.pro", "'s/ip:b'", "s/ip:a"),
    ("unknown section", "rule: {}", "policy:", "'rule'", "rules"),
    ("a list for a policy", "[1]", "policy", "[1]", "a mapping"),
    ("a text for a policy", "hello", "policy", "hello", "a mapping"),
    ("not YAML", "rules: {", "policy", "not YAML", "line"),
    ("a tab", "rules:\n\tr: {}", "policy", "not YAML", "line 2"),
    ("a key twice", "lateness: 1s\nlateness: 2s", "policy", "stands twice", "line 2"),
    ("a list for a key", "? [1]\n: 2", "policy", "a key that is no text", "line 1"),
    ("a name that cannot be printed", 'rules: {"r\\ud800": 1}', "rules", "ud800", "can be printed"),
    ("a subject that cannot be printed", 'allow: [{subject: "user:\\ud800"}]', "allow[0].subject", "ud800", "a text"),
    ("a python tag", "rules: !!python/object/apply:os.system [ls]", "policy", "not YAML", "python"),
    ("unknown rule key", RULE.replace("window", "windows"), "rules.r", "'windows'", "window"),
    ("no window", "rules: {r: {on: user, count: 3, then: step}}", "rules.r.window", "None", "a duration"),
    ("no on", "rules: {r: {count: 3, window: 1m, then: step}}", "rules.r.on", "nothing", "a text"),
    ("bad dimension", RULE.replace("on: user", "on: User"), "rules.r.on", "User", "a dimension"),
    ("both kinds", RULE.replace("count: 3", "count: 3, distinct: ip"), "rules.r", "distinct", "exactly one"),
    ("neither kind", RULE.replace("count: 3, ", ""), "rules.r", "window", "exactly one"),
    ("count zero", RULE.replace("3", "0"), "rules.r.count", "0", "from 1"),
    ("count as a text", RULE.replace("3", "'3'"), "rules.r.count", "3", "a whole number"),
    ("count with a fraction", RULE.replace("3", "3.5"), "rules.r.count", "3.5", "a whole number"),
    ("count true", RULE.replace("3", "true"), "rules.r.count", "True", "a whole number"),
    ("distinct without n", RULE.replace("count: 3", "distinct: ip"), "rules.r.n", "nothing", "from 2 to 64"),
    ("distinct n 65", RULE.replace("count: 3", "distinct: ip, n: 65"), "rules.r.n", "65", "to 64"),
    ("distinct of itself", RULE.replace("count: 3", "distinct: user, n: 3"), "rules.r.distinct", "user", "another"),
    ("distinct of nothing", RULE.replace("count: 3", "distinct: attrs., n: 3"), "rules.r.distinct", "attrs.", "NAME"),
    ("n beside count", RULE.replace("count: 3", "count: 3, n: 3"), "rules.r.n", "3", "no n"),
    ("window as a number", RULE.replace("1m", "60"), "rules.r.window", "60", "like 90s"),
    ("window zero", RULE.replace("1m", "0s"), "rules.r.window", "0s", "more than zero"),
    ("window of a century", RULE.replace("1m", "36500d"), "rules.r.window", "36500d", "3650d"),
    ("window without a unit", RULE.replace("1m", "'60'"), "rules.r.window", "60", "like 90s"),
    ("no then", "rules: {r: {on: user, count: 3, window: 1m}}", "rules.r.then", "nothing", "step"),
    ("unknown then", RULE.replace("step", "ban"), "rules.r.then", "ban", "level"),
    ("two thens", RULE.replace("step", "{level: 5m, score: 3}"), "rules.r.then", "score", "one of"),
    ("unknown rung", RULE.replace("step", "{level: 2h}"), "rules.r.then.level", "2h", "warn, 5m, 1h, permanent"),
    ("score zero", RULE.replace("step", "{score: 0}"), "rules.r.then.score", "0", "from 1"),
    ("challenge forever", RULE.replace("step", "{challenge: permanent}"), "rules.r.then.challenge", "permanent", "dur"),
    ("unknown filter", RULE.replace("then", "when: {status: [429]}, then"), "rules.r.when", "'status'", "violated"),
    ("unknown action", RULE.replace("then", "when: {action: [block]}, then"), "when.action", "block", "deny"),
    ("unknown reason", RULE.replace("then", "when: {reason: [limit]}, then"), "when.reason", "limit", "over_limit"),
    ("empty filter", RULE.replace("then", "when: {action: []}, then"), "when.action", "empty list", "at least one"),
    ("violated without dimension", RULE.replace("then", "when: {violated: [x]}, then"), "when.violated", "x", "<dim"),
    (
        "filter that no scenario matches",
        RULE.replace("then", "when: {scenario: [logon]}, then") + "limits: {login: {user: []}}",
        "when.scenario",
        "logon",
        "login",
    ),
    (
        "filter that no limit matches",
        RULE.replace("then", "when: {violated: ['ip:soft']}, then")
        + "limits: {login: {user: [{name: a, limit: 1, window: 1m}]}}",
        "when.violated",
        "ip:soft",
        "user:a",
    ),
    ("shadow as a word", RULE.replace("then", "shadow: 'yes', then"), "rules.r.shadow", "yes", "true or false"),
    ("decreasing ladder", "ladder: {rungs: [1h, 5m]}", "ladder.rungs[1]", "5m after 1h", "don't decrease"),
    ("rung after permanent", "ladder: {rungs: [permanent, 5m]}", "ladder.rungs[1]", "5m after permanent", "decrease"),
    ("warn after a block", "ladder: {rungs: [5m, warn]}", "ladder.rungs[1]", "warn after", "warn before"),
    ("empty ladder", "ladder: {rungs: []}", "ladder.rungs", "an empty list", "at least one rung"),
    ("unknown rung name", "ladder: {rungs: [soon]}", "ladder.rungs[0]", "soon", "like 90s"),
    ("unknown cap", "ladder: {caps: {ip: 2h}}", "ladder.caps.ip", "2h", "challenge"),
    ("cap of no dimension", "ladder: {caps: {I P: 1h}}", "ladder.caps", "I P", "a dimension"),
    ("jitter of 101", "ladder: {jitter: 101}", "ladder.jitter", "101", "0 to 100"),
    ("unknown ladder key", "ladder: {forget: 8h}", "ladder", "'forget'", "forgive"),
    ("threshold without at", "score: {thresholds: [{then: step}]}", "score.thresholds[0].at", "nothing", "whole"),
    (
        "threshold that scores",
        "score: {thresholds: [{at: 3, then: {score: 1}}]}",
        "thresholds[0].then",
        "score",
        "step",
    ),
    ("shared with one", "shared_ip: {established: 1}", "shared_ip.established", "1", "from 2"),
    ("unknown label", "trust: {points: {paid: 1}}", "trust.points", "paid", "payment_ok"),
    ("multiplier at no number", "trust: {multipliers: {'-': 150}}", "trust.multipliers", "-", "percent"),
    ("multiplier as text", "trust: {multipliers: {few: 150}}", "trust.multipliers", "few", "percent"),
    ("allow without subject", "allow: [{note: x}]", "allow[0]", "note", "subject or cidr"),
    ("allow both", "allow: [{subject: 'ip:1.2.3.4', cidr: 1.2.3.0/24}]", "allow[0]", "cidr", "one of"),
    ("allow no subject", "allow: [nobody]", "allow[0].subject", "nobody", "dimension:value"),
    ("allow no range", "allow: [{cidr: 1.2.3.0/33}]", "allow[0].cidr", "1.2.3.0/33", "such as"),
    (
        "allow until no zone",
        "allow: [{cidr: 1.2.3.0/24, until: 2026-01-01T00:00:00}]",
        "allow[0].until",
        "2026",
        "zone",
    ),
    ("allow until before", "allow: [{cidr: 1.2.3.0/24, until: 0001-01-01T00:00:00+14:00}]", "until", "0001", "1970"),
    ("allow until after", "allow: [{cidr: 1.2.3.0/24, until: '9999-12-31T23:59:59-14:00'}]", "until", "9999", "1970"),
    ("allow until when", "allow: [{cidr: 1.2.3.0/24, until: tomorrow}]", "allow[0].until", "tomorrow", "zone"),
    ("allow twice a prefix", "allow: ['ip:::1/64/64']", "allow[0].subject", "::1/64/64", "an IPv4 or IPv6 address"),
    ("allow a zone", "allow: [{cidr: 'fe80::1%eth0/64'}]", "allow[0].cidr", "%eth0", "such as"),
    ("a number twice", "trust: {multipliers: {4: 150, 0x4: 200}}", "policy", "'0x4' stands twice", "line 1"),
    ("points twice", "trust: {multipliers: {4: 150, '04': 200}}", "trust.multipliers", "04", "once"),
    ("rule of a hand", RULE.replace("{r:", "{hand:"), "rules.hand", "'hand'", "a name of its own"),
    ("rule without a name", RULE.replace("{r:", "{'':"), "rules", "''", "a name of its own"),
    ("breaker share 0", "breaker: {share: 0}", "breaker.share", "0", "from 1"),
    (
        "limit without window",
        "limits: {login: {ip: [{name: a, limit: 1}]}}",
        "limits.login.ip[0].window",
        "None",
        "dur",
    ),
    (
        "two limits of one name",
        "limits: {login: {ip: [{name: a, limit: 1, window: 1m}, {name: a, limit: 2, window: 1h}]}}",
        "limits.login.ip",
        "a, a",
        "differ",
    ),
    (
        "unknown algorithm",
        "limits: {login: {ip: [{name: a, limit: 1, window: 1m, algorithm: sliding_log}]}}",
        "algorithm",
        "sliding_log",
        "token_bucket",
    ),
    ("rules as a list", "rules: [1]", "rules", "[1]", "a mapping"),
    ("rule as a number", "rules: {r: 5}", "rules.r", "5", "a mapping"),
    ("then as a list", RULE.replace("step", "[step]"), "rules.r.then", "step", "one of"),
    ("when as a list", RULE.replace("then", "when: [deny], then"), "rules.r.when", "deny", "a mapping"),
    ("allow as a text", "allow: user:a", "allow", "user:a", "a list"),
    ("lateness null", "lateness: null", "lateness", "None", "like 90s"),
    ("rungs null", "ladder: {rungs: null}", "ladder.rungs", "nothing", "a list"),
]


@pytest.mark.parametrize(
    ("text", "where", "got", "wanted"), [case[1:] for case in MISTAKES], ids=[c[0] for c in MISTAKES]
)
def test_a_mistake_is_told(text: str, where: str, got: str, wanted: str) -> None:
    """The message names the place, what stands there and what should; nobody sees a traceback."""
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(text)
    message = str(caught.value)
    assert where in message
    assert got in message
    assert wanted in message


def test_the_default_policy_is_valid() -> None:
    """policies/default.yaml loads, with the ladder that the documentation promises."""
    policy = load_policy(default_policy_path())
    assert [rung.name for rung in policy.ladder.rungs] == ["warn", "5m", "1h", "permanent"]
    assert policy.ladder.caps == {"ip": "1h", "login_name": "challenge"}
    assert {rule.name for rule in policy.rules} >= {"device_farm", "device_addresses", "user_abuse", "ip_accounts"}


def test_an_empty_policy_has_defaults() -> None:
    """Nothing written is a policy that punishes nobody, with every default in place."""
    policy = parse_policy("")
    assert policy.rules == ()
    assert (policy.ladder.forgive_ms, policy.ladder.memory_ms) == (8 * 3_600_000, 72 * 3_600_000)
    assert (policy.lateness_ms, policy.late_after_ms) == (60_000, 600_000)


def test_the_version_is_that_of_the_content() -> None:
    """Comments, order of keys and spelling of a duration don't change the version; a number does."""
    first = parse_policy(RULE + "lateness: 60s")
    same = parse_policy(
        "lateness: 1m  # a minute\nrules:\n  r:\n    then: step\n    window: 60s\n    count: 3\n    on: user\n"
    )
    other = parse_policy(RULE.replace("3", "4"))
    assert first.version == same.version != other.version
    assert len(first.version) == 12


def test_a_changed_rule_has_another_key() -> None:
    """Counters are kept under the rule's definition: a change starts afresh, another rule's change doesn't."""
    both = RULE.replace("}}", "}, q: {on: ip, count: 5, window: 1m, then: step}}")
    assert parse_policy(RULE).rules[0].key == parse_policy(both).rules[0].key
    assert parse_policy(RULE).rules[0].key != parse_policy(RULE.replace("1m", "2m")).rules[0].key


def test_words_of_yaml_are_words() -> None:
    """`on` is a key, not a boolean, and `off`, `no` are words: YAML 1.2."""
    assert parse_policy(RULE).rules[0].on == "user"
    with pytest.raises(ConfigurationError, match="true or false"):
        parse_policy(RULE.replace("then", "shadow: no, then"))


def test_an_unreadable_file_is_told(tmp_path: Path) -> None:
    """A missing file and a binary one are sentences with the path."""
    with pytest.raises(ConfigurationError, match=r"missing\.yaml"):
        load_policy(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"binary\.yaml"):
        load_policy(tmp_path / "binary.yaml")


@pytest.mark.parametrize("prefix", [56, 64, 128])
@pytest.mark.parametrize("listed", ["ip:2001:db8:0:1::7", "ip:2001:db8:0:1::/64", "ip:203.0.113.7"])
def test_a_listed_address_is_found_however_much_of_it_counts(listed: str, prefix: int) -> None:
    """How many bits of an IPv6 address count is a setting that a policy does not know."""
    policy = parse_policy(f"allow: ['{listed}']")
    address = listed[3:].removesuffix("/64") or "::"
    subject = Canonicaliser(prefix).subject("ip", address)
    assert Allowlist(policy.allow).covers(subject, 1)
    assert not Allowlist(policy.allow).covers(Canonicaliser(prefix).subject("ip", "2001:db8:1::7"), 1)


def test_an_ipv4_range_written_as_ipv6_is_that_range() -> None:
    """A proxy's log shows ::ffff:203.0.113.7; its range, listed as it shows it, is found too."""
    policy = parse_policy("allow: [{cidr: '::ffff:203.0.113.0/120'}]")
    assert Allowlist(policy.allow).covers(Canonicaliser().subject("ip", "203.0.113.7"), 1)


def test_a_mapping_may_be_merged() -> None:
    """YAML's `<<` takes over what another rule says; what stands beside it wins."""
    base = "{on: user, count: 3, window: 1m, then: step}"
    policy = parse_policy(f"rules: {{a: &a {base}, b: {{<<: *a, count: 4}}}}")
    assert [rule.n for rule in policy.rules] == [3, 4]


def test_what_the_limiter_is_told() -> None:
    """Scenarios and plans are read with their defaults, and a scenario that nobody described has the same ones."""
    policy = parse_policy(
        "limits: {s: {ip: [{name: a, limit: 5, window: 1m, algorithm: gcra, burst: 2}]}, t: {}}\n"
        "scenarios: {s: {routes: [POST /s], failure: closed,"
        " deadline: 5ms, missing: {ip: refuse}, costs: {'GET *': 2}, newcomers: 50,"
        " check: 50, publish: 0.5, allow_cache: 500ms, messages: {deny: {EN: Too fast.}}}}\n"
        "plans: {pro: {'s/ip:a': 50}}"
    )
    one = policy.scenario("s")
    assert (one.failure, one.deadline_ms, one.missing, one.costs) == ("closed", 5, {"ip": "refuse"}, (("GET *", 2),))
    assert one.routes == ("POST /s",)
    assert (one.newcomers_percent, one.check_percent, one.publish_percent) == (50, 50, 0.5)
    assert (one.allow_cache_ms, one.messages) == (500, {"deny": {"en": "Too fast."}})
    assert policy.plans == {"pro": {"s/ip:a": 50}}
    assert policy.limits["s"]["ip"][0].burst == 2
    assert policy.scenario("t") == policy.scenario("unheard of")
    assert policy.scenario("t").failure == "open"
